"""The distance regularizer (Mormille et al.): a patch should look at near patches.

    l = Σ_nm A_nm P_nm,    P = a / √(a² + β),    a = D − rowmax(D) / α

D is the Manhattan distance between patches, A the head-averaged map. P is about −1 near the query and about +1 far from it:
near patches are rewarded, far ones punished, with a sharp turn at a quarter of the largest distance (α = 4, β = .5). An older
setting is β = 500 with a weight of .001, a gentle slope. P is not symmetric: a corner sees further than the center.

    penalty="curve"             the formula above
    penalty="linear"            D / max(D)
    penalty="released-linear"   (D + .1) / (rowmax(D) + 1), as the documents' code has it

Training needs l and its gradient, not the map. `attention_penalty` computes both from queries and keys and keeps only a number
or two per row in between:

    r_n = Σ_m A_nm P_nm,   l = Σ_n r_n,   ∂l/∂S_nm = A_nm (P_nm − r_n)      S the scores, A = softmax(S)

At β = .5 P has full rank, so it is not factorized.

Shapes: B images, H heads, N tokens of which P are patches, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from softbias.bounds import Finite, ShortText
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels import dispatch
from softbias.regularizers.base import Regularizer, check_choice, default_maps, head_average, minmax, reduce

PENALTIES = ("curve", "linear", "released-linear")
CHUNK = 2**26  # entries of a map that are held at once


def distance_penalty(grid: Grid, alpha: float = 4.0, beta: float = 0.5, *, penalty: str = "curve") -> Tensor:
    """P between the patches of a grid.  # (P, P)

    >>> round(float(distance_penalty(Grid(8, 8)).mean(1).sum()), 3)  # Σ A ⊙ P of uniform attention
    38.806
    """
    check_choice("penalty", penalty, PENALTIES)
    if alpha <= 0 or beta < 0:
        raise SoftbiasError(f"alpha must be positive and beta at least 0, but alpha={alpha} and beta={beta}")
    distances = grid.distances("manhattan").double()
    furthest = distances.amax(1, keepdim=True)
    if penalty == "linear":
        found = distances / distances.max().clamp_min(1)
    elif penalty == "released-linear":
        found = (distances + 0.1) / (furthest + 1)
    else:
        beyond = distances - furthest / alpha
        found = beyond / (beyond.square() + beta).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    return found.to(torch.get_default_dtype())


def distance_loss(
    attention: Tensor,
    grid: Grid,
    alpha: float = 4.0,
    beta: float = 0.5,
    *,
    penalty: str = "curve",
    reduction: str = "log",
    maps: str | None = None,
) -> Tensor:
    """The value of each image; see the module and `base` for the options.  # (B, H, N, N) or (B, N, N) -> (B,)"""
    averaged = head_average(attention, grid)
    averaged = minmax(averaged) if default_maps(maps, reduction) == "minmax" else averaged
    matrix = distance_penalty(grid, alpha, beta, penalty=penalty).to(averaged)
    return reduce((averaged * matrix).sum((1, 2)), reduction)


class Distance(Regularizer):
    pairs: Tensor

    def __init__(
        self,
        grid: Grid,
        *,
        alpha: Finite = 4.0,
        beta: Finite = 0.5,
        penalty: ShortText = "curve",
        reduction: ShortText = "log",
        maps: ShortText | None = None,
    ) -> None:
        super().__init__(grid, reduction=reduction, maps=maps)
        between = distance_penalty(grid, alpha, beta, penalty=penalty)
        self.pairs = pad(between, (grid.prefix, 0, grid.prefix, 0))

    def forward(self, attention: Tensor, images: Tensor) -> Tensor:
        averaged = head_average(attention, self.grid)
        averaged = minmax(averaged) if self.maps == "minmax" else averaged
        return self.reduce((averaged * self.grid.patches_only(self.pairs).to(averaged)).sum((1, 2)))


def attention_penalty(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
    """Σ_nm softmax(scale · Q Kᵀ)_nm penalty_nm, averaged over the heads, without keeping a map.  # 2 × (B, H, N, D) -> (B,)

    penalty (N, N) gets no gradient. On a GPU this is one fused kernel each way (`softbias.kernels.distance`), elsewhere the
    same in PyTorch.
    """
    program = dispatch.attention_penalty(q)
    if program is not None:
        return program(q, k, penalty, scale)
    return penalty_by_head(q, k, penalty, scale).mean(1)


def penalty_by_head(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
    """The same for each head.  # 2 × (B, H, N, D) -> (B, H)"""
    found: Tensor = PenaltyByHead.apply(q, k, penalty, scale)
    return found


class PenaltyByHead(torch.autograd.Function):
    """Saves queries, keys and two numbers per row; the map is computed again for the gradient, a few images at a time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
        sums, rows = [], []
        with torch.autocast(q.device.type, enabled=False):
            for part_q, part_k in chunks(q, k):
                scores = raw_scores(part_q, part_k, scale)
                normalizer = scores.logsumexp(-1, keepdim=True)
                sums.append(normalizer)
                rows.append(((scores - normalizer).exp() * penalty.to(scores)).sum(-1, keepdim=True))
        each = torch.cat(rows)  # (B, H, N, 1)
        ctx.save_for_backward(q, k, penalty, torch.cat(sums), each)
        ctx.scale = scale
        return each.sum((2, 3))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, k, penalty, sums, each = ctx.saved_tensors
        for_q, for_k = [], []
        with torch.autocast(q.device.type, enabled=False):
            for part_q, part_k, normalizer, row, gradient in chunks(q, k, sums, each, gradients[0][:, :, None, None]):
                attention = (raw_scores(part_q, part_k, ctx.scale) - normalizer).exp()
                change = attention * (penalty.to(attention) - row) * (ctx.scale * gradient)  # of the scores
                for_q.append(change @ part_k.to(attention))
                for_k.append(change.mT @ part_q.to(attention))
        return torch.cat(for_q).to(q.dtype), torch.cat(for_k).to(k.dtype), None, None


def raw_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """scale · Q Kᵀ in at least float32.  # (b, H, N, N)"""
    exact = torch.promote_types(q.dtype, torch.float32)
    return (q.to(exact) * scale) @ k.to(exact).mT


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """As many images at a time as the budget of map entries allows."""
    batch, heads, tokens = tensors[0].shape[:3]
    size = max(1, CHUNK // (heads * tokens * tokens))
    return zip(*(tensor.split(size) for tensor in tensors), strict=True) if batch > size else iter([tensors])
