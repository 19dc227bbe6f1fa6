"""RandAugment (Cubuk et al., 2020) in timm's form, for a whole batch in which every sample draws its own operations.

A layer is one operation per sample with its argument. Geometric operations become matrices, which join those of the crop.
Photometric ones are written so that an argument exists for which they change nothing; each formula then runs over the
whole batch with the neutral argument for the samples that drew another operation:

    brightness, contrast, color    the blend of `color.adjust`, factor 1
    sharpness                      the blend of `color.sharpen`, factor 1
    everything else                a table of 256 levels per sample and channel, the identity

We differ from timm: geometry comes before photometry; resampling is bilinear (timm draws bilinear or bicubic); the
image is rounded to whole levels once per layer; posterize keeps at least one bit (timm keeps none at level 10, which makes
images black and is an error in recent Pillow).

Shapes: B samples, images (B, 3, H, W) of float in 0 … 255, tables (B, 3, 256).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softbias.data.augment import RandAugment
from softbias.data.augment.color import adjust, sharpen
from softbias.data.augment.geometry import Size, matrix
from softbias.data.augment.rng import Draws, Stream, operation_id

OPERATIONS = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add", "color", "contrast",
    "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
(
    AUTOCONTRAST, EQUALIZE, INVERT, ROTATE, POSTERIZE, SOLARIZE, SOLARIZE_ADD, COLOR, CONTRAST,
    BRIGHTNESS, SHARPNESS, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y,
) = range(len(OPERATIONS))  # fmt: skip
NOTHING = len(OPERATIONS)
CHOICE, MAGNITUDE = operation_id("randaugment choice"), operation_id("randaugment magnitude")

Layer = tuple[Tensor, Tensor]  # operation (B,) int64, argument (B,) float


def draws(settings: RandAugment) -> Draws:
    """The random numbers that are drawn here for each sample."""
    return {CHOICE: 3 * settings.layers} | ({MAGNITUDE: settings.layers} if settings.magnitude_std else {})


def draw_layers(stream: Stream, settings: RandAugment) -> list[Layer]:
    """The operations of each sample, in order."""
    u = stream.uniform(CHOICE, 3 * settings.layers)  # (B, 3 · layers)
    if settings.magnitude_std > 100:
        level = stream.uniform(MAGNITUDE, settings.layers) * settings.magnitude
    elif settings.magnitude_std:
        level = stream.normal(MAGNITUDE, settings.layers) * settings.magnitude_std + settings.magnitude
    else:
        level = torch.full_like(u[:, : settings.layers], settings.magnitude)
    level = level.clamp(0, settings.magnitude_max)
    layers = []
    for number in range(settings.layers):
        choice, applied, sign = u[:, 3 * number : 3 * number + 3].unbind(1)
        operation = (choice * len(OPERATIONS)).long()
        argument = arguments(operation, level[:, number], torch.where(sign < 0.5, -1.0, 1.0), settings.increasing)
        layers.append((torch.where(applied < settings.probability, operation, NOTHING), argument))
    return layers


def arguments(operation: Tensor, level: Tensor, sign: Tensor, increasing: bool) -> Tensor:
    """timm's meaning of a level from 0 to 10.  # 3 × (B,) -> (B,)

    rotate ±30 degrees · shear ±0.3 · translate ±0.45 of the side · posterize to 1 … 4 bits · solarize from 0 … 256 ·
    solarize_add 0 … 110 · color, contrast, brightness, sharpness by a factor of 0.1 … 1.9
    """
    part = level / 10
    bits, threshold = (4 * part).floor(), (256 * part).floor().clamp(max=256)
    if increasing:
        factor, bits, threshold = (1 + 0.9 * sign * part).clamp(min=0.1), 4 - bits, 256 - threshold
    else:
        factor = 1.8 * part + 0.1
    argument = torch.where(operation == ROTATE, 30 * sign * part, factor)
    argument = torch.where((operation == SHEAR_X) | (operation == SHEAR_Y), 0.3 * sign * part, argument)
    argument = torch.where((operation == TRANSLATE_X) | (operation == TRANSLATE_Y), 0.45 * sign * part, argument)
    argument = torch.where(operation == POSTERIZE, bits.clamp(min=1), argument)
    argument = torch.where(operation == SOLARIZE, threshold, argument)
    return torch.where(operation == SOLARIZE_ADD, (110 * part).floor().clamp(max=128), argument)


def layer_matrix(layer: Layer, size: Size) -> Tensor:
    """The geometric part: one of rotation, shear and translation, or the identity.  # (B, 2, 3)

    As in timm, rotation is about the center, counterclockwise, and shear is about the upper left corner.
    """
    operation, argument = layer
    height, width = size

    def only(wanted: int) -> Tensor:
        return torch.where(operation == wanted, argument, 0.0)

    turn, shear_x, shear_y = only(ROTATE) * (math.pi / 180), only(SHEAR_X), only(SHEAR_Y)
    right = shear_x * (height / 2) + only(TRANSLATE_X) * width
    down = shear_y * (width / 2) + only(TRANSLATE_Y) * height
    cos, sin = turn.cos(), turn.sin()
    return matrix(cos, shear_x - sin, right, shear_y + sin, cos, down)


def photometric(images: Tensor, layer: Layer) -> Tensor:
    """The photometric part; the result has whole levels.  # (B, 3, H, W) -> (B, 3, H, W)"""
    operation, argument = layer

    def factor(wanted: int) -> Tensor:
        return torch.where(operation == wanted, argument, 1.0)

    images = adjust(images, factor(BRIGHTNESS), factor(CONTRAST), factor(COLOR))
    size = images.shape[-2:]
    images = sharpen(images, factor(SHARPNESS)).round_().flatten(2)  # (B, 3, H·W)
    levels = images.long()
    low, high = images.amin(2, keepdim=True), images.amax(2, keepdim=True)
    equalized = equalize_table(levels, high)
    table = torch.where((operation == EQUALIZE)[:, None, None], equalized, point_table(layer, low, high))
    return table.gather(2, levels).reshape(*images.shape[:2], *size)


def point_table(layer: Layer, low: Tensor, high: Tensor) -> Tensor:
    """Invert, solarize, solarize_add, posterize and autocontrast.  # (B, 3, 1), (B, 3, 1) -> (B, 3, 256)"""
    operation, argument = (part[:, None, None] for part in layer)
    value = torch.arange(256, device=low.device, dtype=low.dtype)
    threshold = torch.where(operation == SOLARIZE, argument, torch.where(operation == INVERT, 0.0, 256.0))
    value = torch.where(value >= threshold, 255 - value, value)  # (B, 1, 256)
    lift = torch.where(operation == SOLARIZE_ADD, argument, 0.0)
    value = torch.where(value < 128, (value + lift).clamp_(max=255), value)
    step = torch.where(operation == POSTERIZE, 8 - argument, 0.0).exp2().round()  # exp2 is not exact on every device
    value = (value / step).floor_() * step
    stretch = (operation == AUTOCONTRAST) & (high > low)  # (B, 3, 1)
    low, span = torch.where(stretch, low, 0.0), torch.where(stretch, high - low, 255.0)
    return ((value - low).mul_(255).div_(span)).floor_().clamp_(0, 255)


def equalize_table(levels: Tensor, high: Tensor) -> Tensor:
    """PIL's equalize: levels become their rank, so that each is about equally frequent.

    Counts are whole numbers in float, hence exact and the same in any order of summation.  # (B, 3, H·W) -> (B, 3, 256)
    """
    counts = high.new_zeros(*high.shape[:2], 256).scatter_add(2, levels, high.new_ones(()).expand(levels.shape))
    brightest = counts.gather(2, high.long())  # the number of pixels of the brightest level
    step = ((levels.shape[2] - brightest) / 255).floor_()  # (B, 3, 1)
    below = counts.cumsum(2).sub_(counts)
    rank = below.add_((step / 2).floor_()).div_(step.clamp(min=1)).floor_().clamp_(max=255)
    return torch.where(step > 0, rank, torch.arange(256, device=levels.device, dtype=high.dtype))
