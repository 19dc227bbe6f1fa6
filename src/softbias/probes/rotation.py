"""Rotation: consistency and accuracy when the picture is turned about its center. Corners that come in are black.

Quarter turns move pixels exactly; other angles are bilinear.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbias.classifier import Classifier
from softbias.probes.changes import compare
from softbias.probes.pictures import Source, sample
from softbias.probes.rows import Rows, stamp

ANGLES = (15, 30, 45, 90, 180, 270)


def rotation(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    angles: Sequence[float] = ANGLES,
) -> Rows:
    """Rows per angle in degrees, counter-clockwise. 1 + len(angles) passes per picture."""
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    changes = {angle: functools.partial(turned, angle=angle) for angle in angles}
    return stamp(classifier, "rotation", compare(classifier, pictures, changes, seed, "angle"), data=pictures.name)


def turned(images: Tensor, _: torch.Generator | None = None, *, angle: float) -> Tensor:
    """# (B, 3, H, W)"""
    square = images.shape[-1] == images.shape[-2]
    if angle % 90 == 0 and (square or angle % 180 == 0):
        return images.rot90(int(angle // 90) % 4, (-2, -1))
    from torchvision.transforms.v2.functional import InterpolationMode, rotate

    return rotate(images, angle, interpolation=InterpolationMode.BILINEAR)


def draw(rows: Rows, folder: Any) -> list[Any]:
    from softbias.probes.drawing import bars

    return bars(rows, folder, "rotation", "measure", "angle", "share of pictures")
