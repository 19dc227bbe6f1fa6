"""Content and position mixed by a gate (ConViT), with a map of positions that all images share.

    O_b = (1 − g) A_b + g P V_b        A = softmax(Q Kᵀ / √D) V, from PyTorch's own attention;   g = σ(λ), one per head
    P = softmax_j(w · r(δ_ij)),   r(δ) = (δ_column, δ_row, ‖δ‖²)

    with F = ∂l/∂O and G = Σ_b F_b V_bᵀ, one map per head:
    ∂l/∂A = (1 − g) F,   ∂l/∂V = g Pᵀ F,   ∂l/∂λ = g (1 − g) (⟨G, P⟩ − ⟨F, A⟩)
    ∂l/∂w = g Σ_ij P_ij (G_ij − Σ_k P_ik G_ik) r(δ_ij),   and the gradient of a constant in the scores is zero

For backward we keep A and V, which the attention before keeps anyway, and P, a map per head; neither O nor P V is kept. Forward
is two programs: P from its three numbers per head, and per head one product of P with the values of all images side by side,
whose result is mixed with A before it is written. Backward is four: ∂l/∂V with ∂l/∂A and ⟨F, A⟩; G in parts of the batch; four
numbers per block of its rows; and their sums, the gradients of w and λ. Nothing is added atomically: the same bits every time.

The least possible time of one layer in bfloat16 with B = 256, N = 196 and D = 48, at 800 TFLOP/s and 4.3 TB/s:

                H = 4 (ConViT-Ti)                               H = 16 (ConViT-B)
    forward     3.8 GFLOP, 5 µs; A, V and O, 58 MB, 13 µs       15 GFLOP, 19 µs; 231 MB, 54 µs
    backward    7.6 GFLOP, 9 µs; F, A, V and two               30 GFLOP, 38 µs; 385 MB, 90 µs
                gradients, 96 MB, 22 µs

So memory decides. Backward reads F a second time, 19 MB for H = 4, unless the cache still has it, and writes and reads the
parts of G, 10 MB each way. `P @ V` in plain PyTorch first writes P once per image, 79 MB, and keeps that.

P is a product of a map over rows and one over columns, which would need a seventh of the arithmetic; but arithmetic does not
decide. One kernel for content and position together would save A's way through memory (twice 19 MB), and would have to be as
good an attention kernel as cuDNN's, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, Sizes, Tiles, block, padded, planned
from softbias.kernels.operation import Kernel, Run, operation

LONGEST = 1024  # tokens: a row of P is kept in registers
WIDEST = 128  # channels per head


class GatedForward(NamedTuple):
    maps: Program
    mix: Program


class GatedBackward(NamedTuple):
    values: Program
    pairs: Program
    scores: Program
    parameters: Program
    products: Sizes  # shapes of the arrays that they hand on
    parts: Sizes
    rows: Sizes


@dataclass(frozen=True, eq=False)
class GatedMix(Kernel):
    """forward(content_out, v, weight, bias, gate, height, width) returns O and P."""

    mix: Tiles = Tiles(size=128, other=128, depth=32, warps=8, stages=3)
    values: Tiles = Tiles(size=128, other=128, depth=32, warps=8, stages=3)
    pairs: Tiles = Tiles(size=128, other=128, depth=64, warps=8, stages=3)
    rows: Tiles = Tiles(size=2048, warps=4, stages=1)  # entries of P in one program
    programs: int = 264  # about as many for G: two for each of the 132 multiprocessors of an H200

    @planned
    def plan_forward(
        self,
        shape: Sizes,
        content_out: Sizes,
        v: Sizes,
        types: tuple[torch.dtype, torch.dtype],
        of_content: Sizes,
        parameters: tuple[Sizes, Sizes, Sizes],
        height: int,
        width: int,
    ) -> GatedForward:
        """For the shape of the values, the strides of A and of the values, their types, and the other shapes."""
        from softbias.kernels.gated_program import map_program, mix_program

        check(of_content, shape, types, parameters, (height, width))
        images, heads, tokens, channels = shape
        rows = max(1, self.rows.size // block(tokens))
        shapes = {"tokens": tokens, "padded": padded(tokens)}
        of_maps = shapes | {"width": width, "TOKENS": block(tokens), "ROWS": rows}
        maps = Program(map_program, (-(-tokens // rows), heads), self.rows, (), of_maps)
        tiles = fitting(self.mix, tokens)
        mix = Program(
            mix_program,
            (-(-tokens // tiles.size) * heads * -(-images * channels // tiles.other),),
            tiles,
            (*eighths(content_out), *eighths(v), images),
            shapes | {"heads": heads, "channels": channels, "ROWS": tiles.size, "COLUMNS": tiles.other, "DEPTH": tiles.depth},
        )
        return GatedForward(maps, mix)

    @planned
    def plan_backward(
        self, shape: Sizes, dout: Sizes, content_out: Sizes, v: Sizes, dcontent_out: Sizes, width: int
    ) -> GatedBackward:
        """For the shape of the values, and the strides of the gradient, A, the values, and the gradient of A."""
        from softbias.kernels.gated_program import pairs_program, parameters_program, scores_program, values_program

        images, heads, tokens, channels = shape
        shapes = {"heads": heads, "tokens": tokens, "padded": padded(tokens)}
        tiles = fitting(self.values, tokens)
        each = -(-tokens // tiles.size) * -(-images * channels // tiles.other)  # programs of a head
        values = Program(
            values_program,
            (each * heads,),
            tiles,
            (*eighths(dout), *eighths(content_out), *eighths(dcontent_out), images),
            shapes | {"channels": channels, "ROWS": tiles.size, "COLUMNS": tiles.other, "DEPTH": tiles.depth},
        )
        tiles = fitting(self.pairs, tokens)
        columns = min(tiles.other, block(tokens))
        tiles_of_map = -(-tokens // tiles.size) * -(-tokens // columns)
        share_of_batch = -(-images // max(1, self.programs // (tiles_of_map * heads)))
        share_of_batch += -share_of_batch % (tiles.depth // gcd(tiles.depth, channels))  # a whole number of steps
        parts = -(-images // share_of_batch)
        pairs = Program(
            pairs_program,
            (tiles_of_map, heads, parts),
            tiles,
            (*eighths(dout), *eighths(v), images, share_of_batch),
            shapes | {"channels": channels, "ROWS": tiles.size, "COLUMNS": columns, "DEPTH": tiles.depth},
        )
        at_once = 1 << (min(parts, 64) - 1).bit_length()
        size = max(1, 2 * self.rows.size // (block(tokens) * at_once))
        blocks = -(-tokens // size)
        at_once = min(at_once, max(1, 2 * self.rows.size // block(tokens)))
        of_scores = shapes | {"width": width, "TOKENS": block(tokens), "ROWS": size, "PARTS": at_once}
        scores = Program(scores_program, (blocks, heads), self.rows, (parts,), of_scores)
        parameters = Program(parameters_program, (heads,), self.rows, (each, blocks), {"heads": heads, "BLOCK": 512})
        handed_on = (heads, each), (parts, heads, tokens, padded(tokens)), (4, heads, blocks)
        return GatedBackward(values, pairs, scores, parameters, *handed_on)

    def forward(
        self, content_out: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int
    ) -> tuple[Tensor, Tensor]:
        content_out, v = aligned(content_out), aligned(v)
        types, parameters = (content_out.dtype, v.dtype), (weight.shape, bias.shape, gate.shape)
        plan = self.plan_forward(v.shape, content_out.stride(), v.stride(), types, content_out.shape, parameters, height, width)
        out, maps = empty_results(v)
        plan.maps(weight.contiguous(), maps)
        plan.mix(content_out, v, maps, gate, out)
        return out, maps

    def backward(
        self,
        dout: Tensor,
        content_out: Tensor,
        v: Tensor,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        gate: Tensor,
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The gradients of A, the values, w, the bias and λ."""
        dcontent_out, dv, dweight, dbias, dgate = empty_gradients(content_out, v, weight, bias, gate)
        dout, content_out, v, weight = aligned(dout), aligned(content_out), aligned(v), weight.contiguous()
        plan = self.plan_backward(v.shape, dout.stride(), content_out.stride(), v.stride(), dcontent_out.stride(), width)
        products, parts, rows = (
            torch.empty(shape, dtype=torch.float32, device=v.device) for shape in (plan.products, plan.parts, plan.rows)
        )
        plan.values(dout, content_out, maps, gate, dcontent_out, dv, products)
        plan.pairs(dout, v, parts)
        plan.scores(parts, weight, rows)
        plan.parameters(products, rows, gate, dweight, dbias, dgate)
        return dcontent_out, dv, dweight, dbias, dgate

    def like_forward(self, content_out: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        return empty_results(v)

    def like_backward(self, dout: Tensor, content_out: Tensor, v: Tensor, maps: Tensor, *others: Any) -> Any:
        return empty_gradients(content_out, v, *others[:3])

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        content_out, v, weight, bias, gate, _, ctx.width = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(content_out, v, output[1], weight, bias, gate)

    def differentiate(self, ctx: Any, backward: Run, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:
            return (None,) * 7
        return *backward(gradients[0], *ctx.saved_tensors, ctx.width), None, None


mix = operation("gated_mix", GatedMix())


def gated_mix(content_out: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int) -> Tensor:
    """A and values (B, H, N, D) of one type on a grid of height × width = N ≤ 1024 tokens, D ≤ 128 a multiple of 8, with any
    strides; w (H, 3), bias (H,) and λ (H,). The bias changes nothing and gets a gradient of zeros.

    Returns (B, N, H, D), which a projection reads as it lies in memory.
    """
    out: Tensor = mix(content_out, v, weight, bias, gate, height, width)[0]
    return out


def plain_gated_mix(
    content_out: Tensor, v: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, height: int, width: int
) -> Tensor:
    """The same in plain PyTorch."""
    maps = position_map(weight, bias, height, width).to(v.dtype)
    position_out = torch.einsum("hij,bhjd->bhid", maps, v)
    return torch.lerp(content_out, position_out, gate.sigmoid().to(v.dtype)[:, None, None]).transpose(1, 2)


def position_map(weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    """P by its definition.  # (H, 3), (H,) -> (H, N, N)"""
    index = torch.arange(height * width, device=weight.device)
    rows, columns = index // width, index % width
    down, across = rows[None, :] - rows[:, None], columns[None, :] - columns[:, None]
    encoding = torch.stack([across, down, across.square() + down.square()]).to(weight.dtype)
    return (torch.einsum("hr,rij->hij", weight, encoding) + bias[:, None, None]).softmax(-1)


def check(content_out: Sizes, v: Sizes, types: tuple[torch.dtype, ...], parameters: tuple[Sizes, ...], grid: Sizes) -> None:
    if len(v) != 4 or content_out != v or len(set(types)) > 1:
        raise SoftbiasError(
            "gated_mix takes content and values of one shape (B, H, N, D) and one type, "
            f"but got {tuple(content_out)} {types[0]} and {tuple(v)} {types[1]}"
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
    """With contiguous channels, every eighth of which is aligned."""
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


def empty_results(v: Tensor) -> tuple[Tensor, Tensor]:
    """O (B, N, H, D) and P (H, N, N and zeros up to a multiple of 16)"""
    images, heads, tokens, channels = v.shape
    return v.new_empty(images, tokens, heads, channels), v.new_empty(heads, tokens, padded(tokens))


def empty_gradients(content_out: Tensor, v: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A's gradient is laid out like A, as PyTorch's attention expects it; the gradient of the values is laid out like the one
    that the attention adds to it."""
    images, heads, tokens, channels = v.shape
    dcontent_out = torch.empty_like(content_out)
    if dcontent_out.stride(-1) != 1:
        dcontent_out = torch.empty_like(content_out, memory_format=torch.contiguous_format)
    dweight, dbias, dgate = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in parameters)
    return dcontent_out, v.new_empty(images, tokens, heads, channels).transpose(1, 2), dweight, dbias, dgate
