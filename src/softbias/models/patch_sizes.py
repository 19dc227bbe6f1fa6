"""Which patch suits an image: for most models, for one that can afford many tokens, and for one on a CPU."""

from __future__ import annotations

import math

from softbias.errors import SoftbiasError
from softbias.models.spec import pair

MOST_FINE_PATCHES = 256
FEW_PATCHES, MANY_PATCHES = 16, 64  # on a CPU
CPU_PATCH = 8  # pixels: the best one in equal time on photographs (results/nano.md)


def suitable_patch(img_size: int | tuple[int, int]) -> int:
    """The patch for an image: the largest of 16, 8, 4, 2 that divides it and leaves at least 7 patches a side.

    >>> [suitable_patch(size) for size in (28, 32, 64, 96, 224, 256)]
    [4, 4, 8, 8, 16, 16]
    """
    sides = pair("img_size", img_size)
    for patch in (16, 8, 4, 2):
        if all(side % patch == 0 for side in sides) and min(sides) // patch >= 7:
            return patch
    for patch in (2, 1):
        if all(side % patch == 0 for side in sides) and max(sides) // patch <= 64:
            return patch
    raise SoftbiasError(f"no patch of 16, 8, 4 or 2 divides img_size={img_size}; choose a multiple of 16, or give patch_size")


def fine_patch(img_size: int | tuple[int, int]) -> int:
    """The patch for a model that can afford many tokens: the smallest of 4, 8, 16, 32 that divides the image and leaves at most
    256 patches; where none does, that of `suitable_patch`.

    >>> [fine_patch(size) for size in (28, 32, 64, 96, 128, 224, 256)]
    [4, 4, 4, 8, 8, 16, 16]
    """
    height, width = pair("img_size", img_size)
    for patch in (4, 8, 16, 32):
        if height % patch == 0 and width % patch == 0 and height // patch * (width // patch) <= MOST_FINE_PATCHES:
            return patch
    return suitable_patch(img_size)


def cpu_patch(img_size: int | tuple[int, int]) -> int:
    """The patch for a model on a CPU: of those that leave from 16 to 64 patches the power of two that is nearest to 8, or the
    largest if none is a power of two; where none leaves so many, that of `suitable_patch`.

    >>> [cpu_patch(size) for size in (28, 32, 64, 96, 128, 224, (60, 80))]
    [4, 8, 8, 16, 16, 32, 10]
    """
    height, width = pair("img_size", img_size)
    fitting = [patch for patch in range(2, min(height, width) + 1) if height % patch == 0 and width % patch == 0]
    good = [patch for patch in fitting if FEW_PATCHES <= height // patch * (width // patch) <= MANY_PATCHES]
    powers = [patch for patch in good if patch.bit_count() == 1]
    if powers:
        return min(powers, key=lambda patch: abs(math.log2(patch / CPU_PATCH)))
    return max(good, default=0) or suitable_patch(img_size)
