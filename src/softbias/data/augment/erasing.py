"""Parts of a normalized picture taken away: cutout (DeVries and Taylor, 2017) and random erasing (Zhong et al., 2020).

Cutout is a square whose center lies anywhere, so that it may reach over the border. Erasing is timm's: a rectangle inside
the picture, of random area and aspect; it becomes zero, which is the mean, or noise of variance 1.

Shapes: B samples, pictures (B, 3, H, W).
"""

from __future__ import annotations

import torch
from torch import Tensor

from softbias.data.augment.geometry import TRIES, Size, draw_rectangles
from softbias.data.augment.rng import Draws, Stream, operation_id, to_normal
from softbias.data.augment.settings import Augmentation

CUTOUT_ROW, CUTOUT_COLUMN = operation_id("cutout row"), operation_id("cutout column")
ERASING, ERASING_SHAPE = operation_id("erasing"), operation_id("erasing shape")
ERASING_TOP, ERASING_LEFT, NOISE = operation_id("erasing top"), operation_id("erasing left"), operation_id("erasing noise")


def draws(settings: Augmentation) -> Draws:
    """What is drawn here for each sample, but for noise."""
    cutout = {CUTOUT_ROW: 1, CUTOUT_COLUMN: 1} if settings.cutout else {}
    return cutout | ({ERASING: 1, ERASING_SHAPE: 2 * TRIES, ERASING_TOP: 1, ERASING_LEFT: 1} if settings.erasing else {})


def box_mask(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, size: Size) -> Tensor:
    """Which pixels lie in top ≤ row < bottom and left ≤ column < right.  # 4 × (B,) -> (B, 1, H, W)"""
    row = torch.arange(size[0], device=top.device)
    column = torch.arange(size[1], device=top.device)
    rows = (row >= top[:, None]) & (row < bottom[:, None])  # (B, H)
    columns = (column >= left[:, None]) & (column < right[:, None])  # (B, W)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def erase(images: Tensor, stream: Stream, settings: Augmentation) -> Tensor:
    """Cutout, then erasing, as the settings ask, in place.  # (B, 3, H, W) -> (B, 3, H, W)"""
    size = images.shape[-2], images.shape[-1]
    if settings.cutout:
        top = stream.integers(CUTOUT_ROW, 0, size[0]) - settings.cutout // 2
        left = stream.integers(CUTOUT_COLUMN, 0, size[1]) - settings.cutout // 2
        images = images.mul_(~box_mask(top, top + settings.cutout, left, left + settings.cutout, size))
    if settings.erasing:
        gone = draw_erasing(stream, settings, size)
        images = images.mul_(~gone) if settings.erasing_value == "zero" else torch.where(gone, noise(stream, size), images)
    return images


def draw_erasing(stream: Stream, settings: Augmentation, size: Size) -> Tensor:
    """# (B, 1, H, W)"""
    height, width, found = draw_rectangles(
        stream, ERASING_SHAPE, size, settings.erasing_scale, settings.erasing_ratio, whole=False
    )
    erased = found & (stream.uniform(ERASING) < settings.erasing)
    top = stream.integers(ERASING_TOP, 0, size[0] - height + 1)
    left = stream.integers(ERASING_LEFT, 0, size[1] - width + 1)
    return box_mask(top, torch.where(erased, top + height, top), left, left + width, size)


def noise(stream: Stream, size: Size) -> Tensor:
    """Normal noise; a pixel's 64 bits give 21 to each of its channels.  # (B, 3, H, W)"""
    bits = stream.bits(NOISE, size[0] * size[1])  # (B, H·W)
    return torch.stack([to_normal(bits, 21, 21 * channel) for channel in range(3)], dim=1).unflatten(2, size)
