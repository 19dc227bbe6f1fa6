"""From stored pixels to what a model is trained on: crop, flip, affine, RandAugment, color, normalization, erasing.

    augment(images, index, epoch, seed, settings, mean, std)

What a sample becomes is a function of (seed, epoch, index, settings) and its pixels: the batch it stands in, its order, and
the number of workers and processes do not matter. There is no generator, no host synchronization and no shape that depends
on values, so a training step that contains it can be compiled and captured in a CUDA graph.

Geometry is composed into one resampling (`geometry`), or an exact copy of pixels where none is needed; photometry runs over
the whole batch with neutral arguments for the samples that it spares (`color`, `randaugment`). docs/augmentation.md says
how this compares with libraries.

Shapes: B samples, stored pictures of H × W, results of h × w.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softbias.data.augment import color, erasing, geometry, randaugment
from softbias.data.augment.geometry import Size, rotate_quarter
from softbias.data.augment.rng import Draws, Stream
from softbias.data.augment.settings import Augmentation
from softbias.errors import SoftbiasError

__all__ = ["Augmentation", "augment", "normalize", "rotate_quarter"]


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
) -> Tensor:
    """Augmented, normalized pictures.  # (B, H, W, 3) or (B, 3, H, W) uint8, (B,) -> (B, 3, h, w) float32

    index       each sample's number in the training set
    epoch       a number, or an int64 tensor of shape () or (B,); see `hashing.epoch_of_view` for repeated augmentation
    mean, std   of the channels, for pixels in 0 … 1
    size        height and width of the result; those of the pictures by default
    """
    images = channels_first(images)
    source: Size = (images.shape[-2], images.shape[-1])
    size = size or source
    check(images, index, settings, source)
    stream = Stream.of(seed, epoch, index, draws(settings))
    mean, std = per_channel(mean, images), per_channel(std, images)
    top, left, height, width = geometry.draw_crops(stream, settings, source, size)
    rows, columns = geometry.draw_flips(stream, settings)
    reflect = settings.fill == "reflect"
    inside: Tensor | None = None
    if settings.resamples:
        places = geometry.compose(
            geometry.crop_matrix(top, left, height, width, source, size), geometry.flip_matrix(rows, columns)
        )
        if settings.moves:
            places = geometry.compose(places, geometry.draw_affine(stream, settings, size))
        policy = settings.randaugment_settings()
        layers = randaugment.draw_layers(stream, policy) if policy else []
        for layer in layers:
            places = geometry.compose(places, randaugment.layer_matrix(layer, size))
        fill = mean * 255 if settings.fill == "mean" else None
        images = geometry.warp(images.to(torch.float32), places, size, fill=fill, reflect=reflect)
        for layer in layers:
            images = randaugment.photometric(images, layer)
    else:
        if settings.crop == "pad" or settings.flip or settings.vertical_flip or size != source:
            images, inside = geometry.copy_pixels(images, top, left, rows, columns, size, reflect=reflect)
        images = images.to(torch.float32)
        if inside is not None and settings.crop == "pad" and not reflect:
            images = images.mul_(inside) if settings.fill == "zero" else torch.where(inside, images, mean * 255)
    if settings.jitters:
        images = color.jitter(images, stream, settings)
    images = images.mul_(1 / (255 * std)).sub_(mean / std)  # in place: half of the time is fresh memory
    return erasing.erase(images, stream, settings)


def draws(settings: Augmentation) -> Draws:
    """What is drawn for each sample."""
    policy = settings.randaugment_settings()
    layers = randaugment.draws(policy) if policy else {}
    return geometry.draws(settings) | layers | color.draws(settings) | erasing.draws(settings)


def normalize(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """(x / 255 − mean) / std.  # (B, 3, H, W) -> (B, 3, H, W) float32"""
    mean, std = per_channel(mean, images), per_channel(std, images)
    return images * (1 / (255 * std)) - mean / std


def channels_first(images: Tensor) -> Tensor:
    """Either layout as (B, 3, H, W); where both fit, the last axis is taken for the channels, as pictures are stored."""
    if images.ndim == 4 and images.shape[-1] == 3:
        return images.permute(0, 3, 1, 2).contiguous()
    if images.ndim == 4 and images.shape[1] == 3:
        return images
    raise SoftbiasError(f"pictures must be of shape (B, H, W, 3) or (B, 3, H, W), but are of {tuple(images.shape)}")


def check(images: Tensor, index: Tensor, settings: Augmentation, source: Size) -> None:
    if images.dtype != torch.uint8:
        raise SoftbiasError(f"augment takes stored pixels as uint8, but got {images.dtype}; give them before normalizing")
    if index.shape != images.shape[:1]:
        raise SoftbiasError(f"{len(images)} pictures need as many indices, but index has shape {tuple(index.shape)}")
    if settings.crop == "pad" and settings.fill == "reflect" and settings.crop_padding >= min(source):
        raise SoftbiasError(
            f"fill='reflect' can mirror at most {min(source) - 1} pixels of pictures of {source[0]} × {source[1]}, but "
            f"crop_padding={settings.crop_padding}; use less, or fill='zero'"
        )


def per_channel(values: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """Three numbers, without a copy from the host, which a CUDA graph would refuse.  # (3, 1, 1) float32"""
    if not isinstance(values, Tensor):
        values = torch.stack([torch.full((), float(value), device=like.device) for value in values])
    if values.numel() != 3:
        raise SoftbiasError(f"mean and std are three numbers each, one per channel, but got {values.numel()}")
    return values.to(torch.float32).reshape(3, 1, 1)
