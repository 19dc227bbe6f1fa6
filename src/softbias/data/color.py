"""Brightness, contrast, saturation, hue and grayscale, with other factors for each sample.

    y = b c (s x + (1 − s) gray(x)) + b (1 − c) mean gray(x)       gray = .299 R + .587 G + .114 B

for brightness b, contrast c and saturation s: each blends with black, with the picture's mean gray, and with its gray
version, as PIL and torchvision do. Blending with gray does not change gray, so the three are one formula. We differ in
clipping once at the end, where they clip after each, and in their order, which torchvision draws.

Hue turns the color about the gray axis R = G = B. A third of a turn exchanges the channels, exactly as shifting the hue in
HSV does; in between it differs by a few levels, and costs a tenth.

Shapes: pictures (B, 3, H, W), float in 0 … 255; factors (B,).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softbias.data.augmentation import Augmentation
from softbias.data.hashing import Stream, operation_id

JITTER, GRAYSCALE = operation_id("color jitter"), operation_id("grayscale")


def luma(images: Tensor) -> Tensor:
    """# (B, 3, H, W) -> (B, 1, H, W)"""
    return (0.299 * images[:, 0:1]).add_(images[:, 1:2], alpha=0.587).add_(images[:, 2:3], alpha=0.114)


def adjust(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """The formula above; factors of one change nothing.  # (B, 3, H, W), 3 × (B,) -> (B, 3, H, W)"""
    b, c, s = (factor[:, None, None, None] for factor in (brightness, contrast, saturation))
    gray = luma(images)
    level = gray.mean((-2, -1), keepdim=True) * (b * (1 - c))  # (B, 1, 1, 1)
    gray.mul_(b * c * (1 - s)).add_(level)
    return (images * (b * c * s)).add_(gray).clamp_(0, 255)


def turn_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotation about the gray axis; `turns` of 1/3 makes red green.  # (B, 3, H, W), (B,) -> (B, 3, H, W)"""
    angle = (turns * (2 * math.pi))[:, None, None, None]
    along, across = (1 - angle.cos()) / 3, angle.sin() / math.sqrt(3)
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    before, after = torch.cat([blue, red, green], 1), torch.cat([green, blue, red], 1)
    turned = images * (1 - 2 * along)
    return turned.add_(before.mul_(along + across)).add_(after.mul_(along - across)).clamp_(0, 255)


def jitter(images: Tensor, stream: Stream, settings: Augmentation) -> Tensor:
    """Color jitter and grayscale as the settings ask.  # (B, 3, H, W) -> (B, 3, H, W)"""
    u = stream.uniform(JITTER, 4) * 2 - 1  # (B, 4)
    if settings.brightness or settings.contrast or settings.saturation or settings.grayscale:
        ranges = settings.brightness, settings.contrast, settings.saturation
        brightness, contrast, saturation = ((1 + u[:, i] * span).clamp(min=0) for i, span in enumerate(ranges))
        if settings.grayscale:
            saturation = saturation * (stream.uniform(GRAYSCALE) >= settings.grayscale)
        images = adjust(images, brightness, contrast, saturation)
    return turn_hue(images, u[:, 3] * settings.hue) if settings.hue else images


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with the smoothed picture: 0 is smooth, 1 the picture itself, 2 sharper.  # (B, 3, H, W), (B,) -> (B, 3, H, W)

    Smooth is PIL's: a 3 × 3 kernel of ones with 5 in the middle, over 13, with the outermost pixels left as they are.
    """
    middle = images[..., 1:-1, 1:-1]
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    change = (
        box.mul_(-1 / 13).add_(middle, alpha=9 / 13).mul_((factor - 1)[:, None, None, None])
    )  # (x − smooth)(factor − 1)
    sharpened = images.clone()
    sharpened[..., 1:-1, 1:-1] += change
    return sharpened.clamp_(0, 255)
