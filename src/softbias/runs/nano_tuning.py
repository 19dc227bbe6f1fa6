"""The automatic choices for `soft_nano` with pretrained weights on a CPU, such as those that come with the package.

It is as small as a model from scratch, so it is trained like one: by the recipe `quick`, all blocks, in the same minutes. What
differs are the size of the images, which follows from the patches of the weights, and the learning rate.
"""

from __future__ import annotations

from typing import Any

MODEL = "soft_nano"
RECIPE: dict[str, Any] = {"lr": 4e-3}  # half of that from scratch
MOST_PATCHES = 64  # of an image on a CPU
DEFAULT_PATCH = 8


def tunes(model: str | None, device: str) -> bool:
    """Whether these choices hold for a model whose pretrained weights are trained on a device."""
    return model == MODEL and device == "cpu"


def side_for(side: int, patch: int | None, own_side: int | None) -> int:
    """The side of the images for weights that were trained at `side`: twice that, where the images are as large and do not
    have too many patches then.

    >>> side_for(32, 8, 28), side_for(32, 8, 128), side_for(32, 4, 128)
    (32, 64, 32)
    """
    larger = 2 * side
    return larger if (own_side or 0) >= larger and suits((larger, larger), patch or DEFAULT_PATCH) else side


def suits(size: tuple[int, int], patch: int) -> bool:
    """Whether images of (height, width) have whole patches, and not too many for a CPU.

    >>> suits((32, 64), 8), suits((28, 28), 8), suits((224, 224), 8)
    (True, False, False)
    """
    height, width = size
    return height % patch == 0 and width % patch == 0 and height // patch * (width // patch) <= MOST_PATCHES
