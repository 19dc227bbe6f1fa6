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
from functools import lru_cache
from math import gcd

import torch
from torch import Tensor

from softbias import kernels
from softbias.kernels.operation import operation
from softbias.kernels.tiles import Tiles, block, launch

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


def check(anywhere: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int) -> None:
    if v.ndim != 4 or anywhere.shape != v.shape or anywhere.dtype != v.dtype:
        raise ValueError(
            "gated_mix takes content and values of one shape (B, H, N, D) and one type, "
            f"but got {tuple(anywhere.shape)} {anywhere.dtype} and {tuple(v.shape)} {v.dtype}"
        )
    _, heads, tokens, channels = v.shape
    if height * width != tokens or tokens > LONGEST:
        raise ValueError(f"gated_mix takes at most {LONGEST} tokens on a grid, but got {tokens} tokens on {height} × {width}")
    if channels % 8 or channels > WIDEST:
        raise ValueError(f"gated_mix takes a multiple of 8 channels per head, {WIDEST} at most, but got {channels}")
    if weight.shape != (heads, 3) or bias.shape != (heads,) or gate.shape != (heads,):
        raise ValueError(
            f"gated_mix takes weight ({heads}, 3), bias ({heads},) and gate ({heads},) for {heads} heads, "
            f"but got {tuple(weight.shape)}, {tuple(bias.shape)} and {tuple(gate.shape)}"
        )


def aligned(x: Tensor) -> Tensor:
    """Contiguous channels, every eighth of which is aligned."""
    *others, channels = x.stride()
    return x if channels == 1 and not any(stride % 8 for stride in others) else x.contiguous()


def eighths(x: Tensor) -> list[int]:
    return [stride // 8 for stride in x.stride()[:3]]


@lru_cache
def fitting(tiles: Tiles, tokens: int) -> Tiles:
    """With no more rows than there are tokens. Fewer rows need fewer warps, but Hopper's matrix units work with four."""
    rows = min(tiles.size, block(tokens))
    return replace(tiles, size=rows, warps=max(4, tiles.warps * rows // tiles.size))


def run_forward(
    anywhere: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """O and P."""
    from softbias.kernels.gated_program import map_program, mix_program

    check(anywhere, v, weight, bias, gate, height, width)
    anywhere, v = aligned(anywhere), aligned(v)
    images, heads, tokens, channels = v.shape
    out, maps = empty_results(v)
    rows = max(1, ROWS.size // block(tokens))
    launch(
        map_program,
        (-(-tokens // rows), heads),
        ROWS,
        (weight.contiguous(), maps),
        (),
        tokens=tokens,
        padded=maps.shape[-1],
        width=width,
        TOKENS=block(tokens),
        ROWS=rows,
    )
    tiles = fitting(MIX, tokens)
    launch(
        mix_program,
        (-(-tokens // tiles.size) * heads * -(-images * channels // tiles.other),),
        tiles,
        (anywhere, v, maps, gate, out),
        (*eighths(anywhere), *eighths(v), images),
        heads=heads,
        tokens=tokens,
        padded=maps.shape[-1],
        channels=channels,
        ROWS=tiles.size,
        COLUMNS=tiles.other,
        DEPTH=tiles.depth,
    )
    return out, maps


def run_backward(
    dout: Tensor, anywhere: Tensor, v: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of A, the values, w, the bias and λ."""
    from softbias.kernels.gated_program import pairs_program, parameters_program, scores_program, values_program

    danywhere, dv, dweight, dbias, dgate = empty_gradients(anywhere, v, weight, bias, gate)
    dout, anywhere, v, weight = aligned(dout), aligned(anywhere), aligned(v), weight.contiguous()
    images, heads, tokens, channels = v.shape
    shapes = {"heads": heads, "tokens": tokens, "padded": maps.shape[-1]}
    tiles = fitting(VALUES, tokens)
    each = -(-tokens // tiles.size) * -(-images * channels // tiles.other)  # programs of a head
    products = torch.empty(heads, each, dtype=torch.float32, device=v.device)
    launch(
        values_program,
        (each * heads,),
        tiles,
        (dout, anywhere, maps, gate, danywhere, dv, products),
        (*eighths(dout), *eighths(anywhere), *eighths(danywhere), images),
        channels=channels,
        ROWS=tiles.size,
        COLUMNS=tiles.other,
        DEPTH=tiles.depth,
        **shapes,
    )
    tiles = fitting(PAIRS, tokens)
    columns = min(tiles.other, block(tokens))
    pairs = -(-tokens // tiles.size) * -(-tokens // columns)
    share_of_batch = -(-images // max(1, PROGRAMS // (pairs * heads)))
    share_of_batch += -share_of_batch % (tiles.depth // gcd(tiles.depth, channels))  # a whole number of steps
    parts = torch.empty(-(-images // share_of_batch), *maps.shape, dtype=torch.float32, device=v.device)
    launch(
        pairs_program,
        (pairs, heads, len(parts)),
        tiles,
        (dout, v, parts),
        (*eighths(dout), *eighths(v), images, share_of_batch),
        channels=channels,
        ROWS=tiles.size,
        COLUMNS=columns,
        DEPTH=tiles.depth,
        **shapes,
    )
    at_once = 1 << (min(len(parts), 64) - 1).bit_length()
    size = max(1, 2 * ROWS.size // (block(tokens) * at_once))
    blocks = -(-tokens // size)
    rows = torch.empty(4, heads, blocks, dtype=torch.float32, device=v.device)
    launch(
        scores_program,
        (blocks, heads),
        ROWS,
        (parts, weight, rows),
        (len(parts),),
        width=width,
        TOKENS=block(tokens),
        ROWS=size,
        PARTS=min(at_once, max(1, 2 * ROWS.size // block(tokens))),
        **shapes,
    )
    launch(
        parameters_program,
        (heads,),
        ROWS,
        (products, rows, gate, dweight, dbias, dgate),
        (each, blocks),
        heads=heads,
        BLOCK=512,
    )
    return danywhere, dv, dweight, dbias, dgate


def empty_results(v: Tensor) -> tuple[Tensor, Tensor]:
    """O (B, N, H, D) and P (H, N, N and zeros up to a multiple of 16)"""
    images, heads, tokens, channels = v.shape
    return v.new_empty(images, tokens, heads, channels), v.new_empty(heads, tokens, tokens + -tokens % 16)


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
