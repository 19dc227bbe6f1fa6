"""Backgrounds without objects: somebody's pictures, or textures made here from noise, stripes and tiles.

    backgrounds = load_backgrounds(folder)     # a folder of pictures; $SOFTBIAS_DATA/backgrounds; or else `textures()`

Shapes: T pictures of S × S.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias import environment
from softbias.errors import SoftbiasError

Picture = NDArray[np.uint8]
Values = NDArray[np.float64]

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
class Backgrounds:
    """pictures (T × (S, S, 3) uint8, sizes may differ), and where they came from."""

    pictures: tuple[Picture, ...]
    source: str


def load_backgrounds(folder: str | Path | None = None, *, smallest: int = 128) -> Backgrounds:
    """The pictures of a folder, else those in $SOFTBIAS_DATA/backgrounds, else our own textures.

    smallest   a picture must have so many pixels a side, so that a crop of that size exists
    """
    given = environment.variable("SOFTBIAS_DATA")
    place = Path(folder) if folder is not None else Path(given) / FOLDER if given else None
    if folder is not None and (place is None or not place.is_dir()):
        raise SoftbiasError(f"there is no folder of backgrounds {folder}")
    if place is None or not place.is_dir():
        return Backgrounds(tuple(textures(max(256, 2 * smallest))), "procedural textures")
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
    pictures = []
    for file in files:
        with Image.open(file) as image:
            pictures.append(np.asarray(image.convert("RGB")))
    small = [file.name for file, picture in zip(files, pictures, strict=True) if min(picture.shape[:2]) < smallest]
    if small:
        raise SoftbiasError(
            f"backgrounds need at least {smallest} × {smallest} pixels, but {', '.join(small[:3])} in {place} are smaller"
        )
    if not pictures:
        raise SoftbiasError(f"there are no pictures in the folder of backgrounds {place}")
    return Backgrounds(tuple(pictures), f"{len(pictures)} pictures of {place.name}/")


def textures(side: int = 256, seed: int = 0) -> list[Picture]:
    """24 textures: four kinds of pattern in six palettes, always the same for a seed."""
    chance = np.random.default_rng(seed)
    kinds = (clouds, grain, waves, tiles)
    return [colored(kind(side, chance), *ends, chance) for ends in PALETTES.values() for kind in kinds]


def noise(side: int, cells: int, chance: np.random.Generator) -> Values:
    """Smooth noise: random values on a coarse lattice, interpolated.  # (S, S) in [0, 1]"""
    lattice = Image.fromarray(chance.random((cells, cells)).astype(np.float32))
    return np.clip(np.asarray(lattice.resize((side, side), Image.Resampling.BICUBIC), np.float64), 0, 1)


def clouds(side: int, chance: np.random.Generator) -> Values:
    """Noise of many scales, the coarse ones strongest."""
    return sum((noise(side, 4 * 2**level, chance) * 0.5**level for level in range(5)), np.zeros((side, side)))


def grain(side: int, chance: np.random.Generator) -> Values:
    """Noise of many scales, the fine ones strongest: gravel, lawn."""
    fine = sum((noise(side, 16 * 2**level, chance) * 0.8**level for level in range(4)), np.zeros((side, side)))
    return fine + 0.4 * noise(side, 5, chance)


def waves(side: int, chance: np.random.Generator) -> Values:
    """Stripes bent by noise: water, wood."""
    angle = chance.uniform(0, np.pi)
    rows, columns = np.mgrid[:side, :side] / side
    across = rows * np.cos(angle) + columns * np.sin(angle) + 0.12 * noise(side, 6, chance)
    return 0.5 + 0.4 * np.sin(2 * np.pi * chance.uniform(8, 16) * across) + 0.3 * noise(side, 64, chance)


def tiles(side: int, chance: np.random.Generator) -> Values:
    """Bricks: every second row is moved by half a tile, and joints are dark."""
    height, width = int(chance.integers(12, 24)), int(chance.integers(20, 40))
    rows, columns = np.mgrid[:side, :side]
    columns = columns + (rows // height % 2) * (width // 2)
    shade = chance.random((side // height + 1, side // width + 2))[rows // height, columns // width]
    joint = (rows % height < 2) | (columns % width < 2)
    return np.where(joint, 0.0, 0.35 + 0.45 * shade + 0.3 * noise(side, 48, chance))


def colored(values: Values, dark: tuple[int, ...], light: tuple[int, ...], chance: np.random.Generator) -> Picture:
    """Values stretched to [0, 1] and mapped to the ramp between two colors, which varies a little.  # (S, S) -> (S, S, 3)"""
    low, high = np.quantile(values, (0.01, 0.99))
    share = np.clip((values - low) / (high - low), 0, 1)[..., None]
    ends = np.array([dark, light], np.float64) + chance.uniform(-15, 15, (2, 3))
    return np.clip(ends[0] * (1 - share) + ends[1] * share, 0, 255).astype(np.uint8)
