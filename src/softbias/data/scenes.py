"""Scenes made of a set's pictures, after the ETH study: four pictures in one, and a picture somewhere on a background.

    backgrounds = load_backgrounds(folder)     # a folder of pictures; $SOFTBIAS_DATA/backgrounds; or else `textures()`
    scenes = on_background(images, labels, backgrounds.images, range(100))

Each scene is a function of (seed, number), so a part of them can be made again. Our own backgrounds are textures made from
noise, stripes and tiles.

Shapes: pictures of S × S, scenes of 2S × 2S (combined) or 4S × 4S (background).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias import environment
from softbias.data.decode import load
from softbias.errors import SoftbiasError, unknown_name

Images = NDArray[np.uint8]
Indices = NDArray[np.int64]
Values = NDArray[np.float64]
PARTS = 4
POSITIONS = ("random", "center", "corner")
FOLDER = "backgrounds"  # below $SOFTBIAS_DATA
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
PALETTES = {  # two ends of a color ramp
    "grass": ((40, 70, 20), (150, 170, 70)),
    "sand": ((170, 140, 90), (235, 215, 170)),
    "water": ((15, 60, 100), (120, 180, 210)),
    "stone": ((70, 70, 75), (170, 168, 160)),
    "wood": ((80, 45, 20), (190, 140, 90)),
    "sky": ((80, 130, 200), (230, 240, 250)),
}


@dataclass(frozen=True)
class Scenes:
    """images (n, H, W, 3); labels (n, 4) or (n,); sources: indices of the pictures in them, of the same shape."""

    images: Images
    labels: Indices
    sources: Indices


def combined(images: Images, labels: Indices, numbers: Sequence[int], seed: int = 0) -> Scenes:
    """2 × 2 pictures of four distinct classes, drawn at random.  # (N, S, S, 3), (N,) -> (n, 2S, 2S, 3), (n, 4)"""
    by_class = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    if len(by_class) < PARTS:
        raise SoftbiasError(f"combined scenes show {PARTS} classes, but the pictures have only {len(by_class)}")
    sources = np.empty((len(numbers), PARTS), np.int64)
    for index, number in enumerate(numbers):
        rng = np.random.default_rng((seed, int(number), 1))
        classes = rng.permutation(len(by_class))[:PARTS]
        sources[index] = [rng.choice(by_class[name]) for name in classes]
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
    position: str = "random",
) -> Scenes:
    """A picture pasted on a random crop of a random background.  # (N, S, S, 3) -> (n, size, size, 3), (n,)

    size       of the scene in pixels; four times the picture's by default, as 32 px on 128 px in the study
    scale      of the pasted picture: 2 makes it twice as large
    position   "random", "center", or "corner" (top left)
    """
    if position not in POSITIONS:
        raise unknown_name("position", position, POSITIONS)
    side = max(images.shape[1:3])
    size = size or 4 * side
    height, width = (max(1, round(edge * scale)) for edge in images.shape[1:3])
    if max(height, width) > size:
        raise SoftbiasError(f"a picture of {side} px at scale {scale:g} does not fit on a scene of {size} px")
    small = [background.shape[:2] for background in backgrounds if min(background.shape[:2]) < size]
    if small:
        raise SoftbiasError(f"scenes of {size} px need backgrounds of at least {size} px, but one has {small[0]}")
    scenes = np.empty((len(numbers), size, size, 3), np.uint8)
    sources = np.empty(len(numbers), np.int64)
    for index, number in enumerate(numbers):
        rng = np.random.default_rng((seed, int(number), 2))
        sources[index] = rng.integers(len(images))
        back = backgrounds[int(rng.integers(len(backgrounds)))]
        top, left = (rng.integers(edge - size + 1) for edge in back.shape[:2])
        scenes[index] = back[top : top + size, left : left + size]
        row, column = (int(rng.integers(size - edge + 1)) for edge in (height, width))
        if position != "random":
            row, column = ((size - height) // 2, (size - width) // 2) if position == "center" else (0, 0)
        scenes[index, row : row + height, column : column + width] = scaled(images[sources[index]], (height, width))
    return Scenes(scenes, labels[sources], sources)


def scaled(image: Images, size: tuple[int, int]) -> Images:
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BICUBIC))


@dataclass(frozen=True)
class Backgrounds:
    """images (S, S, 3) uint8, of sizes that may differ, and their origin in words."""

    images: tuple[Images, ...]
    source: str


def load_backgrounds(folder: str | Path | None = None, *, smallest: int = 128) -> Backgrounds:
    """The pictures of a folder, else those in $SOFTBIAS_DATA/backgrounds, else our own textures.

    smallest   pixels that each side of a picture must have, so that a crop of that size exists
    """
    given = environment.variable("SOFTBIAS_DATA")
    path = Path(folder) if folder is not None else Path(given) / FOLDER if given else None
    if folder is not None and (path is None or not path.is_dir()):
        raise SoftbiasError(f"there is no folder of backgrounds {folder}")
    if path is None or not path.is_dir():
        return Backgrounds(tuple(textures(max(256, 2 * smallest))), "procedural textures")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    images = [np.asarray(load(file).image) for file in files]
    small = [file.name for file, image in zip(files, images, strict=True) if min(image.shape[:2]) < smallest]
    if small:
        raise SoftbiasError(
            f"backgrounds need at least {smallest} × {smallest} pixels, but {', '.join(small[:3])} in {path} are smaller"
        )
    if not images:
        raise SoftbiasError(f"there are no pictures in the folder of backgrounds {path}")
    return Backgrounds(tuple(images), f"{len(images)} pictures of {path.name}/")


def textures(side: int = 256, seed: int = 0) -> list[Images]:
    """24 textures: four kinds of pattern in six palettes, always the same for a seed."""
    rng = np.random.default_rng(seed)
    kinds = (clouds, grain, waves, tiles)
    return [colored(kind(side, rng), *ends, rng) for ends in PALETTES.values() for kind in kinds]


def noise(side: int, cells: int, rng: np.random.Generator) -> Values:
    """Smooth noise: random values on a coarse lattice, interpolated.  # (S, S) in [0, 1]"""
    lattice = Image.fromarray(rng.random((cells, cells)).astype(np.float32))
    return np.clip(np.asarray(lattice.resize((side, side), Image.Resampling.BICUBIC), np.float64), 0, 1)


def clouds(side: int, rng: np.random.Generator) -> Values:
    """Noise of many scales, the coarse ones strongest."""
    return sum((noise(side, 4 * 2**level, rng) * 0.5**level for level in range(5)), np.zeros((side, side)))


def grain(side: int, rng: np.random.Generator) -> Values:
    """Noise of many scales, the fine ones strongest: gravel, lawn."""
    fine = sum((noise(side, 16 * 2**level, rng) * 0.8**level for level in range(4)), np.zeros((side, side)))
    return fine + 0.4 * noise(side, 5, rng)


def waves(side: int, rng: np.random.Generator) -> Values:
    """Stripes bent by noise: water, wood."""
    angle = rng.uniform(0, np.pi)
    rows, columns = np.mgrid[:side, :side] / side
    across: Values = rows * np.cos(angle) + columns * np.sin(angle) + 0.12 * noise(side, 6, rng)
    stripes: Values = np.sin(2 * np.pi * rng.uniform(8, 16) * across)
    return 0.5 + 0.4 * stripes + 0.3 * noise(side, 64, rng)


def tiles(side: int, rng: np.random.Generator) -> Values:
    """Bricks: every second row is moved by half a tile, and joints are dark."""
    height, width = int(rng.integers(12, 24)), int(rng.integers(20, 40))
    rows, columns = np.mgrid[:side, :side]
    columns = columns + (rows // height % 2) * (width // 2)
    shade = rng.random((side // height + 1, side // width + 2))[rows // height, columns // width]
    joint = (rows % height < 2) | (columns % width < 2)
    return np.where(joint, 0.0, 0.35 + 0.45 * shade + 0.3 * noise(side, 48, rng))


def colored(values: Values, dark: tuple[int, ...], light: tuple[int, ...], rng: np.random.Generator) -> Images:
    """Values stretched to [0, 1] and mapped to the ramp between two colors, which varies a little.  # (S, S) -> (S, S, 3)"""
    low, high = np.quantile(values, (0.01, 0.99))
    share = np.clip((values - low) / (high - low), 0, 1)[..., None]
    ends = np.array([dark, light], np.float64) + rng.uniform(-15, 15, (2, 3))
    image: Images = np.clip(ends[0] * (1 - share) + ends[1] * share, 0, 255).astype(np.uint8)
    return image
