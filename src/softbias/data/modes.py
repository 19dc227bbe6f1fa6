"""Pictures of any kind as upright RGB.

Unusual files are treated so:

    more than 8 bits    the range of values of their set, see `value_range`; of a file without a set:
        16-bit grey         v / 257, so that 65535 is white
        32-bit integers     0..255 is taken as it is, up to 65535 as 16-bit, else minimum to maximum
        floats              0..1 is multiplied by 255, 0..255 is taken as it is, else minimum to maximum
    transparency        laid on white: an alpha channel, a palette entry, or one transparent color
    CMYK, YCbCr, LAB    converted to sRGB by Pillow; embedded color profiles are not applied
    EXIF orientation    applied, so a picture stands as its camera saw it
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.bounds import ValueRange
from softbias.data.value_range import is_deep, to_bytes

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
    if value_range is not None and is_deep(image.mode):
        values = np.asarray(image)
        grey = to_bytes(values, value_range)
        if "transparency" in image.info:
            grey[values == image.info["transparency"]] = 255
        return Image.fromarray(grey).convert("RGB")
    if image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.uint32)
        grey = ((values + 128) // 257).astype(np.uint8)
        if "transparency" in image.info:
            grey[values == image.info["transparency"]] = 255
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ("I", "F"):
        return Image.fromarray(_grey(np.asarray(image).astype(np.float64), image.mode)).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey(values: NDArray[np.float64], mode: str) -> NDArray[np.uint8]:
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and mode == "F" and high <= 1:
        values = values * 255
    elif low >= 0 and high <= 255:
        pass
    elif low >= 0 and high <= 65535 and mode == "I":
        values = values / 257
    else:
        values = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return np.round(values).astype(np.uint8)
