"""Resolution: images with less detail, and images of another size.

    blurred   the image is made smaller by the scale and enlarged again: less detail at the model's own size
    native    the image is resized by the scale, and the model with it: positions and masks are interpolated, a convolution
              stays as it is

Sizes are rounded to whole patches. A scale above 1 adds no detail, so it is measured natively alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.attention import NoAttentionMapError
from softbias.bounds import Count, Scale, Seed
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.models.convert import resize
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.inspect import unwrap
from softbias.models.spec import Spec
from softbias.probes.changes import compare, predicted, share_row
from softbias.probes.drawing import draw_points
from softbias.probes.features import patch_size
from softbias.probes.rows import Rows, labeled, not_measured
from softbias.probes.sampling import Sample, Source, sample

SCALES = (0.5, 0.75, 1.5, 2.0)


def resolution(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 1000,
    seed: Seed = 0,
    split: str = "test",
    scales: Sequence[Scale] = SCALES,
) -> Rows:
    """Rows per scale and entry. 1 + len(scales below 1) passes per image at its own size, and one at each scale."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    patch = patch_or_pixel(classifier, images.size)
    sizes = {scale: rounded(images.size, scale, patch) for scale in scales}
    blurs = {scale: functools.partial(blurred, size=size) for scale, size in sizes.items() if scale < 1}
    rows = [{**row, "entry": "blurred"} for row in compare(classifier, images, blurs, seed, "scale")]
    before = predicted(classifier, images, None, seed)
    for scale, size in sizes.items():
        try:
            resized_model = at_size(classifier, size)
        except NoNativeEntryError as error:
            rows.append({"measure": "consistency", "unit": "share", "scale": scale, **not_measured(error), "entry": "native"})
            continue
        rows += [{**row, "entry": "native"} for row in native_rows(resized_model, images, before, scale, size)]
    return labeled(classifier, "resolution", rows, data=images.name)


@torch.no_grad()
def native_rows(classifier: Classifier, images: Sample, before: Tensor, scale: float, size: tuple[int, int]) -> Rows:
    batches = images.batches(classifier.device)
    after = torch.cat([classifier.logits(resized(batch, size)).argmax(-1).cpu() for batch, _ in batches])
    rows = [share_row("consistency", "scale", scale, after == before)]
    if images.labels is not None:
        rows.append(share_row("accuracy", "scale", scale, after == images.labels))
    return rows


def patch_or_pixel(classifier: Classifier, size: tuple[int, int]) -> tuple[int, int]:
    """The size of a patch; a model without patches takes images of any size in pixels."""
    try:
        return patch_size(classifier.model, size)
    except NoAttentionMapError:
        return 1, 1


def rounded(size: tuple[int, int], scale: float, patch: tuple[int, int]) -> tuple[int, int]:
    """The nearest size of whole patches, two of them at least.

    >>> rounded((32, 32), 0.75, (4, 4)), rounded((32, 32), 0.7, (8, 8))
    ((24, 24), (24, 24))
    """
    height, width = (max(2, round(scale * side / one)) * one for side, one in zip(size, patch, strict=True))
    return height, width


def blurred(images: Tensor, _: torch.Generator | None = None, *, size: tuple[int, int]) -> Tensor:
    own = (int(images.shape[-2]), int(images.shape[-1]))
    return resized(resized(images, size), own)


def draw(rows: Rows, folder: Path) -> list[Path]:
    accuracies = [row for row in rows if row["measure"] == "accuracy" and row["scale"] != "none"]
    return draw_points(accuracies or rows, folder, "resolution", "entry", "scale", "accuracy" if accuracies else "consistency")


# How an image of another size enters a model

ENTRIES = ("resize", "native")  # the image is brought to the model's size, or the model to the image's


class NoNativeEntryError(NotMeasurableError):
    """The model cannot take images of another size."""


class AnySize(nn.Module):
    """A Hugging Face model with its positions interpolated to the image."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner.model(images, interpolate_pos_encoding=True).logits
        return logits


def at_size(classifier: Classifier, size: tuple[int, int]) -> Classifier:
    """The same model for images of another size."""
    model: Any = unwrap(classifier.model)
    if isinstance(getattr(model, "spec", None), Spec):
        try:
            with torch.random.fork_rng(devices=[]):  # the resized model is built with fresh weights first
                return classifier.with_model(resize(model, size))
        except SoftbiasError as error:  # such as a size that its patches do not divide
            raise NoNativeEntryError(f"{classifier.name} cannot be brought to {size[0]} × {size[1]} px: {error}") from error
    if isinstance(model, HuggingFaceClassifier):
        return classifier.with_model(AnySize(model))
    if hasattr(model, "set_input_size"):  # timm's transformers
        other = copy.deepcopy(model)
        other.set_input_size(img_size=size)
        return classifier.with_model(other)
    if hasattr(model, "patch_embed") and hasattr(model, "pos_embed"):
        raise NoNativeEntryError(f"{classifier.name} takes images of one size only")
    return classifier


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """# (B, 3, H, W) -> (B, 3, *size)"""
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


@torch.no_grad()
def logits_at(classifier: Classifier, images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Logits of images that are resized to `size` first, or stay as they are (None).  # (B, 3, H, W) in [0, 1] -> (B, K)"""
    images = images.to(classifier.device)
    return classifier.logits(images if size is None else resized(images, size)).cpu()
