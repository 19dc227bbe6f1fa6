"""Pictures of any kind as upright RGB.

Unusual files are treated so:

    more than 8 bits    by the range of values of their set, see `value_range`; a file without a set has its own, but 16-bit
                        grey is then v / 257, so that 65535 is white
    transparency        laid on white: an alpha channel, a palette entry, or one transparent color
    CMYK, YCbCr, LAB    converted to sRGB by Pillow; embedded color profiles are not applied
    EXIF orientation    applied, so a picture stands as its camera saw it
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.bounds import ValueRange
from softbias.data.value_range import ends, is_deep, range_of, to_bytes

UPRIGHT = {  # EXIF orientation -> the transposition that makes the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation_of(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged EXIF does not make the pixels wrong
        return 1


def to_rgb(image: Image.Image, value_range: ValueRange | None = None) -> Image.Image:
    """value_range: what is black and white, for a picture of more than eight bits"""
    if is_deep(image.mode):
        values = np.asarray(image)
        grey = to_bytes(values, value_range or range_of_file(values, image.mode))
        if "transparency" in image.info:
            grey[values == image.info["transparency"]] = 255
        return Image.fromarray(grey).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def range_of_file(values: NDArray[Any], mode: str) -> ValueRange:
    """Black and white of a picture without a set."""
    return (0.0, 65535.0) if mode.startswith("I;16") else range_of(filter(None, [ends(values)])) or (0.0, 1.0)
