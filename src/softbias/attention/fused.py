"""softmax(scale · Q Kᵀ + mask) V by PyTorch's fused kernels, chosen so that gradients are sound.

On Hopper PyTorch prefers cuDNN's kernel. Its backward gives NaN for the queries where the number of tokens is 64 modulo 128 and
all scores of a row are very negative (pytorch/pytorch#196678): on one H200 with torch 2.11, 64 tokens and scores of −200 showed
it, and it is the likely reason why 2 of 18,720 steps of a training had no usable gradient. 64 tokens are what a picture of
32 px in patches of 4 has. The memory-efficient kernel is sound there, and faster at 64 tokens: 173 µs instead of 275 for
forward and backward of 1,024 images of 4 × 48.

That kernel is called by its own name where it can be. Choosing it by `sdpa_kernel` is the same, but a graph with that in it is
compiled anew in every process: AOTAutograd does not cache it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float) -> Tensor:
    """# (B, H, N, D), (B, H, M, D), (B, H, M, E) -> (B, H, N, E)"""
    if not (q.is_cuda and k.shape[-2] % 128 == 64 and torch.is_grad_enabled()):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    if mask is None and taken_by_name(q, k, v):
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scale)[0]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def taken_by_name(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the memory-efficient kernel takes these as they are: half precision, and channels that fill 16 bytes."""
    halves = q.dtype in (torch.bfloat16, torch.float16) and q.dtype == k.dtype == v.dtype
    aligned = all(x.shape[-1] % 8 == 0 and x.stride(-1) == 1 for x in (q, k, v))
    return halves and aligned
