"""Attention with short sequences, whose whole map fits into the registers of one program: by content (DeiT), and gated
(ConViT).

    P = softmax(scale · Q Kᵀ),   O = P V

    with F = ∂l/∂O and t_i = Σ_j P_ij ⟨F_i, V_j⟩:
    ∂l/∂V = Pᵀ F,   ∂l/∂S_ij = P_ij (⟨F_i, V_j⟩ − t_i),   ∂l/∂Q = scale · (∂l/∂S) K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q

An image of 32 px in patches of 4 has 64 tokens, or 65 with a class token. Kernels made for long sequences walk over such a map
in pieces, keep a sum per row and the output for backward, and launch four programs there; a map of 64 × 64 needs none of that.
Only the projection is kept for backward: P is computed again, and t comes from P itself. The gradients of queries, keys and
values are written side by side, as the projection's backward reads them; separate arrays would be copied once more.

65 is one more than a power of two, and a tile of 128 × 128 would be three quarters empty. So the first token stands beside a
tile of 64 × 64: its row and its column are vectors, which need no matrix units.

Gated attention mixes a map of content A and a map of positions P:

    M = (1 − g) A + g P,   O = M V        A = softmax(scale · Q Kᵀ),   P = softmax_j(w · r(δ_ij)),   g = σ(λ), one per head

    with F = ∂l/∂O and D = F Vᵀ, which is ∂l/∂M:
    ∂l/∂V = Mᵀ F,   ∂l/∂S = (1 − g) A ⊙ (D − rowsum(A ⊙ D)),   and ∂l/∂Q, ∂l/∂K from it as above
    ∂l/∂λ = g (1 − g) Σ_b ⟨D, P − A⟩,   ∂l/∂w = g Σ_b Σ_ij P_ij (D_ij − Σ_k P_ik D_ik) r(δ_ij)

The last two are linear in D, so every image gives four numbers per head, and no array of the size of a map is summed over the
batch (`gated` does that, where maps do not fit). P follows from three numbers per head and is computed wherever it is needed.

The least possible time for B = 512, H = 3, N = 65, D = 64 in bfloat16 (`deit_tiny` at 32 px), one layer, at 4.2 TB/s: forward
reads three arrays of 12.8 MB and writes one, 51 MB, 12 µs; backward reads four and writes three, 89 MB, 21 µs. The products
take 2 and 5 µs. Measurements are in `results/speed.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softbias.errors import SoftbiasError
from softbias.kernels.gated import plain_gated_mix
from softbias.kernels.launching import Program, Sizes, Tiles, block, planned
from softbias.kernels.operation import (
    Kernel,
    Run,
    empty_gradients,
    empty_result,
    operation,
    strides_of_result,
    with_contiguous_channels,
)

LONGEST = 65  # tokens
LONGEST_GATED = 64


@dataclass(frozen=True, eq=False)
class ShortSeqAttention(Kernel):
    """forward(qkv, scale)"""

    forward_tiles: Tiles = Tiles(size=64, warps=4, stages=1)
    backward_tiles: Tiles = Tiles(size=64, warps=4, stages=1)

    @planned
    def plan_forward(self, shape: Sizes, qkv: Sizes, scale: float) -> Program:
        """For the shape and the strides of the projection."""
        from softbias.kernels.short_seq_program import forward_program

        if len(shape) != 5 or shape[2] != 3 or shape[1] > LONGEST:
            raise SoftbiasError(
                f"short_seq_attention takes a projection (B, N, 3, H, D) of at most {LONGEST} tokens, but got {tuple(shape)}"
            )
        images, tokens, _, heads, channels = shape
        numbers = (*qkv[:4], *strides_of_result(shape)[:3], scale)
        return Program(forward_program, (images * heads,), self.forward_tiles, numbers, sizes(tokens, heads, channels))

    @planned
    def plan_backward(self, shape: Sizes, qkv: Sizes, dout: Sizes, dqkv: Sizes, scale: float) -> Program:
        """For the shape of the projection, and the strides of the projection, of ∂l/∂O and of the projection's gradient."""
        from softbias.kernels.short_seq_program import backward_program

        images, tokens, _, heads, channels = shape
        numbers = (*qkv[:4], *dout[:3], *dqkv[:4], scale)
        return Program(backward_program, (images * heads,), self.backward_tiles, numbers, sizes(tokens, heads, channels))

    def forward(self, qkv: Tensor, scale: float) -> Tensor:
        qkv = with_contiguous_channels(qkv)
        plan = self.plan_forward(qkv.shape, qkv.stride(), scale)
        out = empty_result(qkv)
        plan(qkv, out)
        return out

    def backward(self, dout: Tensor, qkv: Tensor, scale: float) -> Tensor:
        dout, qkv = with_contiguous_channels(dout), with_contiguous_channels(qkv)
        dqkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
        self.plan_backward(qkv.shape, qkv.stride(), dout.stride(), dqkv.stride(), scale)(qkv, dout, dqkv)
        return dqkv

    def like_forward(self, qkv: Tensor, scale: float) -> Tensor:
        return empty_result(qkv)

    def like_backward(self, dout: Tensor, qkv: Tensor, scale: float) -> Tensor:
        return torch.empty_like(qkv, memory_format=torch.contiguous_format)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        qkv, ctx.scale = inputs
        ctx.save_for_backward(qkv)

    def differentiate(self, ctx: Any, backward: Run, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return backward(*gradients, *ctx.saved_tensors, ctx.scale), None


def sizes(tokens: int, heads: int, channels: int) -> dict[str, int]:
    """One token stands beside the tile where there is one more than a power of two."""
    beside = int(tokens > 16 and block(tokens - 1) == tokens - 1)
    fixed = {"heads": heads, "tokens": tokens, "channels": channels, "BESIDE": beside}
    return fixed | {"TOKENS": block(tokens - beside), "CHANNELS": block(channels)}


class GatedBackward(NamedTuple):
    projection: Program
    parameters: Program


@dataclass(frozen=True, eq=False)
class GatedShortSeqAttention(Kernel):
    """forward(qkv, weight, bias, gate, scale, width), on a grid of this width"""

    forward_tiles: Tiles = Tiles(size=64, warps=4, stages=1)
    backward_tiles: Tiles = Tiles(size=64, warps=4, stages=1)
    parameter_tiles: Tiles = Tiles(size=512, warps=4, stages=1)

    @planned
    def plan_forward(self, shape: Sizes, qkv: Sizes, parameters: tuple[Sizes, ...], scale: float, width: int) -> Program:
        """For the shape and the strides of the projection, and the shapes of weight, bias and gate."""
        from softbias.kernels.short_seq_program import gated_forward_program

        heads = shape[3] if len(shape) == 5 else 0
        on_grid = len(shape) == 5 and shape[2] == 3 and shape[1] <= LONGEST_GATED and shape[1] % width == 0
        if not on_grid or parameters != ((heads, 3), (heads,), (heads,)):
            raise SoftbiasError(
                f"gated_short_seq_attention takes a projection (B, N, 3, H, D) of at most {LONGEST_GATED} tokens on a grid, "
                "weight (H, 3), bias (H,) and gate (H,), "
                f"but got {', '.join(str(tuple(each)) for each in (shape, *parameters))}, width={width}"
            )
        numbers = (*qkv[:4], *strides_of_result(shape)[:3], scale)
        return Program(gated_forward_program, (shape[0] * heads,), self.forward_tiles, numbers, gated_sizes(shape, width))

    @planned
    def plan_backward(self, shape: Sizes, qkv: Sizes, dout: Sizes, dqkv: Sizes, scale: float, width: int) -> GatedBackward:
        """For the shape of the projection, and the strides of the projection, of ∂l/∂O and of the projection's gradient."""
        from softbias.kernels.short_seq_program import gated_backward_program, gated_parameters_program

        images, heads = shape[0], shape[3]
        numbers = (*qkv[:4], *dout[:3], *dqkv[:4], scale, images)
        constants = {"heads": heads, "BLOCK": self.parameter_tiles.size}
        return GatedBackward(
            Program(gated_backward_program, (images * heads,), self.backward_tiles, numbers, gated_sizes(shape, width)),
            Program(gated_parameters_program, (heads,), self.parameter_tiles, (images,), constants),
        )

    def forward(self, qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int) -> Tensor:
        qkv = with_contiguous_channels(qkv)
        plan = self.plan_forward(qkv.shape, qkv.stride(), (weight.shape, bias.shape, gate.shape), scale, width)
        out = empty_result(qkv)
        plan(qkv, weight.contiguous(), gate, out)
        return out

    def backward(
        self, dout: Tensor, qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of the projection, w, the bias and λ."""
        dout, qkv = with_contiguous_channels(dout), with_contiguous_channels(qkv)
        dqkv, dweight, dbias, dgate = empty_gradients(qkv, weight, bias, gate)
        plan = self.plan_backward(qkv.shape, qkv.stride(), dout.stride(), dqkv.stride(), scale, width)
        sums = torch.empty(4, qkv.shape[3], qkv.shape[0], dtype=torch.float32, device=qkv.device)
        plan.projection(qkv, weight.contiguous(), gate, dout, dqkv, sums)
        plan.parameters(sums, gate, dweight, dbias, dgate)
        return dqkv, dweight, dbias, dgate

    def like_forward(self, qkv: Tensor, *others: Any) -> Tensor:
        return empty_result(qkv)

    def like_backward(self, dout: Tensor, qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, *others: Any) -> Any:
        return empty_gradients(qkv, weight, bias, gate)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.scale, ctx.width = inputs
        ctx.save_for_backward(*tensors)

    def differentiate(self, ctx: Any, backward: Run, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return *backward(*gradients, *ctx.saved_tensors, ctx.scale, ctx.width), None, None


def gated_sizes(shape: Sizes, width: int) -> dict[str, int]:
    _, tokens, _, heads, channels = shape
    fixed = {"heads": heads, "tokens": tokens, "channels": channels, "width": width}
    return fixed | {"TOKENS": block(tokens), "CHANNELS": block(channels)}


short_seq_attention = operation("short_seq_attention", ShortSeqAttention())
"""(qkv, scale): a projection (B, N, 3, H, D) of at most 65 tokens and 64 channels per head.  # -> (B, N, H, D)"""

gated_short_seq_attention = operation("gated_short_seq_attention", GatedShortSeqAttention())
"""(qkv, weight, bias, gate, scale, width): a projection (B, N, 3, H, D) of at most 64 tokens on a grid of this width and 64
channels per head; w (H, 3), bias (H,), which changes nothing, and λ (H,).  # -> (B, N, H, D)"""


def plain_short_seq_attention(qkv: Tensor, scale: float) -> Tensor:
    """The same in plain PyTorch, with the map in memory."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return (((q * scale) @ k.mT).softmax(-1) @ v).transpose(1, 2)


def plain_gated_short_seq_attention(
    qkv: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, scale: float, width: int
) -> Tensor:
    """The same in plain PyTorch, with the maps in memory."""
    content_out = plain_short_seq_attention(qkv, scale).transpose(1, 2)
    v = qkv[:, :, 2].transpose(1, 2)
    return plain_gated_mix(content_out, v, weight, bias, gate, qkv.shape[1] // width, width)
