"""Muon (Jordan et al., 2024) for the matrices of the blocks, AdamW for all else, as one optimizer.

    B ← μ B + (1 − μ) G,     U = (1 − μ) G + μ B                  momentum, Nesterov's
    W ← W − lr (0.2 √max(rows, columns) · orthogonal(U) + wd · W)

`orthogonal(U)` has the singular vectors of U, and singular values near one: every direction of a matrix learns at the same
pace, also those whose gradient is small. The factor 0.2 √max gives the update the size of AdamW's (Liu et al., 2025), so that
one learning rate serves both. Queries, keys and values lie in one matrix and are orthogonalized one by one. A convolution is a
matrix, with a row for every output.

Matrices of one shape are stacked and updated together, and the learning rate may be a tensor. So a step is a few dozen kernels
and can be captured as a CUDA graph, which torch.optim.Muon cannot.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
STEPS = 5  # of Newton and Schulz
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial that drives singular values towards one
LIKE_ADAMW = 0.2
REPEATED = ("blocks", "layer", "stages", "features")  # of transformers, ResNets, ConvNeXts, older networks
SMALLEST_SIDE = 16  # thinner matrices are left to AdamW


def is_for_muon(name: str, parameter: nn.Parameter) -> bool:
    """Matrices and convolutions of blocks, and neither embeddings nor the head. Libraries have four names for blocks."""
    inside = any(part.startswith(REPEATED) for part in name.split(".")[:-1])
    return inside and parameter.ndim in (2, 4) and min(parameter.flatten(1).shape) >= SMALLEST_SIDE


class Muon(torch.optim.AdamW):
    """Groups with `muon=True` are updated by Muon, the others by AdamW."""

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__([{"muon": False, **group} for group in groups], **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["muon"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["muon"]:
                self.update(group)

    def update(self, group: dict[str, Any]) -> None:
        together: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                together.setdefault(parameter.shape, []).append(parameter)
        skipped = getattr(self, "found_inf", None)  # 1 where a gradient is not finite: the step then changes nothing
        taken = 1.0 if skipped is None else 1 - skipped
        lr = group["lr"] * taken
        for parameters in together.values():
            momenta = [self.momentum(parameter) for parameter in parameters]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            pairs = zip(momenta, gradients, strict=True)
            if skipped is not None:
                gradients = [torch.where(skipped.bool(), momentum, gradient) for momentum, gradient in pairs]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            updates = torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM))
            for parameter, change in zip(parameters, direction(updates), strict=True):
                parameter.mul_(1 - lr * group["weight_decay"]).sub_(lr * change)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's looks for its own state in every group

    def momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


def direction(gradients: Tensor) -> Tensor:
    """The update of a stack of matrices of one shape, for a learning rate of one.  # (n, rows, columns, …)"""
    matrices = gradients.flatten(2)
    rows, columns = matrices.shape[1:]
    parts = matrices.unflatten(1, (3, columns)).flatten(0, 1) if rows == 3 * columns else matrices  # queries, keys, values
    scaled: Tensor = orthogonal(parts) * (LIKE_ADAMW * max(parts.shape[1:]) ** 0.5)
    return scaled.reshape(gradients.shape)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values between about 0.7 and 1.2.  # (n, rows, columns)

    Five steps of an iteration by Newton and Schulz: products alone, in bfloat16 on a GPU.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x.bfloat16() if x.is_cuda else x.float()
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    out: Tensor = x.mT if tall else x
    return out.to(matrices.dtype)
