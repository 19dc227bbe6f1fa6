"""Gated attention (ConViT) among few tokens: content and place in one map, which fits into the registers of one program.

    M = (1 − g) A + g P,   O = M V        A = softmax(scale · Q Kᵀ),   P = softmax_j(w · r(δ_ij)),   g = σ(λ), one per head

    with F = ∂l/∂O and D = F Vᵀ, which is ∂l/∂M:
    ∂l/∂V = Mᵀ F,   ∂l/∂S = (1 − g) A ⊙ (D − rowsum(A ⊙ D)),   from which ∂l/∂Q and ∂l/∂K as ever
    ∂l/∂λ = g (1 − g) Σ_b ⟨D, P − A⟩,   ∂l/∂w = g Σ_b Σ_ij P_ij (D_ij − Σ_k P_ik D_ik) r(δ_ij)

The last two are linear in D, so that every image gives four numbers per head, and nothing of the size of a map is summed over
the batch (`gated` does that, where maps do not fit). P follows from three numbers per head and is computed wherever it is
needed. Kept for backward is the projection alone. See `few` for the rest. On an H200, for B = 512, H = 4, N = 64, D = 48
(`convit_tiny` at 32 px): 29 µs forward and 52 backward, where PyTorch's attention with `gated` takes 59 and 119.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from softbias import kernels
from softbias.errors import SoftbiasError
from softbias.kernels.gated import plain_gated_mix
from softbias.kernels.launching import Program, planned
from softbias.kernels.operation import operation
from softbias.kernels.projections import empty_gradients, empty_result, strides_of_result, with_contiguous_channels
from softbias.kernels.tiles import Sizes, Tiles, block

LONGEST = 64  # tokens
FORWARD = Tiles(size=64, warps=4, stages=1)
BACKWARD = Tiles(size=64, warps=4, stages=1)
PARAMETERS = Tiles(size=512, warps=4, stages=1)


def gated_few_attention(qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int) -> Tensor:
    """A projection (B, N, 3, H, D) of at most 64 tokens on a grid of this width and 64 channels per head; w (H, 3), bias (H,),
    which changes nothing, and λ (H,). Returns (B, N, H, D)."""
    return attention(qkv, weight, bias, gate, scale, width)


def fits(qkv: Tensor) -> bool:
    """Whether `gated_few_attention` takes these."""
    return kernels.usable(qkv, qkv.shape[1], qkv.shape[-1], longest=LONGEST)


def plain_gated_few_attention(qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int) -> Tensor:
    """The same in plain PyTorch, with the maps in memory."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    anywhere = ((q * scale) @ k.mT).softmax(-1) @ v
    return plain_gated_mix(anywhere, v, weight, bias, gate, qkv.shape[1] // width, width)


def check(qkv: Sizes, parameters: tuple[Sizes, ...], width: int) -> None:
    heads = qkv[3] if len(qkv) == 5 else 0
    if len(qkv) != 5 or qkv[2] != 3 or qkv[1] > LONGEST or qkv[1] % width or parameters != ((heads, 3), (heads,), (heads,)):
        raise SoftbiasError(
            f"gated_few_attention takes a projection (B, N, 3, H, D) of at most {LONGEST} tokens on a grid, weight (H, 3), "
            f"bias (H,) and gate (H,), but got {', '.join(str(tuple(shape)) for shape in (qkv, *parameters))}, width={width}"
        )


def sizes(shape: Sizes, width: int) -> dict[str, int]:
    _, tokens, _, heads, channels = shape
    fixed = {"heads": heads, "tokens": tokens, "channels": channels, "width": width}
    return fixed | {"TOKENS": block(tokens), "CHANNELS": block(channels)}


@planned
def plan_forward(shape: Sizes, qkv: Sizes, parameters: tuple[Sizes, ...], scale: float, width: int) -> Program:
    """For the shape and the strides of the projection, and the shapes of weight, bias and gate."""
    from softbias.kernels.gated_short_seq_program import forward_program

    check(shape, parameters, width)
    numbers = (*qkv[:4], *strides_of_result(shape)[:3], scale)
    return Program(forward_program, (shape[0] * shape[3],), FORWARD, numbers, sizes(shape, width))


class Backward(NamedTuple):
    projection: Program
    parameters: Program


@planned
def plan_backward(shape: Sizes, qkv: Sizes, dout: Sizes, dqkv: Sizes, scale: float, width: int) -> Backward:
    """For the shape of the projection, and the strides of it, of the gradient of O and of its own."""
    from softbias.kernels.gated_short_seq_program import backward_program, parameters_program

    images, heads = shape[0], shape[3]
    numbers = (*qkv[:4], *dout[:3], *dqkv[:4], scale, images)
    return Backward(
        Program(backward_program, (images * heads,), BACKWARD, numbers, sizes(shape, width)),
        Program(parameters_program, (heads,), PARAMETERS, (images,), {"heads": heads, "BLOCK": PARAMETERS.size}),
    )


def run_forward(qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int) -> Tensor:
    qkv = with_contiguous_channels(qkv)
    plan = plan_forward(qkv.shape, qkv.stride(), (weight.shape, bias.shape, gate.shape), scale, width)
    out = empty_result(qkv)
    plan(qkv, weight.contiguous(), gate, out)
    return out


def run_backward(
    dout: Tensor, qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the projection, w, the bias and λ."""
    dout, qkv = with_contiguous_channels(dout), with_contiguous_channels(qkv)
    dqkv, dweight, dbias, dgate = empty_gradients(qkv, weight, bias, gate)
    plan = plan_backward(qkv.shape, qkv.stride(), dout.stride(), dqkv.stride(), scale, width)
    sums = torch.empty(4, qkv.shape[3], qkv.shape[0], dtype=torch.float32, device=qkv.device)
    plan.projection(qkv, weight.contiguous(), gate, dout, dqkv, sums)
    plan.parameters(sums, gate, dweight, dbias, dgate)
    return dqkv, dweight, dbias, dgate


def keep(ctx, inputs, output):
    qkv, weight, bias, gate, ctx.scale, ctx.width = inputs
    ctx.save_for_backward(qkv, weight, bias, gate)


def differentiate(ctx, backward, dout):
    return *backward(dout, *ctx.saved_tensors, ctx.scale, ctx.width), None, None


attention = operation(
    "gated_few_attention",
    run_forward,
    run_backward,
    like_forward=lambda qkv, *others: empty_result(qkv),
    like_backward=lambda dout, qkv, weight, bias, gate, *others: empty_gradients(qkv, weight, bias, gate),
    keep=keep,
    differentiate=differentiate,
)
