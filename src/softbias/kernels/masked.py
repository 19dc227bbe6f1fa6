"""Masked attention normalized by the Frobenius norm (IBiT), without a map in memory, from the factors of the mask.

    W = aᵀ b,   M[i, j] = W[i, c_ij]             c_ij = (j − i) mod P in the block of the patches, j elsewhere: see `rolling`
    Y = (scale · Q Kᵀ) ⊙ M,   O = Y V / (n + ε),   n = ‖Y‖_F, one number per image and head

    with G = ∂l/∂O and t = ⟨G, O⟩:
    ∂l/∂Y = (G Vᵀ − t/n · Y) / (n + ε)          t/n · Y is what the norm adds
    ∂l/∂V = Yᵀ G / (n + ε),   ∂l/∂S = M ⊙ ∂l/∂Y,   ∂l/∂Q = scale · ∂l/∂S K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q
    ∂l/∂M = Σ_b S ⊙ ∂l/∂Y                        S = scale · Q Kᵀ
    ∂l/∂a[ρ, i] = Σ_j ∂l/∂M[i, j] b[ρ, c_ij],   ∂l/∂b[ρ, c] = Σ_{i, j: c_ij = c} ∂l/∂M[i, j] a[ρ, i]

Forward is two programs: M and its transpose from the factors, and the attention. Kept for backward are the inputs, M, O and n.
Backward is three: the projection's gradient; ∂l/∂M in parts of the batch, every row rolled back as it is written; and the
factors' gradients, which sum the parts. Among few tokens (see `few`) the first two are one, which forms S and G Vᵀ only once:
it owns a head of several images, and keeps its part of ∂l/∂M. Nothing is added atomically: the same bits every time. W is
summed in float32 and M rounded once to the type of the projection; a product of the factors under autocast rounds the factors,
and W.

What it costs, at least, for B = 256, H = 3, N = 197, D = 64 in bfloat16 (`ibit_tiny`), one layer. Products, padded to 256
tokens: forward two of N × N × D, 13 GFLOP, backward seven, 45 GFLOP (two of them to form S and G Vᵀ again for ∂l/∂M).
Memory: forward Q, K, V and O, 77 MB, 0.02 ms; backward reads five such arrays and writes three, 155 MB, 0.04 ms. Plain PyTorch
writes and reads maps of 60 MB some fifteen times. The mask itself is small, 0.25 MB and as much transposed, 0.7 MFLOP per head
at rank 9; the parts of its gradient, 5.4 MB, are written once and read twice. But made by PyTorch it takes some thirty launches
a layer, forward and backward, and a small model waits for its host to make them.

For B = 512 and N = 65 (32 px) the two programs of the backward took 68 and 39 µs on an H200, as one they take 79.

The mask's low rank does not help further: (Q Kᵀ ⊙ a bᵀ) V = diag(a) Q (Kᵀ diag(b) V) would need no map at all, but costs D per
rank where a map costs N, and rank 9 × 64 > 197; and the roll turns M into N shifted rows, so that M itself has full rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from softbias import kernels
from softbias.errors import SoftbiasError
from softbias.kernels import short_seq as few
from softbias.kernels.launching import Program, planned
from softbias.kernels.operation import operation
from softbias.kernels.projections import empty_gradients, empty_result, with_contiguous_channels
from softbias.kernels.tiles import Sizes, Tiles, block, padded

UNROLL = Tiles(size=32, warps=4, stages=1)
FORWARD = Tiles(size=32, warps=8, stages=2)
BACKWARD = Tiles(size=16, warps=8, stages=2)
BACKWARD_OF_FEW = Tiles(size=264, warps=4, stages=2)  # programs: two for each of the 132 multiprocessors of an H200
MASK = Tiles(size=64, other=64, warps=8, stages=2)
PROGRAMS = 528  # at least so many for ∂l/∂M: four for each multiprocessor
FACTORS = Tiles(size=8192, other=8, warps=8, stages=1)  # entries of the parts at a time; columns, a sector of memory
ROLLS = ("paper", "released", "none")
RANKS = 16  # for one program of the factors' gradients


def masked_attention(qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> Tensor:
    """Queries, keys and values as one projection gives them, (B, N, 3, H, D), and factors (H, r, N) of a mask for all images.

    At most 256 tokens, `prefix` of them before the patches, of 64 channels per head; any rank. Returns (B, N, H, D).
    """
    return attention(qkv, a, b, scale, prefix, roll)[0]


def fits(qkv: Tensor) -> bool:
    """Whether `masked_attention` takes these. From 129 tokens on its backward needs 106 KB of shared memory at least."""
    tokens = qkv.shape[1]
    return kernels.usable(qkv, tokens, qkv.shape[-1]) and (tokens <= 128 or kernels.has_large_smem(qkv.device.index))


def plain_masked_attention(qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> Tensor:
    """The same in plain PyTorch, with the map in memory."""
    from softbias.kernels.rolling import unroll  # its package holds the layer, which needs this module

    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    y = ((q * scale) @ k.mT) * unroll(a.mT @ b, prefix, roll).to(q.dtype)
    norm = torch.linalg.vector_norm(y, dim=(-2, -1), keepdim=True, dtype=torch.promote_types(y.dtype, torch.float32))
    return ((y @ v) / (norm + 1e-8).to(v.dtype)).transpose(1, 2)


def check(qkv: Sizes, a: Sizes, b: Sizes, prefix: int, roll: str) -> None:
    if len(qkv) != 5 or qkv[2] != 3 or len(a) != 3 or a != b or a[::2] != qkv[3:0:-2]:
        raise SoftbiasError(
            "masked_attention takes a projection (B, N, 3, H, D) and two factors (H, r, N), "
            f"but got {', '.join(str(tuple(shape)) for shape in (qkv, a, b))}"
        )
    if roll not in ROLLS or not 0 <= prefix < qkv[1]:
        raise SoftbiasError(
            f"masked_attention takes a roll out of {', '.join(ROLLS)} and a prefix of fewer than all {qkv[1]} tokens, "
            f"but got roll={roll!r} and prefix={prefix}"
        )


def layout(a: Sizes, prefix: int, roll: str) -> dict[str, int]:
    """How the programs see a mask: without a roll, all of it is prefix; the released code reads a prefix too far left."""
    heads, ranks, tokens = a
    return {
        "ranks": ranks,
        "heads": heads,
        "tokens": tokens,
        "padded": padded(tokens),
        "prefix": tokens if roll == "none" else prefix,
        "shift": prefix if roll == "released" else 0,
    }


def unrolling(of_mask: dict[str, int]) -> Program:
    """M and its transpose out of the factors; given the `layout`."""
    from softbias.kernels.factors_program import unroll_program

    tiles = (-(-of_mask["padded"] // UNROLL.size)) ** 2
    return Program(unroll_program, (tiles, of_mask["heads"]), UNROLL, (), of_mask | {"BLOCK": UNROLL.size})


def summing(of_mask: dict[str, int], parts: int) -> Program:
    """The factors' gradients out of that of M, which comes in so many parts, rolled back."""
    from softbias.kernels.factors_program import factors_program

    tokens = of_mask["tokens"]
    at_once = min(1 << (parts - 1).bit_length(), FACTORS.size // block(tokens))
    rows = FACTORS.size // (block(tokens) * at_once)
    return Program(
        factors_program,
        (-(-tokens // rows) + -(-tokens // FACTORS.other), of_mask["heads"], -(-of_mask["ranks"] // RANKS)),
        FACTORS,
        (parts,),
        of_mask
        | {
            "TOKENS": block(tokens),
            "ROWS": rows,
            "COLUMNS": FACTORS.other,
            "PARTS_OF_ROWS": at_once,
            "PARTS_OF_COLUMNS": max(1, min(at_once, FACTORS.size // (block(tokens) * FACTORS.other))),
        },
    )


class Forward(NamedTuple):
    unroll: Program
    attention: Program


@planned
def plan_forward(qkv: Sizes, strides: Sizes, out: Sizes, a: Sizes, b: Sizes, scale: float, prefix: int, roll: str) -> Forward:
    """For the shapes of the inputs, and the strides of the projection and of O."""
    from softbias.kernels.masked_program import forward_program

    check(qkv, a, b, prefix, roll)
    images, tokens, _, heads, channels = qkv
    of_mask = layout(a, prefix, roll)
    shapes = {name: of_mask[name] for name in ("heads", "tokens", "padded")}
    shapes |= {"channels": channels, "CHANNELS": block(channels), "TOKENS": block(tokens)}
    attention = Program(
        forward_program,
        (images * heads,),
        FORWARD.for_tokens(tokens),
        (*strides[:4], *out[:3], scale),
        shapes | {"BLOCK": min(FORWARD.size, block(tokens))},
    )
    return Forward(unrolling(of_mask), attention)


def run_forward(qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> tuple[Tensor, Tensor, Tensor]:
    """O, n, and M with its transpose."""
    qkv = with_contiguous_channels(qkv)
    out, norms, masks = empty_results(qkv)
    plan = plan_forward(qkv.shape, qkv.stride(), out.stride(), a.shape, b.shape, scale, prefix, roll)
    plan.unroll(a.contiguous(), b.contiguous(), masks)
    plan.attention(qkv, masks, out, norms)
    return out, norms, masks


class Backward(NamedTuple):
    projection: Program
    mask: Program | None  # which the first does as well, among few tokens
    factors: Program
    parts: Sizes  # the shape of what they hand on to the last


@planned
def plan_backward(
    qkv: Sizes, strides: Sizes, out: Sizes, dout: Sizes, dqkv: Sizes, a: Sizes, scale: float, prefix: int, roll: str
) -> Backward:
    """For the shapes of the projection and the factors, and the strides of the projection, O and their gradients."""
    images, tokens, _, heads, channels = qkv
    of_mask = layout(a, prefix, roll)
    numbers = (*strides[:4], *out[:3], *dout[:3], *dqkv[:4], scale)
    if tokens <= few.LONGEST:
        from softbias.kernels.masked_short_seq_program import backward_program as backward_of_few

        each = -(-images * heads // BACKWARD_OF_FEW.size)
        parts = -(-images // each)
        constants = few.sizes(tokens, heads, channels) | {name: of_mask[name] for name in ("padded", "prefix")}
        both = Program(backward_of_few, (heads, parts), BACKWARD_OF_FEW, (*numbers, images, each), constants)
        return Backward(both, None, summing(of_mask, parts), (parts, heads, tokens, padded(tokens)))

    from softbias.kernels.masked_program import backward_program, mask_program

    shapes = {name: of_mask[name] for name in ("heads", "tokens", "padded")}
    shapes |= {"channels": channels, "CHANNELS": block(channels)}
    projection = Program(
        backward_program,
        (images * heads,),
        BACKWARD.for_tokens(tokens),
        numbers,
        shapes | {"TOKENS": block(tokens), "BLOCK": min(BACKWARD.size, block(tokens))},
    )
    rows = min(32 if 64 < tokens <= 96 else MASK.size, block(tokens))  # 65 tokens: 3 × 32 rows, not 2 × 64
    columns = min(MASK.other, block(tokens))
    tiles = -(-tokens // rows) * -(-tokens // columns)
    share_of_batch = -(-images // min(images, -(-PROGRAMS // (tiles * heads))))
    parts = -(-images // share_of_batch)
    mask = Program(
        mask_program,
        (tiles, heads, parts),
        MASK,
        (*strides[:4], *dout[:3], scale, images, share_of_batch),
        shapes | {"prefix": of_mask["prefix"], "ROWS": rows, "COLUMNS": columns},
    )
    return Backward(projection, mask, summing(of_mask, parts), (parts, heads, tokens, padded(tokens)))


def run_backward(
    dout: Tensor,
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    norms: Tensor,
    masks: Tensor,
    scale: float,
    prefix: int,
    roll: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the projection and of the factors."""
    qkv, dout = with_contiguous_channels(qkv), with_contiguous_channels(dout)
    dqkv, da, db = empty_gradients(qkv, a, b)
    plan = plan_backward(qkv.shape, qkv.stride(), out.stride(), dout.stride(), dqkv.stride(), a.shape, scale, prefix, roll)
    parts = torch.empty(plan.parts, dtype=torch.float32, device=masks.device)
    if plan.mask is None:
        plan.projection(qkv, masks, out, norms, dout, dqkv, parts)
    else:
        ratios = torch.empty_like(norms)
        plan.projection(qkv, masks, out, norms, dout, dqkv, ratios)
        plan.mask(qkv, masks, norms, ratios, dout, parts)
    plan.factors(parts, a.contiguous(), b.contiguous(), da, db)
    return dqkv, da, db


def empty_results(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """O (B, N, H, D), n (B, H), and M and its transpose (2, H, N, N and zeros up to a multiple of 16)"""
    images, heads = qkv.shape[0], qkv.shape[3]
    return empty_result(qkv), qkv.new_empty(images, heads, dtype=torch.float32), empty_masks(qkv)


def empty_masks(qkv: Tensor) -> Tensor:
    tokens, heads = qkv.shape[1], qkv.shape[3]
    return qkv.new_empty(2, heads, tokens, padded(tokens))


def keep(ctx, inputs, output):
    qkv, a, b, *ctx.others = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(qkv, a, b, *output)


def differentiate(ctx, backward, dout, *_):
    if dout is None:
        return (None,) * 6
    return *backward(dout, *ctx.saved_tensors, *ctx.others), None, None, None


attention = operation(
    "masked_attention",
    run_forward,
    run_backward,
    like_forward=lambda qkv, *others: empty_results(qkv),
    like_backward=lambda dout, qkv, a, b, *others: empty_gradients(qkv, a, b),
    keep=keep,
    differentiate=differentiate,
)
