"""Scenes made of a set's pictures, after the ETH study: four pictures in one, and a picture somewhere on a background.

Each scene is a function of (seed, number), so a part of them can be made again.

Shapes: pictures of S × S, scenes of 2S × 2S (combined) or 4S × 4S (background).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.errors import SoftbiasError

Images = NDArray[np.uint8]
Indices = NDArray[np.int64]
PARTS = 4
PLACES = ("random", "center", "corner")


@dataclass(frozen=True)
class Scenes:
    """images (n, H, W, 3); labels (n, 4) or (n,); sources: which pictures they were made of, of the same shape."""

    images: Images
    labels: Indices
    sources: Indices


def combined(images: Images, labels: Indices, numbers: Sequence[int], seed: int = 0) -> Scenes:
    """2 × 2 pictures of four distinct classes, drawn at random.  # (N, S, S, 3), (N,) -> (n, 2S, 2S, 3), (n, 4)"""
    by_class = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    if len(by_class) < PARTS:
        raise SoftbiasError(f"combined scenes show {PARTS} classes, but the pictures have only {len(by_class)}")
    sources = np.empty((len(numbers), PARTS), np.int64)
    for place, number in enumerate(numbers):
        chance = np.random.default_rng((seed, int(number), 1))
        classes = chance.permutation(len(by_class))[:PARTS]
        sources[place] = [chance.choice(by_class[name]) for name in classes]
    parts = images[sources]  # (n, 4, S, S, 3)
    rows = [np.concatenate([parts[:, left], parts[:, left + 1]], axis=2) for left in (0, 2)]
    return Scenes(np.concatenate(rows, axis=1), labels[sources], sources)


def on_background(
    images: Images,
    labels: Indices,
    backgrounds: Sequence[Images],
    numbers: Sequence[int],
    seed: int = 0,
    *,
    size: int | None = None,
    scale: float = 1.0,
    place: str = "random",
) -> Scenes:
    """A picture pasted on a random crop of a random background.  # (N, S, S, 3) -> (n, size, size, 3), (n,)

    size    of the scene in pixels; four times the picture's by default, as 32 px on 128 px in the document
    scale   of the pasted picture: 2 is twice as large as it is
    place   "random", "center", or "corner" (top left)
    """
    if place not in PLACES:
        raise SoftbiasError(f"place must be one of {', '.join(PLACES)}, but place={place!r}")
    side = max(images.shape[1:3])
    size = size or 4 * side
    height, width = (max(1, round(edge * scale)) for edge in images.shape[1:3])
    if max(height, width) > size:
        raise SoftbiasError(f"a picture of {side} px at scale {scale:g} does not fit on a scene of {size} px")
    small = [picture.shape[:2] for picture in backgrounds if min(picture.shape[:2]) < size]
    if small:
        raise SoftbiasError(f"scenes of {size} px need backgrounds of at least {size} px, but one has {small[0]}")
    scenes = np.empty((len(numbers), size, size, 3), np.uint8)
    sources = np.empty(len(numbers), np.int64)
    for at, number in enumerate(numbers):
        chance = np.random.default_rng((seed, int(number), 2))
        sources[at] = chance.integers(len(images))
        back = backgrounds[int(chance.integers(len(backgrounds)))]
        top, left = (chance.integers(edge - size + 1) for edge in back.shape[:2])
        scenes[at] = back[top : top + size, left : left + size]
        row, column = (int(chance.integers(size - edge + 1)) for edge in (height, width))
        if place != "random":
            row, column = ((size - height) // 2, (size - width) // 2) if place == "center" else (0, 0)
        scenes[at, row : row + height, column : column + width] = scaled(images[sources[at]], (height, width))
    return Scenes(scenes, labels[sources], sources)


def scaled(picture: Images, size: tuple[int, int]) -> Images:
    if picture.shape[:2] == size:
        return picture
    return np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BICUBIC))
