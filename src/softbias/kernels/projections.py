"""What kernels share that read queries, keys and values as one projection gives them, (B, N, 3, H, D)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softbias.kernels.tiles import Sizes


def with_contiguous_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_result(qkv: Tensor) -> Tensor:
    """(B, N, H, D)"""
    images, tokens, _, heads, channels = qkv.shape
    return qkv.new_empty(images, tokens, heads, channels)


def strides_of_result(shape: Sizes) -> Sizes:
    """Of what `empty_result` gives for a projection of this shape."""
    _, tokens, _, heads, channels = shape
    return tokens * heads * channels, heads * channels, channels, 1


def empty_gradient(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def empty_gradients(*inputs: Tensor) -> tuple[Any, ...]:
    return tuple(empty_gradient(x) for x in inputs)
