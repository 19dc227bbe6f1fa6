"""The similarity regularizer (Mormille et al.): a patch should look at patches of the same style.

    G_n = F_n F_nᵀ / (3 C²)                       the Gram matrix (3, 3) of patch n, F_n (3, C²) its pixels
    S_nm = MSE(G_n, G_m) / max, in [0, 1]         0: same style, 1: the two patches of this image that differ most
    l = Σ_nm A_nm (S_nm − ρ)                      ρ = 0 by default

The pixels are those the model receives (augmented, mixed, normalized), without gradient. Options:

    rho                     the tolerated difference: with ρ > 0 attention to similar patches is rewarded. Most images are then
                            below the floor of the logarithm, and get no gradient: watch `active`
    distance="released"     S = (Σ |G_n − G_m + ε|^0.1)^10, stretched to [0, 1] over the image, with ε = 1e-6, as the documents'
                            code has it, which uses ρ = .17. Because of ε, S is not quite symmetric
    region                  side of a square of patches whose styles are compared as one: both axes of the map are
                            average-pooled, and the Gram matrix is that of the whole region

Training needs no S. ‖G_n − G_m‖² = |g_n|² + |g_m|² − 2 g_n · g_m with g the six different entries of G (the off-diagonal ones
times √2), so S − ρ is a product of two matrices of eight columns,

    S_nm − ρ = [|g_n|² − ρ, 1, −2 g_n] · [1, |g_m|², g_m]        and    l = Σ left ⊙ (A · right)

and the right one rides along with the values through the fused attention. The image's mean is taken off g first, which
changes no S and keeps the differences exact in 16 bits.

Shapes: B images, H heads, N tokens of which P are patches, R regions, C channels of the image.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from softbias.bounds import Finite, ShortText, Side
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.regularizers.base import Regularizer, check_choice, default_maps, head_average, minmax, reduce

DISTANCES = ("mse", "released")
POWER, EPSILON = 0.1, 1e-6  # of the released distance
NOTHING = 1e-12  # of the largest G²: styles that differ by less differ by rounding


def region_grid(grid: Grid, region: int) -> Grid:
    """The grid of regions; they must tile the patches."""
    if region < 1 or grid.height % region or grid.width % region:
        raise SoftbiasError(
            f"region, the side of a square of them, must divide the {grid.height} × {grid.width} patches, but region={region}"
        )
    return Grid(grid.height // region, grid.width // region)


def patch_grams(images: Tensor, grid: Grid) -> Tensor:
    """G of every patch.  # (B, C, height, width) -> (B, P, C, C)"""
    channels, height, width = images.shape[1:]
    if height % grid.height or width % grid.width:
        raise SoftbiasError(f"images of {height} × {width} pixels cannot be cut into {grid.height} × {grid.width} patches")
    images = images.to(torch.promote_types(images.dtype, torch.float32))
    products = (images[:, :, None] * images[:, None]).flatten(1, 2)
    pooled = avg_pool2d(products, (height // grid.height, width // grid.width))  # divides by the pixels, C² in the documents
    grams: Tensor = pooled.flatten(2).mT.unflatten(-1, (channels, channels))
    return grams / channels


def upper(grams: Tensor) -> Tensor:
    """g: the upper triangle, off-diagonal entries times √2, so that distances stay.  # (B, P, C, C) -> (B, P, C (C + 1) / 2)"""
    parts = []
    for row in range(grams.shape[-1]):
        parts += [grams[..., row, row : row + 1], grams[..., row, row + 1 :] * 2**0.5]
    return torch.cat(parts[:-1], dim=-1)  # nothing is right of the last row's diagonal


def style_distances(grams: Tensor, distance: str = "mse") -> Tensor:
    """How much every two styles differ, before that is divided by its maximum.  # (B, R, C, C) -> (B, R, R)"""
    check_choice("distance", distance, DISTANCES)
    entries = grams.flatten(2)
    total = entries.new_zeros(len(entries), entries.shape[1], entries.shape[1])
    for column in entries.unbind(-1):  # one after the other, so that no (B, R, R, C²) is held
        gap = column[:, :, None] - column[:, None, :]
        total += gap.square() if distance == "mse" else (gap + EPSILON).abs().pow(POWER)
    return total / entries.shape[-1] if distance == "mse" else total.pow(1 / POWER)


@torch.no_grad()
def style_similarity(images: Tensor, grid: Grid, *, distance: str = "mse", region: int = 1) -> Tensor:
    """S of every pair of regions, from 0 (same style) to 1; zero for an image of one style.  # (B, C, …) -> (B, R, R)"""
    grams = patch_grams(images, region_grid(grid, region))
    found = style_distances(grams, distance)
    if distance == "released":  # the least is not zero
        found = found - found.amin((1, 2), keepdim=True)
    most = found.amax((1, 2), keepdim=True)
    spread = (grams - grams.mean(1, keepdim=True)).square().amax((1, 2, 3))
    same = (spread <= NOTHING * grams.square().amax((1, 2, 3)))[:, None, None]
    return torch.where(same, 0, found / most.where(~same, 1))


def pool_regions(averaged: Tensor, grid: Grid, region: int) -> Tensor:
    """Both axes of a map averaged over regions.  # (B, P, P) -> (B, R, R)"""
    if region == 1:
        return averaged
    coarse = region_grid(grid, region)
    split = (coarse.height, region, coarse.width, region)
    regions: Tensor = averaged.unflatten(2, split).unflatten(1, split)
    return regions.mean((2, 4, 6, 8)).flatten(3, 4).flatten(1, 2)


def style_loss(
    attention: Tensor,
    images: Tensor,
    grid: Grid,
    rho: float = 0.0,
    *,
    distance: str = "mse",
    region: int = 1,
    reduction: str = "log",
    maps: str | None = None,
) -> Tensor:
    """The value of each image.  # (B, H, N, N) or (B, N, N), (B, C, height, width) -> (B,)"""
    averaged = pool_regions(head_average(attention, grid), grid, region)
    averaged = minmax(averaged) if default_maps(maps, reduction) == "minmax" else averaged
    matrix = style_similarity(images, grid, distance=distance, region=region).to(averaged) - rho
    return reduce((averaged * matrix).sum((1, 2)), reduction)


class Style(Regularizer):
    matrix_name = "similarity"
    matrix_legend = "Similarity: bright where two patches differ in style. Attention should be dark there."

    def __init__(
        self,
        grid: Grid,
        *,
        rho: Finite = 0.0,
        distance: ShortText = "mse",
        region: Side = 1,
        reduction: ShortText = "log",
        maps: ShortText | None = None,
    ) -> None:
        super().__init__(grid, reduction=reduction, maps=maps)
        check_choice("distance", distance, DISTANCES)
        self.regions, self.rho, self.distance, self.region = region_grid(grid, region), rho, distance, region

    def forward(self, attention: Tensor, images: Tensor) -> Tensor:
        return style_loss(
            attention, images, self.grid, self.rho,
            distance=self.distance, region=self.region, reduction=self.reduction, maps=self.maps,
        )  # fmt: skip

    def matrix(self, images: Tensor) -> Tensor:
        return style_similarity(images, self.grid, distance=self.distance, region=self.region) - self.rho

    @property
    def needs_map(self) -> bool:
        return super().needs_map or self.distance != "mse"  # only a squared distance is such a product

    @torch.no_grad()
    def factors(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """left = [|g|² − ρ, 1, −2 g] and right = [1, |g|², g], with g scaled so that S is at most 1.  # 2 × (B, N, 8)"""
        with torch.autocast(images.device.type, enabled=False):
            grams = patch_grams(images, self.regions)
            g = upper(grams - grams.mean(1, keepdim=True))
            square = g.square().sum(-1, keepdim=True)  # (B, R, 1)
            gaps = torch.baddbmm(square.mT, g, g.mT, alpha=-2)  # |g_m|² − 2 g_n · g_m
            most = (gaps.amax(2, keepdim=True) + square).amax(1, keepdim=True)  # (B, 1, 1)
            differ = square.amax(1, keepdim=True) > NOTHING * grams.square().amax((1, 2, 3))[:, None, None]
            shrink = torch.where(differ, most, torch.inf).rsqrt()  # zero where all styles are one
            g, square = g * shrink, square * shrink.square()
            one = torch.ones_like(square)
            left, right = torch.cat([square - self.rho, one, -2 * g], -1), torch.cat([one, square, g], -1)
            return self.spread(left / self.region**4), self.spread(right)

    def spread(self, columns: Tensor) -> Tensor:
        """A region's columns for each of its patches, zeros for prefix tokens.  # (B, R, 8) -> (B, N, 8)

        Σ over patches of A ⊙ (what their regions get) is region⁴ times the sum over regions of the pooled map.
        """
        if self.region > 1:
            split = columns.unflatten(1, (self.regions.height, 1, self.regions.width, 1))
            columns = split.expand(-1, -1, self.region, -1, self.region, -1).flatten(1, 4)
        return pad(columns, (0, 0, self.grid.prefix, 0)) if self.grid.prefix else columns
