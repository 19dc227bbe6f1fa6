"""Masked attention normalized by the Frobenius norm (IBiT), without a map in memory, from the factors of the mask.

    W = aᵀ b,   M[i, j] = W[i, c_ij]             c_ij = (j − i) mod P in the block of the patches, j elsewhere: see `rolling`
    Y = (scale · Q Kᵀ) ⊙ M,   O = Y V / (n + ε),   n = ‖Y‖_F, one number per image and head

    with G = ∂l/∂O and t = ⟨G, O⟩:
    ∂l/∂Y = (G Vᵀ − t/n · Y) / (n + ε)          t/n · Y comes from the norm
    ∂l/∂V = Yᵀ G / (n + ε),   ∂l/∂S = M ⊙ ∂l/∂Y,   ∂l/∂Q = scale · ∂l/∂S K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q
    ∂l/∂M = Σ_b S ⊙ ∂l/∂Y                        S = scale · Q Kᵀ
    ∂l/∂a[ρ, i] = Σ_j ∂l/∂M[i, j] b[ρ, c_ij],   ∂l/∂b[ρ, c] = Σ_{i, j: c_ij = c} ∂l/∂M[i, j] a[ρ, i]

Forward is two programs: M and its transpose from the factors, and the attention. The inputs, M, O and n are kept for backward.
Backward is three: the projection's gradient; ∂l/∂M in parts of the batch, every row rolled back as it is written; and the
factors' gradients, which sum the parts. For short sequences (see `short_seq`) the first two are one program, which forms S and
G Vᵀ only once: it owns a head of several images, and keeps its part of ∂l/∂M. Nothing is added atomically: the same bits every
time. W is summed in float32 and M rounded once to the type of the projection; a product of the factors under autocast rounds
the factors, and W.

The least possible work for B = 256, H = 3, N = 197, D = 64 in bfloat16 (`ibit_tiny`), one layer. Products, padded to 256
tokens: forward two of N × N × D, 13 GFLOP, backward seven, 45 GFLOP (two of them form S and G Vᵀ again for ∂l/∂M).
Memory: forward Q, K, V and O, 77 MB, 0.02 ms; backward reads five such arrays and writes three, 155 MB, 0.04 ms. Plain PyTorch
writes and reads maps of 60 MB about fifteen times. The mask itself is small, 0.25 MB and as much transposed, 0.7 MFLOP per head
at rank 9; the parts of its gradient, 5.4 MB, are written once and read twice. But if PyTorch makes the mask, that takes about
thirty launches a layer, forward and backward, and a small model waits for its host to make them.

The mask's low rank does not help further: (Q Kᵀ ⊙ a bᵀ) V = diag(a) Q (Kᵀ diag(b) V) would need no map at all, but costs D per
rank where a map costs N, and rank 9 × 64 > 197; and the roll turns M into N shifted rows, so that M itself has full rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, Sizes, Tiles, block, padded, planned
from softbias.kernels.operation import Kernel, Run, empty_gradients, empty_result, operation, with_contiguous_channels
from softbias.kernels.rolling import ROLLS, unroll
from softbias.kernels.short_seq import LONGEST as SHORT_SEQ
from softbias.kernels.short_seq import sizes

RANKS = 16  # for one program of the factors' gradients


class MaskedForward(NamedTuple):
    unroll: Program
    attention: Program


class MaskedBackward(NamedTuple):
    projection: Program
    mask: Program | None  # for short sequences the first program does its work
    factors: Program
    parts: Sizes  # the shape of the array that they hand on to the last


@dataclass(frozen=True, eq=False)
class MaskedAttention(Kernel):
    """forward(qkv, a, b, scale, prefix, roll) returns O, n, and M with its transpose."""

    unroll: Tiles = Tiles(size=32, warps=4, stages=1)
    attention: Tiles = Tiles(size=32, warps=8, stages=2)
    projection: Tiles = Tiles(size=16, warps=8, stages=2)
    short_seq: Tiles = Tiles(size=264, warps=4, stages=2)  # programs: two for each of the 132 multiprocessors of an H200
    short_seq_tokens: int = SHORT_SEQ  # at most
    mask: Tiles = Tiles(size=64, other=64, warps=8, stages=2)
    programs: int = 528  # at least as many for ∂l/∂M: four for each multiprocessor
    factors: Tiles = Tiles(size=8192, other=8, warps=8, stages=1)  # entries of the parts at a time; columns, a memory sector

    @planned
    def plan_forward(
        self, qkv: Sizes, strides: Sizes, out: Sizes, a: Sizes, b: Sizes, scale: float, prefix: int, roll: str
    ) -> MaskedForward:
        """For the shapes of the inputs, and the strides of the projection and of O."""
        from softbias.kernels.factors_program import unroll_program
        from softbias.kernels.masked_program import forward_program

        check(qkv, a, b, prefix, roll)
        images, tokens, _, heads, channels = qkv
        of_mask = layout(a, prefix, roll)
        tiles = (-(-of_mask["padded"] // self.unroll.size)) ** 2
        unrolling = Program(unroll_program, (tiles, heads), self.unroll, (), of_mask | {"BLOCK": self.unroll.size})
        shapes = {name: of_mask[name] for name in ("heads", "tokens", "padded")}
        shapes |= {"channels": channels, "CHANNELS": block(channels), "TOKENS": block(tokens)}
        attention = Program(
            forward_program,
            (images * heads,),
            self.attention.for_tokens(tokens),
            (*strides[:4], *out[:3], scale),
            shapes | {"BLOCK": min(self.attention.size, block(tokens))},
        )
        return MaskedForward(unrolling, attention)

    @planned
    def plan_backward(
        self, qkv: Sizes, strides: Sizes, out: Sizes, dout: Sizes, dqkv: Sizes, a: Sizes, scale: float, prefix: int, roll: str
    ) -> MaskedBackward:
        """For the shapes of the projection and the factors, and the strides of the projection, O and their gradients."""
        from softbias.kernels.masked_program import backward_program, mask_program, short_seq_backward_program

        images, tokens, _, heads, channels = qkv
        of_mask = layout(a, prefix, roll)
        numbers = (*strides[:4], *out[:3], *dout[:3], *dqkv[:4], scale)
        if tokens <= self.short_seq_tokens:
            each = -(-images * heads // self.short_seq.size)
            parts = -(-images // each)
            constants = sizes(tokens, heads, channels) | {name: of_mask[name] for name in ("padded", "prefix")}
            both = Program(short_seq_backward_program, (heads, parts), self.short_seq, (*numbers, images, each), constants)
            return MaskedBackward(both, None, self.plan_factors(of_mask, parts), (parts, heads, tokens, padded(tokens)))
        shapes = {name: of_mask[name] for name in ("heads", "tokens", "padded")}
        shapes |= {"channels": channels, "CHANNELS": block(channels)}
        projection = Program(
            backward_program,
            (images * heads,),
            self.projection.for_tokens(tokens),
            numbers,
            shapes | {"TOKENS": block(tokens), "BLOCK": min(self.projection.size, block(tokens))},
        )
        rows = min(32 if 64 < tokens <= 96 else self.mask.size, block(tokens))  # 65 tokens: 3 × 32 rows, not 2 × 64
        columns = min(self.mask.other, block(tokens))
        tiles = -(-tokens // rows) * -(-tokens // columns)
        share_of_batch = -(-images // min(images, -(-self.programs // (tiles * heads))))
        parts = -(-images // share_of_batch)
        mask = Program(
            mask_program,
            (tiles, heads, parts),
            self.mask,
            (*strides[:4], *dout[:3], scale, images, share_of_batch),
            shapes | {"prefix": of_mask["prefix"], "ROWS": rows, "COLUMNS": columns},
        )
        return MaskedBackward(projection, mask, self.plan_factors(of_mask, parts), (parts, heads, tokens, padded(tokens)))

    def plan_factors(self, of_mask: dict[str, int], parts: int) -> Program:
        """The factors' gradients from that of M, which comes in this number of parts, rolled back; given the `layout`."""
        from softbias.kernels.factors_program import factors_program

        tokens, tiles = of_mask["tokens"], self.factors
        at_once = min(1 << (parts - 1).bit_length(), tiles.size // block(tokens))
        rows = tiles.size // (block(tokens) * at_once)
        blocks = -(-tokens // rows) + -(-tokens // tiles.other)
        constants = {
            "TOKENS": block(tokens),
            "ROWS": rows,
            "COLUMNS": tiles.other,
            "PARTS_OF_ROWS": at_once,
            "PARTS_OF_COLUMNS": max(1, min(at_once, tiles.size // (block(tokens) * tiles.other))),
        }
        grid = (blocks, of_mask["heads"], -(-of_mask["ranks"] // RANKS))
        return Program(factors_program, grid, tiles, (parts,), of_mask | constants)

    def forward(self, qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> tuple[Tensor, Tensor, Tensor]:
        qkv = with_contiguous_channels(qkv)
        out, norms, masks = self.like_forward(qkv)
        plan = self.plan_forward(qkv.shape, qkv.stride(), out.stride(), a.shape, b.shape, scale, prefix, roll)
        plan.unroll(a.contiguous(), b.contiguous(), masks)
        plan.attention(qkv, masks, out, norms)
        return out, norms, masks

    def backward(
        self,
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
        strides = qkv.stride(), out.stride(), dout.stride(), dqkv.stride()
        plan = self.plan_backward(qkv.shape, *strides, a.shape, scale, prefix, roll)
        parts = torch.empty(plan.parts, dtype=torch.float32, device=masks.device)
        if plan.mask is None:
            plan.projection(qkv, masks, out, norms, dout, dqkv, parts)
        else:
            ratios = torch.empty_like(norms)
            plan.projection(qkv, masks, out, norms, dout, dqkv, ratios)
            plan.mask(qkv, masks, norms, ratios, dout, parts)
        plan.factors(parts, a.contiguous(), b.contiguous(), da, db)
        return dqkv, da, db

    def like_forward(self, qkv: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
        """O (B, N, H, D), n (B, H), and M and its transpose (2, H, N, N and zeros up to a multiple of 16)"""
        images, tokens, _, heads, _ = qkv.shape
        norms = qkv.new_empty(images, heads, dtype=torch.float32)
        return empty_result(qkv), norms, qkv.new_empty(2, heads, tokens, padded(tokens))

    def like_backward(self, dout: Tensor, qkv: Tensor, a: Tensor, b: Tensor, *others: Any) -> Any:
        return empty_gradients(qkv, a, b)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        qkv, a, b, *ctx.others = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(qkv, a, b, *output)

    def differentiate(self, ctx: Any, backward: Run, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:
            return (None,) * 6
        return *backward(gradients[0], *ctx.saved_tensors, *ctx.others), None, None, None


attention = operation("masked_attention", MaskedAttention())


def masked_attention(qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> Tensor:
    """Queries, keys and values as one projection gives them, (B, N, 3, H, D), and factors (H, r, N) of a mask for all images.

    At most 256 tokens, `prefix` of them before the patches, of 64 channels per head; any rank. Returns (B, N, H, D).
    """
    out: Tensor = attention(qkv, a, b, scale, prefix, roll)[0]
    return out


def plain_masked_attention(qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> Tensor:
    """The same in plain PyTorch, with the map in memory."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    y = ((q * scale) @ k.mT) * unroll(a.mT @ b, prefix, roll).to(q.dtype)
    dtype = torch.promote_types(y.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(y, dim=(-2, -1), keepdim=True, dtype=dtype)
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
