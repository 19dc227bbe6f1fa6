"""The mean penalty of an attention map that is never built.

    A = softmax(scale · Q Kᵀ),   l_b = 1/H Σ_h Σ_ij A_ij P_ij                                      r_i = Σ_j A_ij P_ij
    ∂l/∂S_ij = A_ij (P_ij − r_i) / H,   ∂l/∂Q = scale · (∂l/∂S) K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q

The gradient of an image is a fixed pair of arrays times one number, the gradient of the loss with respect to l_b. So a single
pass over the map gives l *and* the arrays, and backward multiplies. `recompute=True` keeps nothing instead and goes over the
map again in backward.

What it costs, at least, for B = 512, H = 12, N = 256, D = 43 in bfloat16 (ARViT at 256 px), one layer. Products: three of
N × N × D per head, 155 GFLOP with D padded to 64. Exponentials: N² per head, 403 million, 0.11 ms at 16 per clock and
multiprocessor. Memory: Q and K read, their gradients written, 541 MB, 0.13 ms at 4.2 TB/s; the float32 map that plain PyTorch
writes and reads several times has 1.6 GB. P (256 KB) is read from the second-level cache by every program, 1.6 GB in all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softbias import kernels
from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, planned
from softbias.kernels.tiles import Sizes, Tiles, block

TILES = {True: Tiles(size=32, warps=8, stages=2), False: Tiles(size=32, warps=8, stages=2)}  # with gradient, without
SMALL_TILES = TILES | {True: Tiles(size=16, warps=8, stages=2)}  # 90 KB of shared memory instead of 116


def attention_penalty(q: Tensor, k: Tensor, penalty: Tensor, scale: float, *, recompute: bool = False) -> Tensor:
    """One value per image: mean over heads of Σ softmax(scale · Q Kᵀ) ⊙ P, in float32.

    q and k are (B, H, N, D) with contiguous channels and any other strides, at most 256 × 64; penalty (N, N) takes no
    gradient. Entries of P that are zero drop their pair of tokens. Where the kernel is not `usable` on a GPU, the twin is run.
    """
    if q.is_cuda and not kernels.usable(q, q.shape[2], q.shape[3]):
        return plain_attention_penalty(q, k, penalty, scale)
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        return penalty_value(q, k, penalty, scale)
    if recompute:
        return penalty_recomputed(q, k, penalty, scale)
    return penalty_with_gradient(q, k, penalty, scale)[0]


def penalized(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and the value; what is computed from this q and k passes its gradient on together with that of the value.

    Used alone, `attention_penalty` scales its two arrays, and autograd adds them to the gradients of the layer's own attention:
    each array is read and written twice. Here both happen at once.
    """
    return Penalized.apply(q, k, penalty, scale)


class Penalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        value, dq, dk = penalty_with_gradient(q, k, penalty, scale)
        ctx.save_for_backward(dq, dk)
        return q.view_as(q), k.view_as(k), value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        *others, weights = gradients
        if torch.compiler.is_compiling():  # which fuses this by itself
            weights = weights[:, None, None, None]
            dq, dk = ((other + own * weights).to(own.dtype) for other, own in zip(others, ctx.saved_tensors, strict=True))
        else:
            dq, dk = (add_scaled(other, own, weights) for other, own in zip(others, ctx.saved_tensors, strict=True))
        return dq, dk, None, None


def plain_attention_penalty(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
    """The same in plain PyTorch, with the map in memory, in float32 or better."""
    maps = ((q * scale) @ k.mT).softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32))
    return torch.einsum("bhij,ij->b", maps, penalty.to(maps.dtype)) / q.shape[1]


def check(q: Tensor, k: Tensor, penalty: Tensor) -> None:
    tokens = q.shape[-2]
    if q.ndim != 4 or q.shape != k.shape or q.dtype != k.dtype or penalty.shape != (tokens, tokens):
        raise SoftbiasError(
            "attention_penalty takes q and k of one shape (B, H, N, D) and one type and a penalty (N, N), "
            f"but got {tuple(q.shape)} {q.dtype}, {tuple(k.shape)} {k.dtype} and {tuple(penalty.shape)}"
        )


@planned
def plan(
    shape: Sizes, q: Sizes, k: Sizes, dq: Sizes, scale: float, gradient: bool, weighted: bool, has_large_smem: bool
) -> Program:
    """For the shape of the queries, and the strides of these, the keys and the gradients."""
    from softbias.kernels.distance_program import penalty_program

    images, heads, tokens, channels = shape
    tiles = (TILES if has_large_smem else SMALL_TILES)[gradient].for_tokens(tokens)
    constants = {"tokens": tokens, "channels": channels, "WEIGHTED": weighted, "GRADIENT": gradient}
    constants |= {"TOKENS": block(tokens), "CHANNELS": block(channels), "BLOCK": min(tiles.size, block(tokens))}
    return Program(penalty_program, (images * heads,), tiles, (*q[:3], *k[:3], *dq[:3], scale, heads), constants)


def run(
    q: Tensor, k: Tensor, penalty: Tensor, scale: float, *, gradient: bool, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    check(q, k, penalty)
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    totals = q.new_empty(q.shape[:2], dtype=torch.float32)
    dq, dk = (gradient_like(q), gradient_like(k)) if gradient else (q, k)
    has_large_smem = not q.is_cuda or kernels.has_large_smem(q.device.index)
    program = plan(q.shape, q.stride(), k.stride(), dq.stride(), scale, gradient, weights is not None, has_large_smem)
    program(q, k, penalty.mT.contiguous(), totals if weights is None else weights.contiguous(), totals, dq, dk)
    return totals.mean(1), dq, dk


def gradient_like(x: Tensor) -> Tensor:
    """# (B, H, N, D), in memory as PyTorch's own attention lays out the gradients that these are added to

    That is (B, N, H, D), except where it has to pad the channels to a multiple of eight.
    """
    images, heads, tokens, channels = x.shape
    if channels % 8:
        return x.new_empty(images, heads, tokens, channels)
    return x.new_empty(images, tokens, heads, channels).transpose(1, 2)


@torch.library.custom_op("softbias::add_scaled", mutates_args=())
def add_scaled(other: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """other + own · weights[b], in float32 until it is written; laid out like `own`.  # (B, …), (B, …), (B,) -> (B, …)"""
    aligned = other if other.stride() == own.stride() else torch.empty_like(own).copy_(other)
    result = torch.empty_like(own)
    plan_adding(len(own), own[0].numel())(aligned, own, weights.contiguous(), result)
    return result


@planned
def plan_adding(images: int, each: int) -> Program:
    from softbias.kernels.distance_program import add_scaled_program

    tiles = Tiles(size=2048, warps=4, stages=1)
    return Program(add_scaled_program, (images, -(-each // tiles.size)), tiles, (each,), {"BLOCK": tiles.size})


@add_scaled.register_fake
def _(other, own, weights):
    return torch.empty_like(own)


@torch.library.custom_op("softbias::attention_penalty_value", mutates_args=())
def penalty_value(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
    return run(q, k, penalty, scale, gradient=False)[0]


@torch.library.custom_op("softbias::attention_penalty_with_gradient", mutates_args=())
def penalty_with_gradient(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return run(q, k, penalty, scale, gradient=True)


@torch.library.custom_op("softbias::attention_penalty_recomputed", mutates_args=())
def penalty_recomputed(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
    return run(q, k, penalty, scale, gradient=False)[0]


@torch.library.custom_op("softbias::attention_penalty_backward", mutates_args=())
def penalty_backward(weights: Tensor, q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return run(q, k, penalty, scale, gradient=True, weights=weights)[1:]


@penalty_value.register_fake
def _(q, k, penalty, scale):
    return q.new_empty(q.shape[0], dtype=torch.float32)


@penalty_recomputed.register_fake
def _(q, k, penalty, scale):
    return q.new_empty(q.shape[0], dtype=torch.float32)


@penalty_with_gradient.register_fake
def _(q, k, penalty, scale):
    return q.new_empty(q.shape[0], dtype=torch.float32), gradient_like(q), gradient_like(k)


@penalty_backward.register_fake
def _(weights, q, k, penalty, scale):
    return gradient_like(q), gradient_like(k)


def keep_gradient(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # else zeros as large as q and k are made for the two arrays
    ctx.save_for_backward(*output[1:])


def scale_gradient(ctx, weights, *_):
    if weights is None:
        return None, None, None, None
    weights = weights[:, None, None, None]  # float32, and so is the product until it is written
    dq, dk = (torch.mul(x, weights, out=torch.empty_like(x)) for x in ctx.saved_tensors)
    return dq, dk, None, None


def keep_inputs(ctx, inputs, output):
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def compute_gradient(ctx, weights):
    return *penalty_backward(weights, *ctx.saved_tensors, ctx.scale), None, None


penalty_with_gradient.register_autograd(scale_gradient, setup_context=keep_gradient)
penalty_recomputed.register_autograd(compute_gradient, setup_context=keep_inputs)
