"""What a model costs: parameters, and multiply-accumulates for one image."""

from __future__ import annotations

import torch
from torch import nn


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def count_macs(model: nn.Module, channels: int, height: int, width: int) -> int:
    """Multiply-accumulates of matrix products and convolutions for one image; build the model on "meta" and it is instant."""
    like = next(model.parameters())
    images = torch.empty(1, channels, height, width, device=like.device, dtype=like.dtype)
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    training = model.training
    with FlopCounterMode(display=False) as counter:
        model.eval()(images)
    model.train(training)
    return counter.get_total_flops() // 2
