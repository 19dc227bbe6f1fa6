"""Learned-mask self-attention (LMSA), the layer of IBiT.

    S = Q Kᵀ / √D,   M = unroll(Aᵀ B)                         one low-rank mask per head, see `rolling`
    A = S ⊙ M / ‖S ⊙ M‖_F            norm="frobenius"         the paper: no softmax, signs kept, one scalar per map
    A = softmax(S + log M⁺)          norm="softmax"           rows stay probabilities: softmax(S) ⊙ M⁺, renormalized

The mask starts as a kernel around each patch and is learned with everything else. M⁺ is max(M, 1e-4) in value with the
gradient of M, so that a negative entry can recover and no row becomes empty.

We differ from the paper's code in the fit (truncated SVD, the exact optimum, at once; `fit="adam"` is its 10,000 steps) and
in the roll with a class token (`roll="released"` repeats its slip). The Frobenius norm is one number per image and head, so
the output is divided by it and not the map; on a GPU fused kernels do that, make the mask as well, and keep the map out of
memory. There M is a float32 sum rounded once, also under autocast, where `mask()` rounds the factors before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softbias.attention.base import Attention
from softbias.attention.fused import dot_product_attention
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels.masked import fits, masked_attention
from softbias.kernels.rolling import FITS, ROLLS, fitted_factors, kernel_map, unroll

RANK = 9  # of a mask, when nobody said another
SMALLEST = 1e-4  # of M⁺
EPSILON = 1e-8  # beside the Frobenius norm


class Masked(Attention):
    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        norm: str = "frobenius",
        rank: int = RANK,
        kernel: str = "exp_l2",
        fit: str = "svd",
        roll: str = "paper",
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias)
        for name, value, choices in (
            ("norm", norm, ("frobenius", "softmax")),
            ("fit", fit, FITS),
            ("roll", roll, ROLLS),
        ):
            if value not in choices:
                raise SoftbiasError(f"{name} must be one of {', '.join(choices)}, but {name}={value!r}")
        if not 1 <= rank <= len(grid):
            raise SoftbiasError(f"rank must lie between 1 and the number of tokens, {len(grid)}, but rank={rank}")
        kernel_map(Grid(1, 1), kernel)  # refuse an unknown kernel here, also where nothing is fitted (on "meta")
        self.norm, self.rank, self.kernel, self.fit, self.roll = norm, rank, kernel, fit, roll
        self.rows_sum_to_one = norm == "softmax"
        self.mask_a = nn.Parameter(torch.empty(heads, rank, len(grid)))
        self.mask_b = nn.Parameter(torch.empty(heads, rank, len(grid)))
        self.init_mask()

    @torch.no_grad()
    def init_mask(self) -> None:
        if not self.mask_a.is_meta:
            a, b = fitted_factors(self.grid, self.kernel, self.rank, self.fit, self.roll)
            self.mask_a.copy_(a)
            self.mask_b.copy_(b)

    def mask(self) -> Tensor:
        """M, as learned so far.  # (H, N, N)"""
        return unroll(self.mask_a.mT @ self.mask_b, self.grid.prefix, self.roll)

    def log_mask(self) -> Tensor:
        """log M⁺, with the gradient of M passing straight through the floor.  # (H, N, N)"""
        mask = self.mask()
        fixed = mask.detach()
        return (fixed.clamp_min(SMALLEST) + (mask - fixed)).log()  # adds an exact zero, so no rounding reaches log(0)

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        scores = self.scores(q, k)
        if self.norm == "softmax":
            return (scores + self.log_mask()).softmax(-1)
        masked = scores * self.mask()
        return masked / (frobenius(masked) + EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm == "softmax":
            return self.merge(self.attend(*self.project(x)))
        qkv = self.stacked(x)
        if fits(qkv):
            mixed = masked_attention(qkv, self.mask_a, self.mask_b, self.scale, self.grid.prefix, self.roll)
            return self.proj(mixed.flatten(2))
        return self.merge(self.attend(*self.apart(qkv)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.norm == "softmax":
            return dot_product_attention(q, k, v, self.log_mask().to(q.dtype), scale=self.scale)
        masked = self.scores(q, k) * self.mask().to(q.dtype)
        norm = (frobenius(masked) + EPSILON).to(v.dtype).clamp_min(torch.finfo(v.dtype).tiny)  # float16 has no 1e-8
        return (masked @ v) / norm


def frobenius(maps: Tensor) -> Tensor:
    """# (B, H, N, N) -> (B, H, 1, 1)"""
    return torch.linalg.vector_norm(maps, dim=(-2, -1), keepdim=True, dtype=torch.promote_types(maps.dtype, torch.float32))
