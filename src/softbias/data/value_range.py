"""What is black and what is white in pictures of more than eight bits: one range of values for all pictures of a set.

    find_range(files)                           (0, 4095) for a camera of twelve bits; None where all pictures have eight
    to_bytes(values, (0, 4095))                 linear between the two, and clipped outside

No such file says what white is. A scale of its own for each file would make one picture dark because of one bright pixel, and
a scale for a batch would make an answer depend on the other pictures. So the set decides, and the model keeps what was decided:

    whole numbers   0 to the end of the fewest bits that hold them: 255, 1,023, 4,095, 16,383 or 65,535
    floats          0 to 1, or 0 to 255, where they fit; otherwise from the lowest to the highest value

A thousandth of each picture's pixels at either end does not count here: hot pixels, or a mark for missing values. Values that
are not finite are black.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias import environment
from softbias.bounds import ValueRange
from softbias.errors import SoftbiasError
from softbias.files import open_regular

DEEP = ("I", "F")  # Pillow's modes of more than eight bits begin so: I, I;16, I;16B, F
BITS = (8, 10, 12, 14, 16)
SAMPLE = 500  # pictures of a set that decide
VALUES = 250_000  # of a picture that are looked at
ENDS = (0.1, 99.9)  # percentiles
PART = 4_000_000  # values that become bytes at a time
OUTSIDE = 100  # floats up to 255 are bytes if they go beyond this
NEVER_DEEP = (".jpg", ".jpeg", ".webp", ".gif", ".bmp")


def is_deep(mode: str) -> bool:
    return mode.startswith(DEEP)


def check_range(value_range: Sequence[float]) -> ValueRange:
    """The range, if it is one."""
    if len(value_range) != 2 or not value_range[0] < value_range[1] or not np.isfinite(value_range).all():
        raise SoftbiasError(f"value_range must be two numbers, that of black and a larger one of white, but got {value_range}")
    return float(value_range[0]), float(value_range[1])


def parse_range(text: str) -> ValueRange:
    """
    >>> parse_range("0,4095")
    (0.0, 4095.0)
    """
    try:
        return check_range([float(part) for part in text.split(",")])
    except ValueError as error:  # also that of check_range
        raise SoftbiasError(
            f"--value-range takes two numbers, of black and of white, such as 0,4095, but got {text!r}"
        ) from error


def find_range(files: Sequence[str | Path]) -> ValueRange | None:
    """The range for picture files: that of those with more than eight bits among 500, evenly spread. None without any."""
    chosen = np.unique(np.linspace(0, len(files) - 1, SAMPLE).round().astype(int)) if len(files) else ()
    with warnings.catch_warnings(), ThreadPoolExecutor(environment.count_cores()) as pool:
        warnings.filterwarnings("ignore", module="PIL")  # here and not in threads, where it is not safe
        return range_of(filter(None, pool.map(ends_of_file, [Path(files[index]) for index in chosen])))


def ends_of_file(file: Path) -> tuple[float, float, bool] | None:
    """The ends of a deep picture's values; None for other pictures and for files that cannot be read."""
    if file.suffix.lower() in NEVER_DEEP:
        return None
    try:
        with open_regular(file) as content, Image.open(content) as picture:
            return ends(np.asarray(picture)) if is_deep(picture.mode) else None
    except Exception:  # Pillow raises a dozen kinds on damaged files; decoding reports them
        return None


def ends(values: NDArray[Any]) -> tuple[float, float, bool] | None:
    """The lowest and the highest value, but for a thousandth of them, and whether they are whole numbers; None without any."""
    plain = values.reshape(-1)
    plain = plain[:: max(1, plain.size // VALUES)]
    plain = plain[np.isfinite(plain)]
    if not plain.size:
        return None
    low, high = np.percentile(plain, ENDS, method="nearest")
    return float(low), float(high), values.dtype.kind in "iu"


def range_of(found: Iterable[tuple[float, float, bool]]) -> ValueRange | None:
    """The range that holds all of these.

    >>> range_of([(0, 200, True), (90, 3200, True)]), range_of([(0.0, 0.3, False)]), range_of([(-3.0, 5.0, False)])
    ((0.0, 4095.0), (0.0, 1.0), (-3.0, 5.0))
    """
    every = list(found)
    if not every:
        return None
    low, high = min(low for low, _, _ in every), max(high for _, high, _ in every)
    whole = all(whole for _, _, whole in every)
    if whole and low >= 0 and high < 2 ** BITS[-1]:
        return 0.0, float(next(2**bits - 1 for bits in BITS if high < 2**bits))
    if not whole and low >= 0 and (high <= 1 or OUTSIDE < high <= 255):
        return 0.0, 1.0 if high <= 1 else 255.0
    return low, high if high > low else low + 1


def to_bytes(values: NDArray[Any], value_range: ValueRange) -> NDArray[np.uint8]:
    """Values of any numeric type as bytes, a part at a time."""
    low, high = value_range
    found = np.empty(values.shape, np.uint8)
    step = max(1, PART // max(1, values[:1].size))
    for start in range(0, len(values), step):
        exact = np.subtract(values[start : start + step], low, dtype=np.float64) * (255 / (high - low))
        exact[~np.isfinite(exact)] = 0
        found[start : start + step] = np.rint(exact.clip(0, 255))
    return found
