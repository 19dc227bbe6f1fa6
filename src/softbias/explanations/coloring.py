"""Maps as colors: dark to light for shares, and blue for what is negative; a heat over a picture.

The ramp is matplotlib's magma (CC0), by nine of its colors; the page of the app has the same in JavaScript.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

POSITIVE = ("000004", "1c1044", "4f127b", "812581", "b5367a", "e55064", "fb8761", "fec287", "fcfdbf")
NEGATIVE = ("000004", "08204a", "0d3b7d", "1259ad", "2278d4", "4d9aec", "84bcf7", "b9dafc", "e8f4ff")
Colors = NDArray[np.uint8]


def ramp(values: NDArray[np.float64], stops: tuple[str, ...]) -> NDArray[np.float64]:
    """Colors between the stops.  # (…,) in [0, 1] -> (…, 3) in [0, 255]"""
    colors = np.array([[int(stop[place : place + 2], 16) for place in (0, 2, 4)] for stop in stops], np.float64)
    at = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(values, at, colors[:, channel]) for channel in range(3)], -1)


def colored(values: NDArray[np.floating], most: float | None = None) -> Colors:
    """A map in colors; `most` is what the lightest stands for, by default the largest absolute value.  # (h, w) -> (h, w, 3)"""
    found = np.nan_to_num(np.asarray(values, np.float64))
    top = max(float(np.abs(found).max()) if most is None else most, 1e-12)
    scaled = np.clip(np.abs(found) / top, 0, 1)
    return np.where(found[..., None] < 0, ramp(scaled, NEGATIVE), ramp(scaled, POSITIVE)).round().astype(np.uint8)


def overlay(picture: Colors, relevance: NDArray[np.floating], side: int = 320) -> Colors:
    """The picture in grey with the relevance as heat over it, softly enlarged.  # (H, W, 3), (h, w) -> (side', side'', 3)"""
    scale = max(1, round(side / max(picture.shape[:2])))
    size = (picture.shape[1] * scale, picture.shape[0] * scale)
    large = Image.fromarray(picture).resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)
    heat = np.asarray(Image.fromarray(np.asarray(relevance, np.float32)).resize(size, Image.Resampling.BICUBIC), np.float64)
    low, high = float(np.min(relevance)), float(np.max(relevance))
    heat = np.clip((heat - low) / max(high - low, 1e-12), 0, 1)
    grey = np.asarray(large.convert("L"), np.float64)[..., None].repeat(3, -1)
    strength = (0.12 + 0.78 * heat)[..., None]
    return ((1 - strength) * grey + strength * ramp(heat, POSITIVE)).round().astype(np.uint8)
