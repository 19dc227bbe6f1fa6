"""Which program serves a call of a layer.

A layer hands its tensors to one of the functions here and gets a fused program of ours, to be called with these tensors, or
None; then the layer computes the same in plain PyTorch. `dot_product_attention` chooses among PyTorch's own kernels.

Our programs for attention take half precision, on a GPU with bfloat16 in its matrix units, up to a number of tokens and
channels. In float32 they would need three passes of the matrix units, or none; there PyTorch is as good, and obeys
`torch.backends`. A program without products of matrices takes float32, too, and any size. An exported program should run
without softbias, so it gets plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from softbias.kernels import depthwise, distance, gated, masked, short_seq, triton_api
from softbias.kernels.launching import has_large_smem
from softbias.kernels.torch_api import constant_when_compiled, exporting, memory_efficient_attention

HALF = (torch.bfloat16, torch.float16)
SHORT_ON_CPU = 256  # tokens
Fused = Callable[..., Tensor]

_enabled = True
_recent: dict[int, bool] = {}  # by the device's number


@contextmanager
def disabled() -> Iterator[None]:
    """No fused program of ours inside, to compare with; a compiled model is compiled again."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


@constant_when_compiled
def recent(index: int) -> bool:
    """Whether the device is Ampere or later, with bfloat16 in the matrix units and shared memory for most of our tiles, and
    Triton works."""
    if index not in _recent:
        new = torch.version.hip is None and torch.cuda.get_device_capability(index) >= (8, 0)
        _recent[index] = new and triton_api.works()
    return _recent[index]


def available(tensor: Tensor, types: tuple[torch.dtype, ...]) -> bool:
    """Whether our programs run where this tensor is, and its type is one of these."""
    if not (_enabled and triton_api.INSTALLED and tensor.is_cuda) or exporting():
        return False
    return tensor.dtype in types and recent(tensor.device.index)


def usable(tensor: Tensor, tokens: int, channels: int, *, longest: int = 256, widest: int = 64) -> bool:
    """Whether our programs take a tensor of this kind, with this number of tokens and of channels per head. Most keep whole
    rows of a map in registers, which limits the tokens to `longest`."""
    return tokens <= longest and channels <= widest and available(tensor, HALF)


def softmax_attention(qkv: Tensor) -> Fused | None:
    """program(qkv, scale) for packed queries, keys and values.  # (B, N, 3, H, D) -> (B, N, H, D)"""
    if usable(qkv, qkv.shape[1], qkv.shape[-1], longest=short_seq.LONGEST):
        return short_seq.short_seq_attention
    return None


def gated_attention(qkv: Tensor) -> Fused | None:
    """program(qkv, weight, bias, gate, scale, grid width): content and position.  # (B, N, 3, H, D) -> (B, N, H, D)"""
    if usable(qkv, qkv.shape[1], qkv.shape[-1], longest=short_seq.LONGEST_GATED):
        return short_seq.gated_short_seq_attention
    return None


def gated_mix(content_out: Tensor, v: Tensor) -> Fused | None:
    """program(content_out, v, weight, bias, gate, grid height, width): position added to the result of content.

    # 2 × (B, H, N, D) -> (B, N, H, D)
    """
    tokens, channels = v.shape[-2:]
    if channels % 8 or content_out.dtype != v.dtype:
        return None
    return gated.gated_mix if usable(v, tokens, channels, longest=gated.LONGEST, widest=gated.WIDEST) else None


def masked_attention(qkv: Tensor) -> Fused | None:
    """program(qkv, a, b, scale, prefix, roll), normalized by the Frobenius norm.  # (B, N, 3, H, D) -> (B, N, H, D)

    From 129 tokens on, its backward needs at least 106 KB of shared memory.
    """
    tokens = qkv.shape[1]
    if usable(qkv, tokens, qkv.shape[-1]) and (tokens <= 128 or has_large_smem(qkv.device.index)):
        return masked.masked_attention
    return None


def attention_penalty(q: Tensor) -> Fused | None:
    """program(q, k, penalty, scale): the mean penalty of a map.  # 2 × (B, H, N, D), (N, N) -> (B,)"""
    return distance.attention_penalty if usable(q, q.shape[2], q.shape[3]) else None


def penalized(q: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """program(q, k, penalty, scale): q and k to go on with, and the mean penalty; see `distance.penalized`."""
    return distance.penalized if usable(q, q.shape[2], q.shape[3]) else None


def depthwise_gelu(tokens: Tensor) -> Fused | None:
    """program(x, shift, weight, bias, height, width): a depth-wise convolution between two GELUs.  # (B, N, C) -> (B, N, C)

    Ask with the tokens before the linear layer that makes x; autocast may give x another of the types.
    """
    return depthwise.depthwise_gelu if available(tokens, (*HALF, torch.float32)) else None


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """drop(softmax(scale · Q Kᵀ + mask)) V by PyTorch's fused kernels, chosen so that gradients are sound.

    On Hopper PyTorch prefers cuDNN's kernel. Its backward gives NaN for the queries where the number of tokens is 64 modulo 128
    and all scores of a row are very negative (pytorch/pytorch#196678, seen with torch 2.11 on an H200). 64 is the number of
    tokens of an image of 32 px in patches of 4. The memory-efficient kernel is sound there, and faster at 64 tokens.

    On a CPU PyTorch's kernel is slow in bf16, above all backward. For short sequences three plain operations take a quarter to
    a half of its time (results/finetuning.md), and a map fits into the cache.

    # (B, H, N, D), (B, H, M, D), (B, H, M, E) -> (B, H, N, E)
    """
    plain = mask is None and not dropout
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and plain and k.shape[-2] <= SHORT_ON_CPU:
        return (q * scale @ k.mT).softmax(-1) @ v
    if not (q.is_cuda and k.shape[-2] % 128 == 64 and torch.is_grad_enabled()):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    if plain and taken_by_name(q, k, v):
        return memory_efficient_attention(q, k, v, scale)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)


def taken_by_name(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the memory-efficient kernel takes these as they are: half precision, and channels that fill 16 bytes."""
    halves = q.dtype in HALF and q.dtype == k.dtype == v.dtype
    aligned = all(x.shape[-1] % 8 == 0 and x.stride(-1) == 1 for x in (q, k, v))
    return halves and aligned
