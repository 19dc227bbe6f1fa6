"""How a picture of another size enters a model, which decides what a probe with larger pictures finds.

resize   the picture is brought to the model's own size; the default of most users
native   the model is brought to the picture's size: positions and masks are interpolated, a convolution stays as it is
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.inspection import unwrap
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.resize import resize
from softbias.models.spec import Spec
from softbias.subject import Subject

ENTRIES = ("resize", "native")


class NoNativeEntryError(ValueError):
    """The model cannot take pictures of another size."""


class AnySize(nn.Module):
    """A Hugging Face model with its positions interpolated to the picture."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner.model(images, interpolate_pos_encoding=True).logits


def at_size(subject: Subject, size: tuple[int, int]) -> Subject:
    """The same model for pictures of another size, or a NoNativeEntryError that says why not."""
    model: Any = unwrap(subject.model)
    if isinstance(getattr(model, "spec", None), Spec):
        try:
            return subject.with_model(resize(model, size))
        except ValueError as error:  # such as a size that its patches do not divide
            raise NoNativeEntryError(f"{subject.name} cannot be brought to {size[0]} × {size[1]} px: {error}") from error
    if isinstance(model, HuggingFaceClassifier):
        return subject.with_model(AnySize(model))
    if hasattr(model, "set_input_size"):  # timm's transformers
        other = copy.deepcopy(model)
        other.set_input_size(img_size=size)
        return subject.with_model(other)
    if hasattr(model, "patch_embed") and hasattr(model, "pos_embed"):
        raise NoNativeEntryError(f"{subject.name} takes pictures of one size only")
    return subject


def fitted(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Pictures brought to a size.  # (B, 3, H, W) -> (B, 3, *size)"""
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


@torch.no_grad()
def enter(subject: Subject, images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Logits of pictures, resized to `size` before, or as they are (None).  # (B, 3, H, W) in [0, 1] -> (B, K)"""
    images = images.to(subject.device)
    return subject.logits(images if size is None else fitted(images, size)).cpu()
