"""Patch shuffle: the picture is cut into k × k tiles, which change places at random.

Who still recognizes it reads parts, not shape. The permutation never leaves all tiles where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbias.classifier import Classifier
from softbias.errors import SoftbiasError
from softbias.probes.changes import compare
from softbias.probes.pictures import Source, sample
from softbias.probes.rows import Rows, stamp


def patch_shuffle(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    tiles: Sequence[int] = (2, 4, 8),
) -> Rows:
    """Rows per number of tiles a side. 1 + len(tiles) passes per picture."""
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    for count in tiles:
        if count < 2 or any(side % count for side in pictures.size):
            raise SoftbiasError(
                f"tiles must divide the picture's {pictures.size[0]} × {pictures.size[1]} pixels, but tiles={count}"
            )
    changes = {count: functools.partial(shuffled, tiles=count) for count in tiles}
    return stamp(classifier, "patch-shuffle", compare(classifier, pictures, changes, seed, "tiles"), data=pictures.name)


def shuffled(images: Tensor, chance: torch.Generator, *, tiles: int) -> Tensor:
    """# (B, 3, H, W)"""
    batch, channels, height, width = images.shape
    parts = images.unflatten(3, (tiles, width // tiles)).unflatten(2, (tiles, height // tiles))  # (B, 3, k, h, k, w)
    parts = parts.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, k², 3, h, w)
    count = tiles * tiles
    orders = torch.stack([torch.randperm(count, generator=chance) for _ in range(batch)])
    stay = (orders == torch.arange(count)).all(1)
    orders[stay] = orders[stay].roll(1, dims=1)
    parts = parts[torch.arange(batch)[:, None], orders].unflatten(1, (tiles, tiles))
    return parts.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)


def draw(rows: Rows, folder: Any) -> list[Any]:
    from softbias.probes.drawing import bars

    return bars(rows, folder, "patch_shuffle", "measure", "tiles", "share of pictures")
