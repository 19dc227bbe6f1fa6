"""Random tensors, and a comparison of two."""

from __future__ import annotations

import torch


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)
