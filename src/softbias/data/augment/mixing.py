"""Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019), with partners that do not depend on the batch.

    mixup     λ x + (1 − λ) x'                        λ ~ Beta(α, α)
    CutMix    x' in a box of area (1 − λ), x around it
    target    λ y + (1 − λ) y'                        for CutMix with λ = 1 − the box's true area

A sample's partner is another *index in the training set*, from the same hash as everything else, and not its neighbor in the
batch: otherwise the result for a sample would depend on the batch size and the number of processes. So the order is

    plan = plan_mix(index, epoch, seed, n_train, settings, size)
    pair = augment(images[index], index, …), augment(images[plan.partner], plan.partner, …)
    mixed = apply_mix(*pair, plan)

The rest is timm's Mixup in its mode "elem": a sample is mixed with `mix_probability`, and then by CutMix with `mix_switch`.

λ is drawn without rejection: √(q / (1 + q)) with q = (u^(−1/α) − 1) cos² 2πv, of random sign, is 2λ − 1 (Devroye, 1996).

Shapes: B samples, images (B, 3, H, W), K classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from softbias.data.augment import Augmentation
from softbias.data.augment.geometry import Size, box_mask
from softbias.data.augment.rng import Stream, operation_id
from softbias.errors import SoftbiasError

PARTNER, LAMBDA, MIX = operation_id("mix partner"), operation_id("mix lambda"), operation_id("mix")
BOX_ROW, BOX_COLUMN = operation_id("mix box row"), operation_id("mix box column")
DRAWS = {MIX: 2, LAMBDA: 2, PARTNER: 1, BOX_ROW: 1, BOX_COLUMN: 1}


class MixPlan(NamedTuple):
    """The partner of each sample, and how the two are mixed.

    A sample that is not mixed has λ = 1 and itself as partner. The box is empty unless it is CutMix.
    """

    partner: Tensor  # (B,) int64, in 0 … n_train − 1
    lam: Tensor  # (B,) float32, the sample's share in the target
    cut: Tensor  # (B,) bool, CutMix instead of mixup
    box: Tensor  # (B, 4) int64: top, bottom, left, right


def plan_mix(index: Tensor, epoch: int | Tensor, seed: int, n_train: int, settings: Augmentation, size: Size) -> MixPlan:
    """Partners, λ and boxes for images of the given height and width.  # (B,)"""
    if n_train < 1:
        raise SoftbiasError(f"n_train is the number of training pictures, at least 1, but n_train={n_train}")
    stream = Stream.of(seed, epoch, index, DRAWS if settings.mixes else None)
    u = stream.uniform(MIX, 2)
    mixed = (u[:, 0] < settings.mix_probability) if settings.mixes else torch.zeros_like(index, dtype=torch.bool)
    if settings.mixup and settings.cutmix:
        cut = mixed & (u[:, 1] < settings.mix_switch)
        lam = torch.where(cut, draw_beta(stream, settings.cutmix), draw_beta(stream, settings.mixup))
    else:
        cut = mixed & bool(settings.cutmix)
        lam = draw_beta(stream, settings.mixup or settings.cutmix or 1.0)
    partner = (index + stream.integers(PARTNER, 1, max(n_train, 2))) % n_train  # any other one
    box, area = draw_box(stream, lam, cut, size)
    lam = torch.where(mixed, torch.where(cut, 1 - area, lam), 1.0)
    return MixPlan(torch.where(mixed, partner, index), lam, cut, box)


def draw_beta(stream: Stream, alpha: float) -> Tensor:
    """λ ~ Beta(α, α).  # (B,)"""
    u = stream.uniform(LAMBDA, 2)
    w = (1 - u[:, 0]) ** (1 / alpha)  # in (0, 1]
    cos = (2 * math.pi * u[:, 1]).cos()
    squared = (1 - w) * cos.square()
    return 0.5 + 0.5 * cos.sign() * (squared / (w + squared)).sqrt()  # q / (1 + q), where u^(−1/α) may overflow


def draw_box(stream: Stream, lam: Tensor, cut: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """A box of the image's aspect ratio with 1 − λ of its area, around any pixel, clipped; and its share.  # (B, 4), (B,)"""
    part = (1 - lam).sqrt()
    edges = []
    for side, operation in zip(size, (BOX_ROW, BOX_COLUMN), strict=True):
        length = torch.where(cut, (side * part).long(), 0)
        middle = stream.integers(operation, 0, side)
        edges += [(middle - length // 2).clamp(0, side), (middle + (length + 1) // 2).clamp(0, side)]
    top, bottom, left, right = edges
    return torch.stack(edges, dim=1), (bottom - top) * (right - left) / (size[0] * size[1])


def apply_mix(images: Tensor, partner_images: Tensor, plan: MixPlan) -> Tensor:
    """The mixed images.  # (B, 3, H, W), (B, 3, H, W) -> (B, 3, H, W)"""
    if images.shape != partner_images.shape:
        raise SoftbiasError(
            f"images and their partners must have one shape, but are {tuple(images.shape)} and "
            f"{tuple(partner_images.shape)}; augment both alike"
        )
    top, bottom, left, right = plan.box.unbind(1)
    inside = box_mask(top, bottom, left, right, (images.shape[-2], images.shape[-1]))  # (B, 1, H, W)
    lam = plan.lam[:, None, None, None].to(images.dtype)
    weight = torch.where(plan.cut[:, None, None, None], (~inside).to(images.dtype), lam)
    return torch.lerp(partner_images, images, weight)


def mix_targets(targets: Tensor, partner_targets: Tensor, plan: MixPlan, classes: int) -> Tensor:
    """λ y + (1 − λ) y' with one-hot y.  # (B,), (B,) -> (B, K) float32"""
    lam = plan.lam[:, None]
    own = torch.arange(classes, device=targets.device) == targets[:, None]
    other = torch.arange(classes, device=targets.device) == partner_targets[:, None]
    return lam * own + (1 - lam) * other


def repeated(order: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """An epoch's order in which an image comes `repeats` times in a row, and the view number of each.  # (N,) -> 2 × (N,)

    The epoch keeps its length, so it visits 1 / repeats of the images (Hoffer et al., 2020; DeiT). Give `augment` and
    `plan_mix` the epoch `epoch_of_view(epoch, view)`.

    >>> repeated(torch.tensor([4, 2, 0, 1, 3]), 2)
    (tensor([4, 4, 2, 2, 0]), tensor([0, 1, 0, 1, 0]))
    """
    if repeats < 1:
        raise SoftbiasError(f"repeats must be at least 1, but repeats={repeats}")
    index = torch.arange(len(order), device=order.device)
    return order[index // repeats], index % repeats
