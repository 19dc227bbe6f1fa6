"""Content and place mixed by a gate (ConViT), with a map of places that all images share.

    O_b = (1 − g) A_b + g P V_b        A = softmax(Q Kᵀ / √D) V, from PyTorch's own attention;   g = σ(λ), one per head
    P = softmax_j(w · r(δ_ij)),   r(δ) = (δ_column, δ_row, ‖δ‖²)

    with F = ∂l/∂O and G = Σ_b F_b V_bᵀ, one map per head:
    ∂l/∂A = (1 − g) F,   ∂l/∂V = g Pᵀ F,   ∂l/∂λ = g (1 − g) (⟨G, P⟩ − ⟨F, A⟩)
    ∂l/∂w = g Σ_ij P_ij (G_ij − Σ_k P_ik G_ik) r(δ_ij),   and that of a constant in the scores is zero

Kept for backward are A and V, which the attention before keeps anyway, and P, a map per head; neither O nor P V. Forward is two
programs: P from its three numbers per head, and per head one product of P with the values of all images side by side, whose
result is mixed with A before it is written. Backward is four: ∂l/∂V with ∂l/∂A and ⟨F, A⟩; G in parts of the batch; a few
numbers per row of it; and their sums, the gradients of w and λ. Nothing is added atomically: the same bits every time.

What it costs, at least, in one layer in bfloat16 with B = 256, N = 196 and D = 48, at 800 TFLOP/s and 4.3 TB/s:

                H = 4 (ConViT-Ti)                               H = 16 (ConViT-B)
    forward     3.8 GFLOP, 5 µs; A, V and O, 58 MB, 13 µs       15 GFLOP, 19 µs; 231 MB, 54 µs
    backward    7.6 GFLOP, 9 µs; F, A, V and two               30 GFLOP, 38 µs; 385 MB, 90 µs
                gradients, 96 MB, 22 µs

So memory decides. Backward reads F a second time, 19 MB for H = 4, unless the cache still has it, and writes and reads the
parts of G, 10 MB each way. `P @ V` in plain PyTorch first writes P once per image, 79 MB, and keeps that.

P is a product of a map over rows and one over columns, which would need a seventh of the arithmetic; but arithmetic is not what
takes the time. One kernel for content and place together would save A's way through memory (twice 19 MB), and would have to be
as good an attention kernel as cuDNN's, forward and backward.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from softbias import kernels
from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, planned
from softbias.kernels.operation import operation
from softbias.kernels.tiles import Sizes, Tiles, block, padded

LONGEST = 1024  # tokens: a row of P is kept in registers
WIDEST = 128  # channels per head
MIX = Tiles(size=128, other=128, depth=32, warps=8, stages=3)
VALUES = Tiles(size=128, other=128, depth=32, warps=8, stages=3)
PAIRS = Tiles(size=128, other=128, depth=64, warps=8, stages=3)
ROWS = Tiles(size=2048, warps=4, stages=1)  # entries of P in one program
PROGRAMS = 264  # about so many for G: two for each of the 132 multiprocessors of an H200


def gated_mix(anywhere: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int) -> Tensor:
    """A and values (B, H, N, D) of one type on a grid of height × width = N ≤ 1024 tokens, D ≤ 128 a multiple of 8, with any
    strides; w (H, 3), bias (H,) and λ (H,). The bias changes nothing and gets a gradient of zeros.

    Returns (B, N, H, D), which a projection reads as it lies.
    """
    return mix(anywhere, v, weight, bias, gate, height, width)[0]


def fits(anywhere: Tensor, v: Tensor) -> bool:
    """Whether `gated_mix` takes these; else there is `plain_gated_mix`."""
    tokens, channels = v.shape[-2:]
    return (
        channels % 8 == 0 and anywhere.dtype == v.dtype and kernels.usable(v, tokens, channels, longest=LONGEST, widest=WIDEST)
    )


def plain_gated_mix(anywhere: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int) -> Tensor:
    """The same in plain PyTorch."""
    maps = place_map(weight, bias, height, width).to(v.dtype)
    nearby = torch.einsum("hij,bhjd->bhid", maps, v)
    return torch.lerp(anywhere, nearby, gate.sigmoid().to(v.dtype)[:, None, None]).transpose(1, 2)


def place_map(weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    """P by its definition.  # (H, 3), (H,) -> (H, N, N)"""
    places = torch.arange(height * width, device=weight.device)
    rows, columns = places // width, places % width
    down, across = rows[None, :] - rows[:, None], columns[None, :] - columns[:, None]
    encoding = torch.stack([across, down, across.square() + down.square()]).to(weight.dtype)
    return (torch.einsum("hr,rij->hij", weight, encoding) + bias[:, None, None]).softmax(-1)


def check(anywhere: Sizes, v: Sizes, types: tuple[torch.dtype, ...], parameters: tuple[Sizes, ...], grid: Sizes) -> None:
    if len(v) != 4 or anywhere != v or len(set(types)) > 1:
        raise SoftbiasError(
            "gated_mix takes content and values of one shape (B, H, N, D) and one type, "
            f"but got {tuple(anywhere)} {types[0]} and {tuple(v)} {types[1]}"
        )
    _, heads, tokens, channels = v
    if grid[0] * grid[1] != tokens or tokens > LONGEST:
        raise SoftbiasError(
            f"gated_mix takes at most {LONGEST} tokens on a grid, but got {tokens} tokens on {grid[0]} × {grid[1]}"
        )
    if channels % 8 or channels > WIDEST:
        raise SoftbiasError(f"gated_mix takes a multiple of 8 channels per head, {WIDEST} at most, but got {channels}")
    if parameters != ((heads, 3), (heads,), (heads,)):
        raise SoftbiasError(
            f"gated_mix takes weight ({heads}, 3), bias ({heads},) and gate ({heads},) for {heads} heads, "
            f"but got {', '.join(str(tuple(shape)) for shape in parameters)}"
        )


def aligned(x: Tensor) -> Tensor:
    """Contiguous channels, every eighth of which is aligned."""
    *others, channel = x.stride()
    for stride in others:
        if stride % 8:
            return x.contiguous()
    return x if channel == 1 else x.contiguous()


def eighths(strides: Sizes) -> list[int]:
    return [stride // 8 for stride in strides[:3]]


def fitting(tiles: Tiles, tokens: int) -> Tiles:
    """With no more rows than there are tokens. Fewer rows need fewer warps, but Hopper's matrix units work with four."""
    rows = min(tiles.size, block(tokens))
    return replace(tiles, size=rows, warps=max(4, tiles.warps * rows // tiles.size))


class Forward(NamedTuple):
    maps: Program
    mix: Program


@planned
def plan_forward(
    shape: Sizes,
    anywhere: Sizes,
    v: Sizes,
    types: tuple[torch.dtype, torch.dtype],
    of_anywhere: Sizes,
    parameters: tuple[Sizes, Sizes, Sizes],
    height: int,
    width: int,
) -> Forward:
    """For the shape of the values, the strides of A and of the values, their types, and the shapes of all else."""
    from softbias.kernels.gated_program import map_program, mix_program

    check(of_anywhere, shape, types, parameters, (height, width))
    images, heads, tokens, channels = shape
    rows = max(1, ROWS.size // block(tokens))
    shapes = {"tokens": tokens, "padded": padded(tokens)}
    maps = Program(
        map_program, (-(-tokens // rows), heads), ROWS, (), shapes | {"width": width, "TOKENS": block(tokens), "ROWS": rows}
    )
    tiles = fitting(MIX, tokens)
    mix = Program(
        mix_program,
        (-(-tokens // tiles.size) * heads * -(-images * channels // tiles.other),),
        tiles,
        (*eighths(anywhere), *eighths(v), images),
        shapes | {"heads": heads, "channels": channels, "ROWS": tiles.size, "COLUMNS": tiles.other, "DEPTH": tiles.depth},
    )
    return Forward(maps, mix)


def forward_of(anywhere: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int) -> Forward:
    types, parameters = (anywhere.dtype, v.dtype), (weight.shape, bias.shape, gate.shape)
    return plan_forward(v.shape, anywhere.stride(), v.stride(), types, anywhere.shape, parameters, height, width)


def run_forward(
    anywhere: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """O and P."""
    anywhere, v = aligned(anywhere), aligned(v)
    plan = forward_of(anywhere, v, weight, bias, gate, height, width)
    out, maps = empty_results(v)
    plan.maps(weight.contiguous(), maps)
    plan.mix(anywhere, v, maps, gate, out)
    return out, maps


class Backward(NamedTuple):
    values: Program
    pairs: Program
    scores: Program
    parameters: Program
    products: Sizes  # shapes of what they hand on
    parts: Sizes
    rows: Sizes


@planned
def plan_backward(shape: Sizes, dout: Sizes, anywhere: Sizes, v: Sizes, danywhere: Sizes, width: int) -> Backward:
    """For the shape of the values, and the strides of the gradient, A, the values, and the gradient of A."""
    from softbias.kernels.gated_program import pairs_program, parameters_program, scores_program, values_program

    images, heads, tokens, channels = shape
    shapes = {"heads": heads, "tokens": tokens, "padded": padded(tokens)}
    tiles = fitting(VALUES, tokens)
    each = -(-tokens // tiles.size) * -(-images * channels // tiles.other)  # programs of a head
    values = Program(
        values_program,
        (each * heads,),
        tiles,
        (*eighths(dout), *eighths(anywhere), *eighths(danywhere), images),
        shapes | {"channels": channels, "ROWS": tiles.size, "COLUMNS": tiles.other, "DEPTH": tiles.depth},
    )
    tiles = fitting(PAIRS, tokens)
    columns = min(tiles.other, block(tokens))
    places = -(-tokens // tiles.size) * -(-tokens // columns)
    share_of_batch = -(-images // max(1, PROGRAMS // (places * heads)))
    share_of_batch += -share_of_batch % (tiles.depth // gcd(tiles.depth, channels))  # a whole number of steps
    parts = -(-images // share_of_batch)
    pairs = Program(
        pairs_program,
        (places, heads, parts),
        tiles,
        (*eighths(dout), *eighths(v), images, share_of_batch),
        shapes | {"channels": channels, "ROWS": tiles.size, "COLUMNS": columns, "DEPTH": tiles.depth},
    )
    at_once = 1 << (min(parts, 64) - 1).bit_length()
    size = max(1, 2 * ROWS.size // (block(tokens) * at_once))
    blocks = -(-tokens // size)
    at_once = min(at_once, max(1, 2 * ROWS.size // block(tokens)))
    scores = Program(
        scores_program,
        (blocks, heads),
        ROWS,
        (parts,),
        shapes | {"width": width, "TOKENS": block(tokens), "ROWS": size, "PARTS": at_once},
    )
    parameters = Program(parameters_program, (heads,), ROWS, (each, blocks), {"heads": heads, "BLOCK": 512})
    return Backward(
        values, pairs, scores, parameters, (heads, each), (parts, heads, tokens, padded(tokens)), (4, heads, blocks)
    )


def run_backward(
    dout: Tensor, anywhere: Tensor, v: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of A, the values, w, the bias and λ."""
    danywhere, dv, dweight, dbias, dgate = empty_gradients(anywhere, v, weight, bias, gate)
    dout, anywhere, v, weight = aligned(dout), aligned(anywhere), aligned(v), weight.contiguous()
    plan = plan_backward(v.shape, dout.stride(), anywhere.stride(), v.stride(), danywhere.stride(), width)
    products, parts, rows = (
        torch.empty(shape, dtype=torch.float32, device=v.device) for shape in (plan.products, plan.parts, plan.rows)
    )
    plan.values(dout, anywhere, maps, gate, danywhere, dv, products)
    plan.pairs(dout, v, parts)
    plan.scores(parts, weight, rows)
    plan.parameters(products, rows, gate, dweight, dbias, dgate)
    return danywhere, dv, dweight, dbias, dgate


def empty_results(v: Tensor) -> tuple[Tensor, Tensor]:
    """O (B, N, H, D) and P (H, N, N and zeros up to a multiple of 16)"""
    images, heads, tokens, channels = v.shape
    return v.new_empty(images, tokens, heads, channels), v.new_empty(heads, tokens, padded(tokens))


def empty_gradients(anywhere: Tensor, v: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A's laid out like A, as PyTorch's attention wants it; that of the values like those which the attention adds to it."""
    images, heads, tokens, channels = v.shape
    danywhere = torch.empty_like(anywhere)
    if danywhere.stride(-1) != 1:
        danywhere = torch.empty_like(anywhere, memory_format=torch.contiguous_format)
    dweight, dbias, dgate = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in parameters)
    return danywhere, v.new_empty(images, tokens, heads, channels).transpose(1, 2), dweight, dbias, dgate


def keep(ctx, inputs, output):
    anywhere, v, weight, bias, gate, _, ctx.width = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(anywhere, v, output[1], weight, bias, gate)


def differentiate(ctx, backward, dout, _):
    if dout is None:
        return (None,) * 7
    return *backward(dout, *ctx.saved_tensors, ctx.width), None, None


mix = operation(
    "gated_mix",
    run_forward,
    run_backward,
    like_forward=lambda anywhere, v, weight, bias, gate, height, width: empty_results(v),
    like_backward=lambda dout, anywhere, v, maps, weight, bias, gate, width: empty_gradients(anywhere, v, weight, bias, gate),
    keep=keep,
    differentiate=differentiate,
)
