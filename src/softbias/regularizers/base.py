"""The base of every regularizer: an attention map in, one value per image out.

    value = reduce(l),    l = Σ_nm A_nm W_nm     A (P, P): the head-averaged map of patches, W: the regularizer's matrix

    reduction="sum"        l itself: the documents' formula
    reduction="log"        log(1 + max(l, 0)): the default, because the weight of .01 belongs to a logarithm
    reduction="released"   log(max(Σ_batch l, 1)): the documents' code, where every image of a batch has the same value

max(l, 0) is a floor: below it value and gradient are zero. So the share of images with a value other than zero (`active`) is
logged for every regularizer: a dead loss must be seen.

Prefix tokens (a class token) have no position: their rows and columns are dropped, and the rest is not renormalized.

Shapes: B images, H heads, N tokens of which P are patches.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from softbias.errors import SoftbiasError
from softbias.grid import Grid

REDUCTIONS = ("sum", "log", "released")
MAPS = ("plain", "minmax")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SoftbiasError(f"{name} must be one of {', '.join(choices)}, but {name}={value!r}")


def head_average(attention: Tensor, grid: Grid) -> Tensor:
    """The map between patches, averaged over the heads.  # (B, H, N, N) or (B, N, N) -> (B, P, P)"""
    averaged = attention.mean(1) if attention.ndim == 4 else attention
    if averaged.ndim != 3:
        raise SoftbiasError(f"attention must have shape (B, H, N, N) or (B, N, N), but has {tuple(attention.shape)}")
    return grid.patches_only(averaged).to(torch.promote_types(averaged.dtype, torch.float32))


def minmax(maps: Tensor) -> Tensor:
    """Every map stretched to [0, 1]; one without any range becomes zero.  # (B, P, P) -> (B, P, P)"""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    span = high - low
    return (maps - low) / span.where(span > 0, 1)  # with no range the numerator is zero


def reduce(totals: Tensor, reduction: str) -> Tensor:
    """From l to the value of each image.  # (B,) -> (B,)"""
    check_choice("reduction", reduction, REDUCTIONS)
    if reduction == "sum":
        return totals
    if reduction == "log":
        return totals.clamp_min(0).log1p()
    return totals.sum().clamp_min(1).log().expand_as(totals)


def default_maps(maps: str | None, reduction: str) -> str:
    """The given kind of maps; by default plain ones, and stretched ones for the reduction of the documents' code."""
    chosen = maps or ("minmax" if reduction == "released" else "plain")
    check_choice("maps", chosen, MAPS)
    return chosen


class Regularizer(nn.Module):
    """A loss on the attention map of one layer, with its options as keyword arguments.

    `forward(attention, images)` is the definition: one value per image, for any map. A subclass needs nothing else.

    It may also offer a form that needs no map, which `softbias.regularizers.attach` uses where the attention allows it. All
    forms must agree:

        pairs      W is one matrix for all images, and l = Σ A ⊙ W (`distance`)
        factors    W = left · rightᵀ with a few columns, so that l = Σ left ⊙ (A · right) (`style`)

    The page of a run shows W beside the attention maps, where `matrix` returns it. `matrix_name` and `matrix_legend` are its
    title and its explanation there.
    """

    pairs: Tensor | None
    """W over all tokens, zero for prefix tokens, where it is the same for all images.  # (N, N)"""
    matrix_name: ClassVar[str] = "penalty"
    matrix_legend: ClassVar[str] = "Penalty: blue is rewarded, red is penalized. Attention should stay in the blue."

    def __init__(self, grid: Grid, *, reduction: str = "log", maps: str | None = None) -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        self.grid, self.reduction, self.maps = grid, reduction, default_maps(maps, reduction)
        self.register_buffer("pairs", None, persistent=False)

    def forward(self, attention: Tensor, images: Tensor) -> Tensor:
        """# (B, H, N, N), (B, C, height, width) -> (B,)"""
        raise NotImplementedError

    def reduce(self, totals: Tensor) -> Tensor:
        return reduce(totals, self.reduction)

    @property
    def needs_map(self) -> bool:
        """Whether only the definition will do, as for maps that are stretched."""
        return self.maps != "plain"

    @property
    def has_factors(self) -> bool:
        return type(self).factors is not Regularizer.factors

    def factors(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """left and right, without gradient.  # (B, C, height, width) -> 2 × (B, N, columns)"""
        raise NotImplementedError

    def matrix(self, images: Tensor) -> Tensor | None:
        """W between patches (or regions), to be drawn; None where there is no such matrix.  # (B, C, …) -> (B, P, P)"""
        if self.pairs is not None:
            return self.grid.patches_only(self.pairs).expand(len(images), -1, -1)
        if self.has_factors:
            left, right = self.factors(images)
            return self.grid.patches_only(left @ right.mT)
        return None
