"""Softmax attention among few tokens, whose whole map fits into the registers of one program.

    P = softmax(scale · Q Kᵀ),   O = P V

    with F = ∂l/∂O and t_i = Σ_j P_ij ⟨F_i, V_j⟩:
    ∂l/∂V = Pᵀ F,   ∂l/∂S_ij = P_ij (⟨F_i, V_j⟩ − t_i),   ∂l/∂Q = scale · (∂l/∂S) K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q

A picture of 32 px in patches of 4 has 64 tokens, or 65 with a class token. Kernels made for long sequences walk over such a map
in pieces, keep a sum per row and the output for backward, and start four programs there; a map of 64 × 64 needs none of that.
Kept for backward is the projection alone: P is computed again, and t comes from P itself. The gradients of queries, keys and
values are written side by side, as the projection's backward reads them; apart, they would be copied once more.

65 is one more than a power of two, and a tile of 128 × 128 would be three quarters empty. So the first token stands beside a
tile of 64 × 64: its row and its column are vectors, which need no matrix units.

What it costs, at least, for B = 512, H = 3, N = 65, D = 64 in bfloat16 (`deit_tiny` at 32 px), one layer, at 4.2 TB/s: forward
reads three arrays of 12.8 MB and writes one, 51 MB, 12 µs; backward reads four and writes three, 89 MB, 21 µs. Products: 1.6
and 4 GFLOP, 2 and 5 µs. Measured on an H200: 31 and 61 µs, where cuDNN's kernels and the copy of the gradients take 38 and 122.
"""

from __future__ import annotations

from torch import Tensor

from softbias import kernels
from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, planned
from softbias.kernels.operation import operation
from softbias.kernels.projections import empty_gradient, empty_result, strides_of_result, with_contiguous_channels
from softbias.kernels.tiles import Sizes, Tiles, block

LONGEST = 65  # tokens
FORWARD = Tiles(size=64, warps=4, stages=1)
BACKWARD = Tiles(size=64, warps=4, stages=1)


def few_attention(qkv: Tensor, scale: float) -> Tensor:
    """Queries, keys and values as one projection gives them, (B, N, 3, H, D), at most 65 tokens of 64 channels per head.

    Returns (B, N, H, D).
    """
    return attention(qkv, scale)


def fits(qkv: Tensor) -> bool:
    """Whether `few_attention` takes these."""
    return kernels.usable(qkv, qkv.shape[1], qkv.shape[-1], longest=LONGEST)


def plain_few_attention(qkv: Tensor, scale: float) -> Tensor:
    """The same in plain PyTorch, with the map in memory."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return (((q * scale) @ k.mT).softmax(-1) @ v).transpose(1, 2)


def check(qkv: Sizes) -> None:
    if len(qkv) != 5 or qkv[2] != 3 or qkv[1] > LONGEST:
        raise SoftbiasError(
            f"few_attention takes a projection (B, N, 3, H, D) of at most {LONGEST} tokens, but got {tuple(qkv)}"
        )


def sizes(tokens: int, heads: int, channels: int) -> dict[str, int]:
    """One token stands beside the tile where there is one more than a power of two."""
    beside = int(tokens > 16 and block(tokens - 1) == tokens - 1)
    return {
        "heads": heads,
        "tokens": tokens,
        "channels": channels,
        "BESIDE": beside,
        "TOKENS": block(tokens - beside),
        "CHANNELS": block(channels),
    }


@planned
def plan_forward(shape: Sizes, qkv: Sizes, scale: float) -> Program:
    """For the shape and the strides of the projection."""
    from softbias.kernels.short_seq_program import forward_program

    check(shape)
    images, tokens, _, heads, channels = shape
    numbers = (*qkv[:4], *strides_of_result(shape)[:3], scale)
    return Program(forward_program, (images * heads,), FORWARD, numbers, sizes(tokens, heads, channels))


@planned
def plan_backward(shape: Sizes, qkv: Sizes, dout: Sizes, dqkv: Sizes, scale: float) -> Program:
    """For the shape of the projection, and the strides of it, of the gradient of O and of its own."""
    from softbias.kernels.short_seq_program import backward_program

    images, tokens, _, heads, channels = shape
    numbers = (*qkv[:4], *dout[:3], *dqkv[:4], scale)
    return Program(backward_program, (images * heads,), BACKWARD, numbers, sizes(tokens, heads, channels))


def run_forward(qkv: Tensor, scale: float) -> Tensor:
    qkv = with_contiguous_channels(qkv)
    plan = plan_forward(qkv.shape, qkv.stride(), scale)
    out = empty_result(qkv)
    plan(qkv, out)
    return out


def run_backward(dout: Tensor, qkv: Tensor, scale: float) -> Tensor:
    dout, qkv = with_contiguous_channels(dout), with_contiguous_channels(qkv)
    dqkv = empty_gradient(qkv)
    plan_backward(qkv.shape, qkv.stride(), dout.stride(), dqkv.stride(), scale)(qkv, dout, dqkv)
    return dqkv


def keep(ctx, inputs, output):
    qkv, ctx.scale = inputs
    ctx.save_for_backward(qkv)


def differentiate(ctx, backward, dout):
    return backward(dout, *ctx.saved_tensors, ctx.scale), None


attention = operation(
    "few_attention",
    run_forward,
    run_backward,
    like_forward=lambda qkv, scale: empty_result(qkv),
    like_backward=lambda dout, qkv, scale: empty_gradient(qkv),
    keep=keep,
    differentiate=differentiate,
)
