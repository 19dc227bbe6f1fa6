"""Kernels that a machine sees for the first time are compiled while other things are made ready."""

from __future__ import annotations

import torch
from torch import nn

from softbias.attention.base import Attention
from softbias.kernels.launching import asking


def compile_ahead(model: nn.Module, images: int) -> None:
    """Start to compile, in threads, what the attention layers of this model need for a step with so many images.

    One layer of every kind is called on zeros, without starting its kernels; an operation that meets new shapes prepares its
    backward as well (`kernels.operation`). To be called under the autocast that the step will have. Elsewhere than on a GPU
    nothing is compiled, and nothing done.
    """
    seen = set()
    for layer in model.modules():
        if not isinstance(layer, Attention) or (device := layer.proj.weight.device).type != "cuda":
            continue
        kind = type(layer), layer.grid, layer.width, layer.heads
        if kind not in seen:
            seen.add(kind)
            with asking(), torch.enable_grad():
                layer(torch.zeros(images, len(layer.grid), layer.width, device=device))
