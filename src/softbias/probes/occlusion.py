"""Occlusion: a share of the picture's tiles, chosen at random, is painted over with the mean color of all pictures."""

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


def occlusion(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    shares: Sequence[float] = (0.25, 0.5, 0.75),
    tiles: int = 8,
) -> Rows:
    """Rows per share that is hidden. 1 + len(shares) passes per picture."""
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    if any(side % tiles for side in pictures.size) or not all(0 <= share <= 1 for share in shares):
        raise SoftbiasError(f"tiles must divide {pictures.size} and shares lie in [0, 1], but {tiles=}, shares={tuple(shares)}")
    color = pictures.images.float().mean((0, 2, 3)) / 255
    changes = {share: functools.partial(hidden, share=share, tiles=tiles, color=color) for share in shares}
    rows = compare(classifier, pictures, changes, seed, "hidden")
    return stamp(classifier, "occlusion", rows, tiles=tiles, data=pictures.name)


def hidden(images: Tensor, chance: torch.Generator, *, share: float, tiles: int, color: Tensor) -> Tensor:
    """# (B, 3, H, W)"""
    count = round(share * tiles * tiles)
    order = torch.rand(len(images), tiles * tiles, generator=chance).argsort(1)
    cover = torch.zeros(len(images), tiles * tiles)
    cover.scatter_(1, order[:, :count], 1.0)
    height, width = images.shape[-2:]
    cover = cover.view(-1, 1, tiles, tiles).repeat_interleave(height // tiles, 2).repeat_interleave(width // tiles, 3)
    return images * (1 - cover) + color[:, None, None] * cover


def draw(rows: Rows, folder: Any) -> list[Any]:
    from softbias.probes.drawing import bars

    return bars(rows, folder, "occlusion", "measure", "hidden", "share of pictures")
