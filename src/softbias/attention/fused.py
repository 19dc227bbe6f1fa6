"""softmax(scale · Q Kᵀ + mask) V by PyTorch's fused kernels, chosen so that gradients are sound.

On Hopper PyTorch prefers cuDNN's kernel. Its backward gives NaN for the queries where the number of tokens is 64 modulo 128 and
all scores of a row are very negative (pytorch/pytorch#196678): on one H200 with torch 2.11, 64 tokens and scores of −200 showed
it, and it is the likely reason why 2 of 18,720 steps of a training had no usable gradient. 64 tokens are what a picture of
32 px in patches of 4 has. The memory-efficient kernel is sound there, and faster at 64 tokens: 173 µs instead of 275 for
forward and backward of 1,024 images of 4 × 48.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float) -> Tensor:
    """# (B, H, N, D), (B, H, M, D), (B, H, M, E) -> (B, H, N, E)"""
    unsound = q.is_cuda and k.shape[-2] % 128 == 64 and torch.is_grad_enabled()
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]) if unsound else nullcontext():
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
