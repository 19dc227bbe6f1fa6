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

from softbias.classifier import Classifier
from softbias.errors import SoftbiasError
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.inspect import unwrap
from softbias.models.resize import resize
from softbias.models.spec import Spec

ENTRIES = ("resize", "native")


class NoNativeEntryError(SoftbiasError):
    """The model cannot take pictures of another size."""


class AnySize(nn.Module):
    """A Hugging Face model with its positions interpolated to the picture."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner.model(images, interpolate_pos_encoding=True).logits


def at_size(classifier: Classifier, size: tuple[int, int]) -> Classifier:
    """The same model for pictures of another size, or a NoNativeEntryError that says why not."""
    model: Any = unwrap(classifier.model)
    if isinstance(getattr(model, "spec", None), Spec):
        try:
            return classifier.with_model(resize(model, size))
        except ValueError as error:  # such as a size that its patches do not divide
            raise NoNativeEntryError(f"{classifier.name} cannot be brought to {size[0]} × {size[1]} px: {error}") from error
    if isinstance(model, HuggingFaceClassifier):
        return classifier.with_model(AnySize(model))
    if hasattr(model, "set_input_size"):  # timm's transformers
        other = copy.deepcopy(model)
        other.set_input_size(img_size=size)
        return classifier.with_model(other)
    if hasattr(model, "patch_embed") and hasattr(model, "pos_embed"):
        raise NoNativeEntryError(f"{classifier.name} takes pictures of one size only")
    return classifier


def fitted(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Pictures brought to a size.  # (B, 3, H, W) -> (B, 3, *size)"""
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


@torch.no_grad()
def enter(classifier: Classifier, images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Logits of pictures, resized to `size` before, or as they are (None).  # (B, 3, H, W) in [0, 1] -> (B, K)"""
    images = images.to(classifier.device)
    return classifier.logits(images if size is None else fitted(images, size)).cpu()
