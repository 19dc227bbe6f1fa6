"""Which device "auto" stands for."""

from __future__ import annotations


def find_device(name: str) -> str:
    """cpu, cuda or mps: what "auto" stands for here; what was asked for must be there."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, available in there.items() if available)
    if not there.get(name, True):
        raise ValueError(f"--device {name}: there is no such device here; choose {' or '.join(k for k in there if there[k])}")
    return name
