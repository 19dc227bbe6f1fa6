"""The formulas of attention rollout: how much of each patch reaches the output, through all layers (Abnar & Zuidema, 2020).

    A_l = heads of layer l joined by their mean, maximum or minimum; the smallest entries of each row discarded
    R   = Ã_L … Ã_1 Ã_0,     Ã_l = ρ I + (1 − ρ) A_l, rows sum to one       ρ = ½: as much through the residual branch

The identity is added before rows are normalized, as Abnar & Zuidema have it: where the maximum over heads sums to more than
one, the residual branch counts less. For the mean, the rows of A_l are normalized first. Where they are shares already, that is
the same; where they are not (below), the two branches keep their shares.

and, weighted by gradients (Chefer et al., 2021), for one class y:

    A_l = mean over heads of max(A ⊙ ∂y/∂A, 0),     R ← R + A_l R     nothing is normalized, and signs need no rule

Rows of a softmax are shares. The maps of Frobenius-normalized masks (IBiT) have signs, and their rows sum to any number.
`signed` decides how they are read: "absolute" (the strength of a patch, of either sign), "positive" (positive entries only),
"keep" (as they are) or "refuse". IBiT's own figure has `heads="max", signed="keep", normalize=False`: ½ I + ½ max over heads,
multiplied as it is. The gradient-weighted form is the better choice there.

Where a class token joins late (ConViT), R gains a row and a column of the identity. Without class token the output is the
average patch, and its relevance is the average relevance. `attribution` applies these formulas to models.

Shapes: B images, H heads, N tokens, P patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.models.inspect import unwrap

HEAD_REDUCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.mean(1),
    "max": lambda maps: maps.amax(1),
    "min": lambda maps: maps.amin(1),
}
SIGNED = ("absolute", "positive", "keep", "refuse")


def rollout(
    maps: Sequence[Tensor],
    *,
    heads: str = "mean",
    residual: float = 0.5,
    discard: float = 0.0,
    signed: str = "absolute",
    normalize: bool = True,
) -> Tensor:
    """How much each token at the input counts for each token at the output; rows sum to one.  # L × (B, H, N, N) -> (B, N, N)

    residual    ρ, the share of the residual branch
    discard     of every joined row this share of the entries, the smallest ones, counts as zero
    signed      what happens to maps with negative entries
    normalize   False: rows sum to what they sum to

    >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).expand(1, 1, 2, 2)
    >>> rollout([swap, swap], residual=0.0)[0].tolist()  # twice swapped is not at all
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if heads not in HEAD_REDUCTIONS:
        raise unknown_name("way to reduce heads", heads, HEAD_REDUCTIONS)
    if not 0 <= residual <= 1 or not 0 <= discard < 1:
        raise SoftbiasError(f"residual must lie in [0, 1] and discard in [0, 1), but {residual=}, {discard=}")
    if signed == "keep" and normalize:
        raise SoftbiasError('signed="keep" needs normalize=False: a row of both signs may sum to zero, and is no row of shares')
    check_maps(maps)
    rolled: Tensor | None = None
    for layer, attention in enumerate(maps):
        joined = drop_smallest(HEAD_REDUCTIONS[heads](without_sign(attention, signed, layer)), discard)
        eye = identity_like(joined)
        if normalize and heads == "mean":
            joined = as_shares(joined, eye)
        step = residual * eye + (1 - residual) * joined
        if normalize and heads != "mean":
            step = as_shares(step, eye)
        rolled = step if rolled is None else step @ grown(rolled, step.shape[-1])
    assert rolled is not None
    return rolled


def as_shares(joined: Tensor, eye: Tensor) -> Tensor:
    """Rows that sum to one; an empty row becomes that of the identity.  # (B, N, N)"""
    total = joined.sum(-1, keepdim=True)
    return torch.where(total > 0, joined / total.clamp_min(torch.finfo(total.dtype).tiny), eye)


def gradient_rollout(maps: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """R ← R + mean_h max(A ⊙ ∂y/∂A, 0) R from the identity; nothing is normalized.  # L × 2 × (B, H, N, N) -> (B, N, N)"""
    check_maps(maps)
    if [attention.shape for attention in maps] != [gradient.shape for gradient in gradients]:
        raise SoftbiasError("every map needs the gradient of its own shape")
    rolled: Tensor | None = None
    for attention, gradient in zip(maps, gradients, strict=True):
        weighted = (attention * gradient).clamp_min(0).mean(1)
        rolled = identity_like(weighted) if rolled is None else grown(rolled, weighted.shape[-1])
        rolled = rolled + weighted @ rolled
    assert rolled is not None
    return rolled


def check_maps(maps: Sequence[Tensor]) -> None:
    if not maps:
        raise SoftbiasError("rollout needs the map of at least one layer, but got none")
    for layer, attention in enumerate(maps):
        if attention.ndim != 4 or attention.shape[-1] != attention.shape[-2]:
            raise SoftbiasError(f"a map has shape (B, H, N, N), but that of layer {layer} has {tuple(attention.shape)}")


def without_sign(attention: Tensor, signed: str, layer: int) -> Tensor:
    if signed not in SIGNED:
        raise unknown_name("way to treat signed maps", signed, SIGNED)
    if signed == "refuse" and bool((attention < 0).any()):
        raise SoftbiasError(
            f"the map of layer {layer} has negative entries, so its rows are no shares; "
            'choose signed="absolute" or "positive", or the gradient-weighted rollout'
        )
    if signed == "keep":
        return attention
    return attention.clamp_min(0) if signed == "positive" else attention.abs()


def drop_smallest(joined: Tensor, share: float) -> Tensor:
    """The smallest entries of every row as zeros.  # (B, N, N) -> (B, N, N)"""
    count = int(share * joined.shape[-1])
    if not count:
        return joined
    return joined.scatter(-1, joined.topk(count, dim=-1, largest=False).indices, 0.0)


def identity_like(joined: Tensor) -> Tensor:
    return torch.eye(joined.shape[-1], dtype=joined.dtype, device=joined.device).expand_as(joined)


def grown(rolled: Tensor, tokens: int) -> Tensor:
    """R with prefix tokens that join here; they come first, with rows of the identity.  # (B, M, M) -> (B, N, N)"""
    new = tokens - rolled.shape[-1]
    if new < 0:
        raise SoftbiasError(
            f"a layer with {tokens} tokens follows one with {rolled.shape[-1]}: rollout lets tokens join, not leave"
        )
    if not new:
        return rolled
    whole = torch.eye(tokens, dtype=rolled.dtype, device=rolled.device).repeat(rolled.shape[0], 1, 1)
    whole[:, new:, new:] = rolled
    return whole


def relevance(rolled: Tensor, grid: Grid, rows: slice) -> Tensor:
    """The relevance of each patch for the output, as shares of all patches.  # (B, N, N) -> (B, height, width)

    rows   the tokens that the head reads: the class token, or all patches; see `output_rows`

    A patch of a rollout with signs counts by its size.
    """
    taken = rolled[:, rows, grid.prefix :].mean(1).abs()
    taken = taken / taken.sum(-1, keepdim=True).clamp_min(torch.finfo(taken.dtype).tiny)
    return taken.reshape(-1, grid.height, grid.width)


def output_rows(model: nn.Module, grid: Grid) -> slice:
    """Which tokens of the last layer the head reads: class token(s) or patches."""
    bare: Any = unwrap(model)
    pool = getattr(getattr(bare, "spec", None), "pool", None) or getattr(bare, "global_pool", "token")
    if pool == "token" and grid.prefix:
        return slice(0, 2 if getattr(bare, "head_dist", None) is not None else 1)  # DeiT's distillation token votes as well
    return slice(grid.prefix, None)


def effective_patches(shares: Tensor) -> Tensor:
    """exp(−Σ r log r) of relevance r as shares: P where all patches count alike, 1 where one does.  # (B, P) -> (B,)"""
    return (-(shares * shares.clamp_min(1e-30).log()).sum(-1)).exp()


def rank_correlation(one: Tensor, other: Tensor) -> Tensor:
    """Spearman's, without ties.  # 2 × (B, P) -> (B,)"""
    ranks = [part.argsort(-1).argsort(-1).double() for part in (one, other)]
    a, b = (part - part.mean(-1, keepdim=True) for part in ranks)
    correlation: Tensor = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(1e-30)
    return correlation
