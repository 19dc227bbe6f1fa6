"""Learned-mask self-attention (LMSA), the layer of IBiT.

    S = Q Kᵀ / √D,   M = unroll(Aᵀ B)                         one low-rank mask per head, see `rolling`
    A = S ⊙ M / ‖S ⊙ M‖_F            norm="frobenius"         the paper: no softmax, signs kept, one scalar per map
    A = softmax(S + log M⁺)          norm="softmax"           rows stay probabilities: softmax(S) ⊙ M⁺, renormalized

The mask starts as a kernel around each patch and is learned with everything else, or stays as it is (`learned=False`). M⁺ is
max(M, 1e-4) in value with the gradient of M, so that a negative entry can recover and no row becomes empty.

A mask scales the gradient of the scores as it scales the scores, ∂J/∂S = M ⊙ ∂J/∂(S ⊙ M). The paper calls this gradient biasing
and takes it for a reason why masks help. `biased_gradient=False` is the control: the same map, and ∂J/∂S = ∂J/∂(S ⊙ M).

We differ from the paper's code in the fit (truncated SVD, the exact optimum, at once; `fit="adam"` is its 10,000 steps) and
in the roll with a class token (`roll="released"` repeats its slip). The Frobenius norm is one number per image and head, so
the output is divided by it and not the map. On a GPU fused kernels do that, compute the mask as well, and keep no map in
memory. They sum M in float32 and round it once, also under autocast, where `mask()` rounds the factors first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from softbias.attention.base import Attention, BiasRow
from softbias.bounds import Count, ShortText
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels import dispatch
from softbias.kernels.rolling import FITS, ROLLS, fit_svd, fitted_factors, kernel_map, roll_back, unroll

RANK = 9
SMALLEST = 1e-4  # of M⁺
EPSILON = 1e-8  # added to the Frobenius norm
UNITS = {"moved": "relative", "kernel_fit": "cosine", "rank": "effective rank", "rank_1%": "rank", "negative": "share"}
UNITS |= {"reach": "patches", "mask": "weight"}


class Masked(Attention):
    formula: ClassVar[str] = 'S⊙M / ‖S⊙M‖_F, S = QKᵀ/√D; `norm="softmax"`: softmax(S + log M⁺), rows sum to one'
    bias_name: ClassVar[str] = "learned mask"
    bias_measures: ClassVar[tuple[str, ...]] = tuple(UNITS)

    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        norm: ShortText = "frobenius",
        rank: Count = RANK,
        kernel: ShortText = "exp_l2",
        fit: ShortText = "svd",
        roll: ShortText = "paper",
        learned: bool = True,
        biased_gradient: bool = True,
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
        if norm == "softmax" and not biased_gradient:
            raise SoftbiasError("biased_gradient=False needs norm='frobenius': under a softmax the mask scales no gradient")
        kernel_map(Grid(1, 1), kernel)  # refuse an unknown kernel here, also where nothing is fitted (on "meta")
        self.norm, self.rank, self.kernel, self.fit, self.roll = norm, rank, kernel, fit, roll
        self.biased_gradient = biased_gradient
        self.rows_sum_to_one = norm == "softmax"
        self.mask_a = nn.Parameter(torch.empty(heads, rank, len(grid)), requires_grad=learned)
        self.mask_b = nn.Parameter(torch.empty(heads, rank, len(grid)), requires_grad=learned)
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
        """log M⁺, with the gradient of M passing straight through the floor; in full precision, because bfloat16 has no number
        between 0.996 and 1.  # (H, N, N)"""
        kind = self.mask_a.device.type
        with nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False):
            mask = self.mask()
        fixed = mask.detach()
        return (fixed.clamp_min(SMALLEST) + (mask - fixed)).log()  # adds an exact zero, so no rounding reaches log(0)

    def bias_map(self) -> Tensor:
        return self.grid.patches_only(self.mask())

    def bias_rows(self) -> list[BiasRow]:
        """`mask_measures` of every head, and the mask of the query patch in the middle, a row for every patch."""
        grid, mask = self.grid, self.mask().detach().float().cpu()  # (H, N, N)
        rolled = (self.mask_a.mT @ self.mask_b).detach().float().cpu()
        measures = mask_measures(mask, rolled, self.initial_mask(), kernel_map(grid, self.kernel), grid)
        rows: list[BiasRow] = [
            {"measure": name, "unit": UNITS[name], "head": head, "value": value}
            for name, values in measures.items()
            for head, value in enumerate(values)
        ]
        query = grid.prefix + (grid.height // 2) * grid.width + grid.width // 2
        for head in range(self.heads):
            values = mask[head, query, grid.prefix :].tolist()
            rows += [
                {"measure": "mask", "unit": UNITS["mask"], "head": head, "row": row, "column": column, "value": value}
                for (row, column), value in zip(grid.positions().tolist(), values, strict=True)
            ]
        return rows

    def initial_mask(self) -> Tensor:
        """The mask from which every head started.  # (N, N)"""
        a, b = fitted_factors(self.grid, self.kernel, self.rank, self.fit, self.roll)
        return unroll(a.mT.float() @ b.float(), self.grid.prefix, self.roll)

    def score_mask(self) -> Tensor | None:
        factor = self.norm == "frobenius" and self.biased_gradient  # under a softmax the mask is a term of the scores
        return self.mask() if factor else None

    @classmethod
    def options_to_replace(cls, source: Attention, options: Mapping[str, Any]) -> dict[str, Any]:
        """In place of full attention a mask of ones under a softmax, so that the function stays the same."""
        possible = source.is_plain() and options.get("biased_gradient", True)  # without it there is no softmax
        same = {"norm": "softmax", "kernel": "ones"} if possible else {}
        return super().options_to_replace(source, same | dict(options))

    @classmethod
    def options_on(cls, grid: Grid, options: Mapping[str, Any]) -> dict[str, Any]:
        """A mask cannot have more ranks than the grid has tokens."""
        fewer = {"rank": len(grid)} if options.get("rank", RANK) > len(grid) else {}
        return {**options, **fewer}

    def resize_state(self, grid: Grid) -> dict[str, Tensor]:
        """The mask is interpolated over the queries and over the keys, rolled back and fitted again."""
        old, prefix, mask = self.grid, self.grid.prefix, self.mask()
        resized = mask.new_ones(len(mask), len(grid), len(grid))
        resized[:, :prefix, :prefix] = mask[:, :prefix, :prefix]
        resized[:, :prefix, prefix:] = old.interpolated(mask[:, :prefix, prefix:], grid)
        resized[:, prefix:, :prefix] = old.interpolated(mask[:, prefix:, :prefix].mT, grid).mT
        by_key = old.interpolated(mask[:, prefix:, prefix:], grid)
        resized[:, prefix:, prefix:] = old.interpolated(by_key.mT, grid).mT
        a, b = fit_svd(roll_back(resized, prefix, self.roll), min(self.rank, len(grid)))
        return super().resize_state(grid) | {"mask_a": a, "mask_b": b}

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        scores = self.scores(q, k)
        if self.norm == "softmax":
            return (scores + self.log_mask()).softmax(-1)
        masked = self.masked_scores(scores)
        return masked / (frobenius(masked) + EPSILON)

    def masked_scores(self, scores: Tensor) -> Tensor:
        """S ⊙ M; without a biased gradient, S has the gradient that it would have if M were one.  # (B, H, N, N)"""
        mask = self.mask().to(scores.dtype)
        if self.biased_gradient:
            return scores * mask
        fixed = scores.detach()
        return fixed * mask + (scores - fixed)  # adds an exact zero

    def fused(self, qkv: Tensor) -> Tensor | None:
        served = self.norm == "frobenius" and self.biased_gradient
        program = dispatch.masked_attention(qkv) if served else None
        if program is None:
            return None
        return program(qkv, self.mask_a, self.mask_b, self.scale, self.grid.prefix, self.roll)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.norm == "softmax":
            return dispatch.dot_product_attention(q, k, v, self.log_mask().to(q.dtype), scale=self.scale)
        return self.apply_scores(self.masked_scores(self.scores(q, k)), v)

    def apply_scores(self, scores: Tensor, v: Tensor) -> Tensor:
        if self.norm == "softmax":
            return super().apply_scores(scores, v)
        norm = (frobenius(scores) + EPSILON).to(v.dtype).clamp_min(torch.finfo(v.dtype).tiny)  # float16 has no 1e-8
        return (scores @ v) / norm


def frobenius(maps: Tensor) -> Tensor:
    """# (B, H, N, N) -> (B, H, 1, 1)"""
    dtype = torch.promote_types(maps.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(maps, dim=(-2, -1), keepdim=True, dtype=dtype)
    return norm


def mask_measures(mask: Tensor, rolled: Tensor, start: Tensor, kernel: Tensor, grid: Grid) -> dict[str, list[float]]:
    """One number per head for every measure.  # (H, N, N), (H, N, N), (N, N), (N, N)

    moved       ‖M − M₀‖ / ‖M₀‖                       M₀ is the initial mask
    kernel_fit  ⟨M, K⟩ / ‖M‖ ‖K‖                      cosine with the target kernel K itself, between patches
    rank        exp(−Σ p log p), p = s / Σ s          effective rank of the rolled W = Aᵀ B, s its singular values (≤ r)
    rank_1%     the number of s above 1 % of the largest
    negative    the share of entries below zero
    reach       Σ |M| ‖δ‖ / Σ |M|                     mean distance that the mask lets through, in patches
    """
    patches, target = grid.patches_only(mask), grid.patches_only(kernel)
    strengths = torch.linalg.svdvals(rolled.double())  # (H, N)
    parts = strengths / strengths.sum(-1, keepdim=True)
    weight = patches.abs()
    return {
        "moved": (torch.linalg.matrix_norm(mask - start) / torch.linalg.matrix_norm(start)).tolist(),
        "kernel_fit": torch.cosine_similarity(patches.flatten(1), target.flatten()[None], dim=1).tolist(),
        "rank": torch.exp(-(parts * parts.clamp_min(1e-30).log()).sum(-1)).tolist(),
        "rank_1%": (strengths > 0.01 * strengths[:, :1]).sum(-1).tolist(),
        "negative": (patches < 0).float().mean((-2, -1)).tolist(),
        "reach": ((weight * grid.distances()).sum((-2, -1)) / weight.sum((-2, -1)).clamp_min(1e-12)).tolist(),
    }
