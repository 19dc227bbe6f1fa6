"""The mean penalty of an attention map that is never built.

    A = softmax(scale · Q Kᵀ),   l_b = 1/H Σ_h Σ_ij A_ij P_ij                                      r_i = Σ_j A_ij P_ij
    ∂l/∂S_ij = A_ij (P_ij − r_i) / H,   ∂l/∂Q = scale · (∂l/∂S) K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q

The gradient of an image is a fixed pair of arrays times one number, the gradient of the loss with respect to l_b. So a single
pass over the map gives l *and* the arrays, and backward multiplies. `recompute=True` keeps nothing instead and walks over the
map again in backward.

The least possible work for B = 512, H = 12, N = 256, D = 43 in bfloat16 (ARViT at 256 px), one layer. Products: three of
N × N × D per head, 155 GFLOP with D padded to 64. Exponentials: N² per head, 403 million, 0.11 ms at 16 per clock and
multiprocessor. Memory: Q and K read, their gradients written, 541 MB, 0.13 ms at 4.2 TB/s; the float32 map that plain PyTorch
writes and reads several times has 1.6 GB. P (256 KB) is read from the second-level cache by every program, 1.6 GB in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, Sizes, Tiles, block, has_large_smem, planned
from softbias.kernels.operation import with_contiguous_channels


@dataclass(frozen=True, eq=False)
class PenaltyTiles:
    value: Tiles = Tiles(size=32, warps=8, stages=2)
    gradient: Tiles = Tiles(size=32, warps=8, stages=2)
    small_gradient: Tiles = Tiles(size=16, warps=8, stages=2)  # 90 KB of shared memory instead of 116


TILES = PenaltyTiles()


def attention_penalty(q: Tensor, k: Tensor, penalty: Tensor, scale: float, *, recompute: bool = False) -> Tensor:
    """One value per image: mean over heads of Σ softmax(scale · Q Kᵀ) ⊙ P, in float32.

    q and k are (B, H, N, D) with contiguous channels and any other strides, at most 256 × 64; penalty (N, N) takes no
    gradient. Entries of P that are zero drop their pair of tokens.
    """
    value: Tensor
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        value = penalty_value(q, k, penalty, scale)
    elif recompute:
        value = penalty_recomputed(q, k, penalty, scale)
    else:
        value = penalty_with_gradient(q, k, penalty, scale)[0]
    return value


def penalized(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and the value. The gradients of results computed from the returned q and k are passed on together with that of the
    value.

    With `attention_penalty`, backward scales two arrays, and autograd adds them to the gradients of the layer's own attention:
    each array is read and written twice. Here both happen at once.
    """
    queries, keys, value = Penalized.apply(q, k, penalty, scale)
    return queries, keys, value


class Penalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        value, dq, dk = penalty_with_gradient(q, k, penalty, scale)
        ctx.save_for_backward(dq, dk)
        return q.view_as(q), k.view_as(k), value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        *others, weights = gradients
        if torch.compiler.is_compiling():  # the compiler fuses this by itself
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
    shape: Sizes,
    q: Sizes,
    k: Sizes,
    dq: Sizes,
    scale: float,
    gradient: bool,
    weighted: bool,
    large_smem: bool,
    all_tiles: PenaltyTiles,
) -> Program:
    """For the shape of the queries, and the strides of the queries, the keys and the gradients."""
    from softbias.kernels.distance_program import penalty_program

    images, heads, tokens, channels = shape
    with_gradient = all_tiles.gradient if large_smem else all_tiles.small_gradient
    tiles = (with_gradient if gradient else all_tiles.value).for_tokens(tokens)
    constants = {"tokens": tokens, "channels": channels, "WEIGHTED": weighted, "GRADIENT": gradient}
    constants |= {"TOKENS": block(tokens), "CHANNELS": block(channels), "BLOCK": min(tiles.size, block(tokens))}
    return Program(penalty_program, (images * heads,), tiles, (*q[:3], *k[:3], *dq[:3], scale, heads), constants)


def run(
    q: Tensor,
    k: Tensor,
    penalty: Tensor,
    scale: float,
    *,
    gradient: bool,
    weights: Tensor | None = None,
    tiles: PenaltyTiles = TILES,
) -> tuple[Tensor, Tensor, Tensor]:
    """The value of every image and, if asked for, its gradient, multiplied by weights if these are given."""
    check(q, k, penalty)
    q, k = with_contiguous_channels(q), with_contiguous_channels(k)
    totals = q.new_empty(q.shape[:2], dtype=torch.float32)
    dq, dk = (gradient_like(q), gradient_like(k)) if gradient else (q, k)
    large_smem = not q.is_cuda or has_large_smem(q.device.index)
    strides = q.stride(), k.stride(), dq.stride()
    program = plan(q.shape, *strides, scale, gradient, weights is not None, large_smem, tiles)
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
def like_scaled(other: Tensor, own: Tensor, weights: Tensor) -> Tensor:
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
@penalty_recomputed.register_fake
def like_value(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> Tensor:
    return q.new_empty(q.shape[0], dtype=torch.float32)


@penalty_with_gradient.register_fake
def like_value_with_gradient(q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return like_value(q, k, penalty, scale), gradient_like(q), gradient_like(k)


@penalty_backward.register_fake
def like_gradients(weights: Tensor, q: Tensor, k: Tensor, penalty: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return gradient_like(q), gradient_like(k)


def keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # else zeros as large as q and k are made for the two arrays
    ctx.save_for_backward(*output[1:])


def scale_gradient(ctx: Any, weights: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if weights is None:
        return None, None, None, None
    weights = weights[:, None, None, None]  # float32, and so is the product until it is written
    dq, dk = (torch.mul(x, weights, out=torch.empty_like(x)) for x in ctx.saved_tensors)
    return dq, dk, None, None


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def compute_gradient(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
    return *penalty_backward(weights, *ctx.saved_tensors, ctx.scale), None, None


penalty_with_gradient.register_autograd(scale_gradient, setup_context=keep_gradient)
penalty_recomputed.register_autograd(compute_gradient, setup_context=keep_inputs)
