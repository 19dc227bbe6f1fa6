"""Whether a model is compiled for a run, when its recipe leaves that open.

Compiling takes the first run of a shape about 50 s, and later ones 7 s for tracing and loading; then every token of every step
costs less. On one H200, without and with compiling, in training:

    deit_tiny      32 px, steps as CUDA graphs    29,000    59,700 images/s    0.27 µs saved per token
    convit_tiny    224 px, plain steps             7,200    11,800             0.28
    convit_base    224 px, plain steps             2,800     3,250             0.25

So it pays from some 190 million tokens on: 60 epochs of CIFAR-10 at 32 px (64 tokens), or 95 of 10,000 pictures at 224 px
(196 tokens).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from softbias.errors import SoftbiasError
from softbias.kernels import triton_api
from softbias.models.inspect import unwrap
from softbias.training.recipe import Recipe

SECONDS = 50.0  # for compiling, the first time
SAVED = 0.27e-6  # seconds per token
PIXELS_PER_TOKEN = 256  # for a model without tokens: patches of 16


def compiled(
    model: nn.Module, recipe: Recipe, device: torch.device, pictures: int, img_size: tuple[int, int]
) -> tuple[nn.Module, bool]:
    """The model as a run that sees so many pictures calls it, and whether it is compiled."""
    pays = device.type == "cuda" and pictures * tokens(model, img_size) * SAVED > SECONDS
    if recipe.compile == "off" or (recipe.compile == "auto" and not pays):
        return model, False
    if device.type == "cuda" and not triton_api.works():
        if recipe.compile == "on":
            raise SoftbiasError(f"compile='on' does not work here: {triton_api.ADVICE}")
        return model, False
    return torch.compile(model), True  # type: ignore[return-value]


def tokens(model: nn.Module, img_size: tuple[int, int]) -> int:
    """Patches of one picture, in our transformers and in timm's; in other models, as many as patches of 16 would be."""
    grid = getattr(getattr(unwrap(model), "patch_embed", None), "grid_size", None)
    return math.prod(grid) if grid else img_size[0] * img_size[1] // PIXELS_PER_TOKEN
