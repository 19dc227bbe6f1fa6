"""Kernels that a machine sees for the first time are compiled while other things are made ready."""

from __future__ import annotations

import torch
from torch import nn

from softbias.attention.full import Full
from softbias.attention.gated import Gated
from softbias.attention.masked import Masked
from softbias.kernels.launching import capture_launches

KINDS = (Full, Gated, Masked)  # which have kernels; a subclass may do anything when it is called, and is left alone


def compile_ahead(model: nn.Module, images: int) -> None:
    """Start to compile, in threads, what the attention layers of this model need for a step with so many images.

    One layer of every kind is called on zeros, without starting its kernels; an operation that meets new shapes prepares its
    backward as well (`kernels.operation`). To be called under the autocast that the step will have. Elsewhere than on a GPU
    nothing is compiled, and nothing done.
    """
    seen = set()
    for layer in model.modules():
        if not isinstance(layer, KINDS) or type(layer) not in KINDS:
            continue
        device = layer.proj.weight.device
        kind = type(layer), layer.grid, layer.width, layer.heads
        if device.type == "cuda" and kind not in seen:
            seen.add(kind)
            with capture_launches(), torch.enable_grad():
                layer(torch.zeros(images, len(layer.grid), layer.width, device=device))
