"""Pictures at another size: bicubic with antialiasing, and one of three ways to treat the aspect ratio.

crop      the largest part in the middle that has the wanted aspect ratio
pad       the whole picture, on black
stretch   the whole picture, with another aspect ratio
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias import environment
from softbias.errors import unknown_name

Images = NDArray[np.uint8]
AT_ONCE = 64  # pictures that a thread resizes one after another
RESIZE_MODES = ("crop", "pad", "stretch")  # pages.wording describes them


def check_resize_mode(resize_mode: str) -> None:
    if resize_mode not in RESIZE_MODES:
        raise unknown_name("resize_mode", resize_mode, RESIZE_MODES)


def resized(image: Image.Image, size: tuple[int, int], resize_mode: str) -> Image.Image:
    """An RGB picture at (height, width); bicubic with antialiasing. A picture that has the size already stays as it is."""
    height, width = size
    if image.size == (width, height):
        return image
    bicubic: dict[str, Any] = {"resample": Image.Resampling.BICUBIC, "reducing_gap": 3.0}
    if resize_mode == "stretch":
        return image.resize((width, height), **bicubic)
    if resize_mode == "crop":
        scale = max(width / image.width, height / image.height)
        left = (image.width - width / scale) / 2
        top = (image.height - height / scale) / 2
        box = (max(0.0, left), max(0.0, top), min(image.width, image.width - left), min(image.height, image.height - top))
        return image.resize((width, height), box=box, **bicubic)
    scale = min(width / image.width, height / image.height)
    inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(image.resize(inner, **bicubic), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return canvas


def resize_all(images: Images, size: tuple[int, int], resize_mode: str) -> Images:
    """RGB pictures at (height, width), resized as files are, by threads.  # (N, H, W, 3) -> (N, height, width, 3)"""
    if images.shape[1:3] == size:
        return images
    filled = np.empty((len(images), *size, 3), np.uint8)

    def fill(start: int) -> None:
        for index in range(start, min(start + AT_ONCE, len(images))):
            filled[index] = np.asarray(resized(Image.fromarray(images[index]), size, resize_mode))

    with ThreadPoolExecutor(environment.count_cores()) as pool:
        list(pool.map(fill, range(0, len(images), AT_ONCE)))
    return filled


def stack(images: Iterable[Image.Image | Images], count: int, size: tuple[int, int]) -> Images:
    """`count` pictures in one array, filled one by one, so that they are in memory only once.  # (count, H, W, 3)"""
    filled = np.empty((count, *size, 3), np.uint8)
    for index, image in enumerate(images):
        filled[index] = np.asarray(image)
    return filled
