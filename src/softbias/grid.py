"""The positions of tokens: nothing else knows how a sequence of tokens is laid out on an image.

Shapes: N tokens = `prefix` tokens (a class token, say) followed by P = height × width patches, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from softbias.errors import SoftbiasError


@dataclass(frozen=True)
class Grid:
    """`prefix` tokens followed by height × width patches, row by row.

    >>> grid = Grid(2, 3, prefix=1)
    >>> len(grid), grid.patches
    (7, 6)
    >>> grid.offsets()[0, 5].tolist()  # from the top left patch to the bottom right one
    [1, 2]
    """

    height: int
    width: int
    prefix: int = 0

    def __post_init__(self) -> None:
        for name, least in (("height", 1), ("width", 1), ("prefix", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SoftbiasError(f"a grid's {name} must be a whole number of at least {least}, but {name}={value!r}")

    def __len__(self) -> int:
        return self.prefix + self.patches

    @property
    def patches(self) -> int:
        return self.height * self.width

    def with_prefix(self, prefix: int) -> Grid:
        return replace(self, prefix=prefix)

    def positions(self) -> Tensor:
        """(row, column) of every patch.  # (P, 2)"""
        rows, columns = torch.meshgrid(torch.arange(self.height), torch.arange(self.width), indexing="ij")
        return torch.stack([rows.flatten(), columns.flatten()], dim=-1)

    def offsets(self) -> Tensor:
        """δ: key position minus query position, as (row, column), for every pair of patches.  # (P, P, 2)"""
        positions = self.positions()
        return positions[None, :] - positions[:, None]

    def axis_offsets(self) -> tuple[Tensor, Tensor]:
        """δ along the rows and along the columns alone.  # (height, height), (width, width)"""
        rows, columns = torch.arange(self.height), torch.arange(self.width)
        return rows[None, :] - rows[:, None], columns[None, :] - columns[:, None]

    def distances(self, metric: str = "euclidean") -> Tensor:
        """‖δ‖ between every pair of patches, in patches; `metric` is "euclidean" or "manhattan".  # (P, P)"""
        offsets = self.offsets().to(torch.get_default_dtype())
        if metric == "euclidean":
            return offsets.square().sum(-1).sqrt()
        if metric == "manhattan":
            return offsets.abs().sum(-1)
        raise SoftbiasError(f'metric must be "euclidean" or "manhattan", but metric={metric!r}')

    def patches_only(self, attention: Tensor, *, renormalize: bool = False) -> Tensor:
        """An attention map without the prefix tokens' rows and columns.  # (…, N, N) -> (…, P, P)

        With `renormalize` the remaining rows sum to one again.
        """
        if attention.shape[-2:] != (len(self), len(self)):
            raise SoftbiasError(f"{self} has maps of {len(self)} × {len(self)}, but got shape {tuple(attention.shape)}")
        attention = attention[..., self.prefix :, self.prefix :]
        return attention / attention.sum(-1, keepdim=True) if renormalize else attention

    def interpolated(self, values: Tensor, to: Grid) -> Tensor:
        """Values of the patches for the patches of another grid, bilinear.  # (…, P) -> (…, P')"""
        image = values.reshape(-1, 1, self.height, self.width).float()
        resized = interpolate(image, (to.height, to.width), mode="bilinear", align_corners=False, antialias=True)
        return resized.reshape(*values.shape[:-1], to.patches).to(values.dtype)

    def as_image(self, tokens: Tensor) -> Tensor:
        """The patch tokens as an image.  # (B, N, C) -> (B, C, height, width)"""
        image: Tensor = tokens[:, self.prefix :].mT.unflatten(-1, (self.height, self.width))
        return image

    def as_tokens(self, image: Tensor) -> Tensor:
        """The inverse of `as_image` for a grid without prefix.  # (B, C, height, width) -> (B, P, C)"""
        return image.flatten(2).mT
