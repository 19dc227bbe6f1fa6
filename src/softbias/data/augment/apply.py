"""From stored bytes to the images that a model trains on: crop, flip, affine, RandAugment, color, normalization, erasing.

    augment(images, index, epoch, seed, settings, mean, std)

The result for a sample is a function of (seed, epoch, index, settings) and its bytes: its batch, the order, and the number of
workers and processes do not matter. There is no generator, no host synchronization and no shape that depends on values, so a
training step that contains it can be compiled and captured in a CUDA graph.

Geometry is composed into one resampling (`geometry`), or an exact copy of pixels where none is needed; photometry runs over
the whole batch with neutral arguments for the samples that it spares (`color`, `randaugment`). At the end parts are removed:
cutout (DeVries and Taylor, 2017) is a square whose center lies anywhere, so that it may reach over the border; erasing (Zhong
et al., 2020) is timm's rectangle inside the image, of random area and aspect ratio. It becomes zero, which is the mean, or
noise of variance 1. docs/augmentation.md compares this with libraries.

Shapes: B samples, stored images of H × W, results of h × w.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softbias.data.augment import Augmentation, color, geometry, randaugment
from softbias.data.augment.geometry import TRIES, Size, box_mask, draw_rectangles, rotate_quarter, share_of_side
from softbias.data.augment.rng import Draws, Stream, operation_id, to_normal
from softbias.errors import SoftbiasError

__all__ = ["Augmentation", "augment", "normalize", "rotate_quarter"]

CUTOUT_ROW, CUTOUT_COLUMN = operation_id("cutout row"), operation_id("cutout column")
ERASING, ERASING_SHAPE = operation_id("erasing"), operation_id("erasing shape")
ERASING_TOP, ERASING_LEFT, NOISE = operation_id("erasing top"), operation_id("erasing left"), operation_id("erasing noise")


def augment(
    images: Tensor,
    index: Tensor,
    epoch: int | Tensor,
    seed: int,
    settings: Augmentation,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    *,
    size: Size | None = None,
    aspect: Tensor | None = None,
) -> Tensor:
    """Augmented, normalized images.  # (B, H, W, 3) or (B, 3, H, W) uint8, (B,) -> (B, 3, h, w) float32

    index       of each sample in the training set
    epoch       a number, or an int64 tensor of shape () or (B,); see `rng.epoch_of_view` for repeated augmentation
    mean, std   of the channels, for values in 0 … 1
    size        height and width of the result; those of the images by default
    aspect      (B,): width / height of each picture, where the images are these pictures made square
    """
    images = channels_first(images)
    source: Size = (images.shape[-2], images.shape[-1])
    size = size or source
    check(images, index, settings, source)
    stream = Stream.of(seed, epoch, index, draws(settings))
    mean, std = per_channel(mean, images), per_channel(std, images)
    top, left, height, width = geometry.draw_crops(stream, settings, source, size, aspect)
    rows, columns = geometry.draw_flips(stream, settings)
    reflect = settings.fill == "reflect"
    inside: Tensor | None = None
    if settings.resamples:
        matrices = geometry.compose(
            geometry.crop_matrix(top, left, height, width, source, size), geometry.flip_matrix(rows, columns)
        )
        if settings.moves:
            matrices = geometry.compose(matrices, geometry.draw_affine(stream, settings, size))
        policy = settings.randaugment_settings
        layers = randaugment.draw_layers(stream, policy) if policy else []
        for layer in layers:
            matrices = geometry.compose(matrices, randaugment.layer_matrix(layer, size))
        fill = mean * 255 if settings.fill == "mean" else None
        images = geometry.warp(images.to(torch.float32), matrices, size, fill=fill, reflect=reflect)
        for layer in layers:
            images = randaugment.photometric(images, layer)
    else:
        if settings.crop == "pad" or settings.flip or settings.vertical_flip or size != source:
            images, inside = geometry.crop_and_flip(images, top, left, rows, columns, size, reflect=reflect)
        images = images.to(torch.float32)
        if inside is not None and settings.crop == "pad" and not reflect:
            images = images.mul_(inside) if settings.fill == "zero" else torch.where(inside, images, mean * 255)
    if settings.jitters:
        images = color.jitter(images, stream, settings)
    images = images.mul_(1 / (255 * std)).sub_(mean / std)  # in place: half of the time is fresh memory
    return erase(images, stream, settings)


def draws(settings: Augmentation) -> Draws:
    """The random numbers that are drawn for each sample, but for noise."""
    policy = settings.randaugment_settings
    layers = randaugment.draws(policy) if policy else {}
    cutout = {CUTOUT_ROW: 1, CUTOUT_COLUMN: 1} if settings.cutout else {}
    erasing = {ERASING: 1, ERASING_SHAPE: 2 * TRIES, ERASING_TOP: 1, ERASING_LEFT: 1} if settings.erasing else {}
    return geometry.draws(settings) | layers | color.draws(settings) | cutout | erasing


def erase(images: Tensor, stream: Stream, settings: Augmentation) -> Tensor:
    """Cutout, then erasing, as the settings ask, in place.  # (B, 3, H, W) -> (B, 3, H, W)"""
    size = images.shape[-2], images.shape[-1]
    if settings.cutout:
        side = share_of_side(settings.cutout, min(size))
        top = stream.integers(CUTOUT_ROW, 0, size[0]) - side // 2
        left = stream.integers(CUTOUT_COLUMN, 0, size[1]) - side // 2
        images = images.mul_(~box_mask(top, top + side, left, left + side, size))
    if settings.erasing:
        gone = draw_erasing(stream, settings, size)
        images = images.mul_(~gone) if settings.erasing_value == "zero" else torch.where(gone, noise(stream, size), images)
    return images


def draw_erasing(stream: Stream, settings: Augmentation, size: Size) -> Tensor:
    """The pixels to erase.  # (B, 1, H, W)"""
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
    return torch.stack([to_normal(bits, 21, 21 * channel) for channel in range(3)], dim=1).reshape(-1, 3, *size)


def normalize(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """(x / 255 − mean) / std.  # (B, 3, H, W) -> (B, 3, H, W) float32"""
    mean, std = per_channel(mean, images), per_channel(std, images)
    return images * (1 / (255 * std)) - mean / std


def channels_first(images: Tensor) -> Tensor:
    """Either layout as (B, 3, H, W); where both are possible, the last axis is taken for the channels, as in stored images."""
    if images.ndim == 4 and images.shape[-1] == 3:
        return images.permute(0, 3, 1, 2).contiguous()
    if images.ndim == 4 and images.shape[1] == 3:
        return images
    raise SoftbiasError(f"pictures must be of shape (B, H, W, 3) or (B, 3, H, W), but are of {tuple(images.shape)}")


def check(images: Tensor, index: Tensor, settings: Augmentation, source: Size) -> None:
    if images.dtype != torch.uint8:
        raise SoftbiasError(f"augment takes stored bytes (uint8), but got {images.dtype}; give the images before normalizing")
    if index.shape != images.shape[:1]:
        raise SoftbiasError(f"{len(images)} pictures need as many indices, but index has shape {tuple(index.shape)}")
    margins = geometry.crop_margins(settings, source)
    if (
        settings.crop == "pad"
        and settings.fill == "reflect"
        and any(m >= side for m, side in zip(margins, source, strict=True))
    ):
        raise SoftbiasError(
            f"fill='reflect' mirrors all pixels of a side but one, so crop_padding={settings.crop_padding:g} is too much for "
            f"pictures of {source[0]} × {source[1]}; use less, or fill='zero'"
        )


def per_channel(values: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """Three numbers as a tensor, without a copy from the host, which a CUDA graph would refuse.  # (3, 1, 1) float32"""
    if not isinstance(values, Tensor):
        values = torch.stack([torch.full((), float(value), device=like.device) for value in values])
    if values.numel() != 3:
        raise SoftbiasError(f"mean and std are three numbers each, one per channel, but got {values.numel()}")
    return values.to(torch.float32).reshape(3, 1, 1)
