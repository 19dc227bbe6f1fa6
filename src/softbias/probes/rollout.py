"""Attention rollout: how much of each patch reaches the output, through all layers (Abnar & Zuidema, 2020).

    A_l = heads of layer l joined by their mean, maximum or minimum; the smallest entries of each row discarded; rows sum to one
    R   = Ã_L … Ã_1 Ã_0,     Ã_l = ρ I + (1 − ρ) A_l                  ρ = ½: the residual branch carries as much as attention

and, weighted by gradients (Chefer et al., 2021), for one class y:

    A_l = mean over heads of max(A ⊙ ∂y/∂A, 0),     R ← R + A_l R     nothing is normalized, and signs need no rule

What a map's values mean decides what may be rolled out. Rows of a softmax are shares. The maps of Frobenius-normalized masks
(IBiT) have signs and rows that sum to anything: `signed` says what becomes of them, "absolute" (how strongly a patch is used,
whichever way), "positive" (what is added only), or "refuse". The gradient-weighted form is the better choice there.

A class token that joins late (ConViT) has seen nothing before: R gains a row and a column of the identity. Without class token
the output is the average patch, and so is its relevance.

Shapes: B images, H heads, N tokens, P patches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbias.attention import NoAttentionMapError
from softbias.classifier import Classifier
from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.models.inspect import Inspection, attention_sites, describe, unwrap
from softbias.probes.pictures import Source, sample
from softbias.probes.rows import Rows, mean_of, stamp
from softbias.probes.seeing import Seen, see

JOINS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.mean(1),
    "max": lambda maps: maps.amax(1),
    "min": lambda maps: maps.amin(1),
}
SIGNED = ("absolute", "positive", "refuse")


def rollout(
    maps: Sequence[Tensor],
    *,
    heads: str = "mean",
    residual: float = 0.5,
    discard: float = 0.0,
    signed: str = "absolute",
) -> Tensor:
    """How much each token at the input counts for each token at the output; rows sum to one.  # L × (B, H, N, N) -> (B, N, N)

    residual   ρ, the share of the residual branch
    discard    of every joined row this share of the entries, the smallest ones, counts as zero
    signed     what happens to maps with negative entries

    >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).expand(1, 1, 2, 2)
    >>> rollout([swap, swap], residual=0.0)[0].tolist()  # twice swapped is not at all
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if heads not in JOINS:
        raise unknown_name("way to join heads", heads, JOINS)
    if not 0 <= residual <= 1 or not 0 <= discard < 1:
        raise SoftbiasError(f"residual must lie in [0, 1] and discard in [0, 1), but {residual=}, {discard=}")
    check_maps(maps)
    rolled: Tensor | None = None
    for layer, attention in enumerate(maps):
        joined = drop_smallest(JOINS[heads](without_sign(attention, signed, layer)), discard)
        eye = identity_like(joined)
        total = joined.sum(-1, keepdim=True)
        shares = torch.where(
            total > 0, joined / total.clamp_min(torch.finfo(total.dtype).tiny), eye
        )  # an empty row keeps itself
        step = residual * eye + (1 - residual) * shares
        rolled = step if rolled is None else step @ grown(rolled, step.shape[-1])
    assert rolled is not None
    return rolled


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
    """Prefix tokens that join here come first, and so far are themselves alone.  # (B, M, M) -> (B, N, N)"""
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
    """What the output takes from each patch, as shares of what it takes from all patches.  # (B, N, N) -> (B, height, width)

    rows   the tokens that the head reads: the class token, or all patches; see `output_rows`
    """
    taken = rolled[:, rows, grid.prefix :].mean(1)
    taken = taken / taken.sum(-1, keepdim=True).clamp_min(torch.finfo(taken.dtype).tiny)
    return taken.unflatten(-1, (grid.height, grid.width))


def output_rows(model: nn.Module, grid: Grid) -> slice:
    """Which tokens of the last layer the head reads: class token(s) or patches."""
    bare: Any = unwrap(model)
    pool = getattr(getattr(bare, "spec", None), "pool", None) or getattr(bare, "global_pool", "token")
    if pool == "token" and grid.prefix:
        return slice(0, 2 if getattr(bare, "head_dist", None) is not None else 1)  # DeiT's distillation token votes as well
    return slice(grid.prefix, None)


# Models


def complete(model: nn.Module, seen: Inspection, images: Tensor, missing: str) -> list[int]:
    """The layers to roll out; those without a map are refused, or passed over as if each patch stayed where it is."""
    if missing not in ("refuse", "identity"):
        raise unknown_name("way to treat layers without a map", missing, ("refuse", "identity"))
    if not seen.maps:
        raise NoAttentionMapError(f"{describe(unwrap(model))} has no attention maps, so there is nothing to roll out")
    depth = len(attention_sites(model, (images.shape[-2], images.shape[-1])))
    without = sorted(set(range(depth)) - set(seen.maps))
    if without and missing == "refuse":
        raise NoAttentionMapError(
            f"layers {without} of {describe(unwrap(model))} mix patches without attention, so a rollout would leave out what "
            'they do; missing="identity" rolls out the others'
        )
    return sorted(seen.maps)


def attention_rollout(model: nn.Module, images: Tensor, *, missing: str = "refuse", **options: Any) -> Tensor:
    """Relevance of every patch by `rollout`, for any model that `inspect` reads; shares.  # (B, height, width)"""
    seen = see(model, images, gradients=False)
    layers = complete(model, seen, images, missing)
    grid = seen.grid[layers[-1]]
    return relevance(rollout([seen.maps[layer] for layer in layers], **options), grid, output_rows(model, grid))


def attention_gradient_rollout(
    model: nn.Module, images: Tensor, target: Tensor | None = None, *, missing: str = "refuse"
) -> Tensor:
    """Relevance of every patch for a class (default: the predicted one) by `gradient_rollout`.  # (B, height, width)"""
    seen = see(model, images, target)
    return relevance_by_gradient(model, seen, complete(model, seen, images, missing))


def relevance_by_gradient(model: nn.Module, seen: Seen, layers: Sequence[int]) -> Tensor:
    assert seen.gradients is not None
    grid = seen.grid[layers[-1]]
    rolled = gradient_rollout([seen.maps[layer] for layer in layers], [seen.gradients[layer] for layer in layers])
    rows = output_rows(model, grid)
    if rows.stop is None:  # the patches themselves: what they were before any attention says nothing about a decision
        rolled = rolled - identity_like(rolled)
    return relevance(rolled, grid, rows)


# The probe

UNITS = {"effective_patches": "patches", "agreement": "rank correlation with gradient-rollout"}


def rollout_rows(model: nn.Module | Classifier, data: Source, *, n: int = 1000, seed: int = 0, split: str = "test") -> Rows:
    """Rows per way to roll out: how many patches count, and how far it agrees with the gradient-weighted one. 2 passes.

    effective_patches = exp(−Σ r log r), r the relevance as shares: P where all patches count alike, 1 where one does
    """
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for images, _ in pictures.batches(classifier.device):
        x = classifier.normalized(images)
        seen = see(classifier.model, x)
        layers = complete(classifier.model, seen, x, "identity")
        grid, maps = seen.grid[layers[-1]], [seen.maps[layer] for layer in layers]
        rows = output_rows(classifier.model, grid)
        weighted = relevance_by_gradient(classifier.model, seen, layers).flatten(1)
        shares = {f"rollout, {heads} of heads": relevance(rollout(maps, heads=heads), grid, rows).flatten(1) for heads in JOINS}
        for name, share in {**shares, "gradient-rollout": weighted}.items():
            found[name, "effective_patches"].append(effective_patches(share).cpu())
            if name != "gradient-rollout":
                found[name, "agreement"].append(rank_correlation(share, weighted).cpu())
    made = [
        {"measure": measure, "unit": UNITS[measure], "method": name, **mean_of(torch.cat(parts))}
        for (name, measure), parts in found.items()
    ]
    return stamp(classifier, "rollout", made, data=pictures.name)


def effective_patches(shares: Tensor) -> Tensor:
    """# (B, P) -> (B,)"""
    return (-(shares * shares.clamp_min(1e-30).log()).sum(-1)).exp()


def rank_correlation(one: Tensor, other: Tensor) -> Tensor:
    """Spearman's, without ties.  # 2 × (B, P) -> (B,)"""
    ranks = [part.argsort(-1).argsort(-1).double() for part in (one, other)]
    centered = [part - part.mean(-1, keepdim=True) for part in ranks]
    return (centered[0] * centered[1]).sum(-1) / (centered[0].norm(dim=-1) * centered[1].norm(dim=-1)).clamp_min(1e-30)


def draw(rows: Rows, folder: Any) -> list[Any]:
    """How many patches count, and how far plain rollout agrees with the gradient-weighted one, model beside model."""
    from softbias.probes.drawing import HUES, latest, panels, save

    figure, axes = panels(2, side=4.2, height=2.8)
    for one, (measure, title) in zip(
        axes, {"effective_patches": "patches that count", "agreement": "agreement (rank)"}.items(), strict=True
    ):
        methods = list(dict.fromkeys(row["method"] for row in rows if row["measure"] == measure))
        for number, (name, of_model) in enumerate(latest(rows).items()):
            found = [row for row in of_model if row["measure"] == measure]
            places = [len(methods) - methods.index(row["method"]) - 0.12 * number for row in found]
            spread = [[row["value"] - row["low"] for row in found], [row["high"] - row["value"] for row in found]]
            values = [row["value"] for row in found]
            one.errorbar(values, places, xerr=spread, fmt="o", ms=4, capsize=2, color=HUES[number % len(HUES)], label=name)
        one.set_yticks([len(methods) - place for place in range(len(methods))], methods, fontsize=8)
        one.set_title(title, fontsize=9)
    axes[0].legend(fontsize=7, frameon=False)
    return [save(figure, folder, "rollout")]
