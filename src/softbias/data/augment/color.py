"""Brightness, contrast, saturation, hue and grayscale, with its own factors for each sample.

    y = b c (s x + (1 − s) gray(x)) + b (1 − c) mean gray(x)       gray = .299 R + .587 G + .114 B

for brightness b, contrast c and saturation s: they blend with black, with the image's mean gray, and with its gray version,
as in PIL and torchvision. Blending with gray does not change gray, so the three are one formula. We differ in two points: we
clip once at the end, where they clip after each operation, and our order is fixed, where torchvision draws it.

Hue is shifted as in HSV, without going there and back: with V = max, C = max − min and hue h in sixths of the circle,

    channel = V − C · clip(min(k, 4 − k), 0, 1),     k = (h + n) mod 6,     n = 5, 3, 1 for R, G, B

Shapes: images (B, 3, H, W), float in 0 … 255; factors (B,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from softbias.data.augment import Augmentation
from softbias.data.augment.rng import Draws, Stream, operation_id

JITTER, GRAYSCALE = operation_id("color jitter"), operation_id("grayscale")


def draws(settings: Augmentation) -> Draws:
    """The random numbers that are drawn here for each sample."""
    return ({JITTER: 4} if settings.jitters else {}) | ({GRAYSCALE: 1} if settings.grayscale else {})


def luma(images: Tensor) -> Tensor:
    """Gray, .299 R + .587 G + .114 B.  # (B, 3, H, W) -> (B, 1, H, W)"""
    return (0.299 * images[:, 0:1]).add_(images[:, 1:2], alpha=0.587).add_(images[:, 2:3], alpha=0.114)


def adjust(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """The formula above; factors of one change nothing.  # (B, 3, H, W), 3 × (B,) -> (B, 3, H, W)"""
    b, c, s = (factor[:, None, None, None] for factor in (brightness, contrast, saturation))
    gray = luma(images)
    level = gray.mean((-2, -1), keepdim=True) * (b * (1 - c))  # (B, 1, 1, 1)
    gray.mul_(b * c * (1 - s)).add_(level)
    return (images * (b * c * s)).add_(gray).clamp_(0, 255)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """The hue moved on by `turns` of its circle; a third makes red green.  # (B, 3, H, W), (B,) -> (B, 3, H, W)"""
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    brightest = images.amax(1, keepdim=True)
    chroma = brightest - images.amin(1, keepdim=True)
    scale = chroma.clamp(min=1e-6).reciprocal_()  # gray has no hue, and chroma 0 keeps it gray
    hue = torch.where(brightest == red, (green - blue) * scale, (red - green) * scale + 4)
    hue = torch.where((brightest == green) & (brightest != red), (blue - red) * scale + 2, hue)
    hue = hue.add_(6 * turns[:, None, None, None])  # in sixths of the circle
    channels = []
    for n in (5, 3, 1):
        k = hue + n
        k = k.sub_((k / 6).floor_().mul_(6))
        channels.append(brightest - torch.minimum(k, 4 - k).clamp_(0, 1).mul_(chroma))
    return torch.cat(channels, dim=1)


def jitter(images: Tensor, stream: Stream, settings: Augmentation) -> Tensor:
    """Color jitter and grayscale as the settings ask.  # (B, 3, H, W) -> (B, 3, H, W)"""
    u = stream.uniform(JITTER, 4) * 2 - 1  # (B, 4)
    if settings.brightness or settings.contrast or settings.saturation or settings.grayscale:
        ranges = settings.brightness, settings.contrast, settings.saturation
        brightness, contrast, saturation = ((1 + u[:, i] * span).clamp(min=0) for i, span in enumerate(ranges))
        if settings.grayscale:
            saturation = saturation * (stream.uniform(GRAYSCALE) >= settings.grayscale)
        images = adjust(images, brightness, contrast, saturation)
    return shift_hue(images, u[:, 3] * settings.hue) if settings.hue else images


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with the smoothed image: 0 is smooth, 1 the image itself, 2 sharper.  # (B, 3, H, W), (B,) -> (B, 3, H, W)

    Smooth is PIL's: a 3 × 3 kernel of ones with 5 in the middle, over 13, with the outermost pixels left as they are.
    """
    middle = images[..., 1:-1, 1:-1]
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    change = box.mul_(-1 / 13).add_(middle, alpha=9 / 13).mul_((factor - 1)[:, None, None, None])  # (x − smooth)(factor − 1)
    sharpened = images.clone()
    sharpened[..., 1:-1, 1:-1] += change
    return sharpened.clamp_(0, 255)
