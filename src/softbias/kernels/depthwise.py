"""The inside of a feed-forward with a depth-wise convolution: two GELUs and the convolution between them, in one pass.

    h = gelu(x + s),   z_p = b + Σ_t w_t h_{p+t},   out = h + gelu(z)        t one of the nine offsets, h = 0 beyond the grid

    with F = ∂l/∂out:
    ∂l/∂z = F ⊙ gelu′(z),   ∂l/∂h_p = F_p + Σ_t w_t (∂l/∂z)_{p−t},   ∂l/∂x = ∂l/∂h ⊙ gelu′(x + s)
    ∂l/∂s = Σ ∂l/∂x,   ∂l/∂b = Σ ∂l/∂z,   ∂l/∂w_t = Σ_p (∂l/∂z)_p h_{p+t},   each over images and positions

s, b and the nine w_t are one number per channel. Prefix tokens have no neighbors: there out = h.

Everything but the products of the two linear layers happens here, and memory is passed over as often as for a plain GELU:
forward reads x and writes out, backward reads F and x and writes ∂l/∂x. h and z are computed again in backward. The shift s is
the bias of the linear layer before; taken here, its gradient needs no pass of its own.

The least possible time for B = 512, N = 64, C = 768 in bfloat16 (`soft_tiny` at 32 px), one layer: arrays of 50 MB, so at
4.2 TB/s forward takes 24 µs and backward 36 µs. Compiled for Hopper, the programs have 46 and 75 instructions for each number;
at 29 · 10¹² a second that is 40 and 65 µs. So arithmetic counts here, which is why Φ has a formula of its own.

Each program sums the gradients of the parameters over its images; a second program adds these shares. Nothing is added by
atomic operations, whose order would differ from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu

from softbias.errors import SoftbiasError
from softbias.kernels.launching import Program, Sizes, Tiles, planned
from softbias.kernels.operation import Kernel, Run, empty_gradients, operation, with_contiguous_channels


class DepthwiseBackward(NamedTuple):
    shares: int
    inputs: Program
    parameters: Program


@dataclass(frozen=True, eq=False)
class DepthwiseGelu(Kernel):
    """forward(x, shift, weight, bias, height, width)

    Tiles: `size` channels and `other` images for each program, and strips of at most `depth` columns.
    """

    forward_tiles: Tiles = Tiles(size=32, warps=1, stages=1, other=1, depth=8)
    backward_tiles: Tiles = Tiles(size=128, warps=2, stages=1, other=2, depth=8)
    parameter_tiles: Tiles = Tiles(size=32, warps=4, stages=1, other=32)

    @planned
    def plan_forward(
        self, shape: Sizes, x: Sizes, out: Sizes, parameters: tuple[Sizes, ...], height: int, width: int
    ) -> Program:
        """For the shape of x, the strides of x and of the result, and the shapes of shift, weight and bias."""
        from softbias.kernels.depthwise_program import forward_program

        channels = shape[-1]
        on_grid = len(shape) == 3 and min(height, width) >= 1 and shape[1] >= height * width
        if not on_grid or parameters != ((channels,), (channels, 1, 3, 3), (channels,)):
            raise SoftbiasError(
                "depthwise_gelu takes x (B, N, C) of at least height · width tokens, shift (C,), weight (C, 1, 3, 3) and "
                f"bias (C,), but got {', '.join(str(tuple(each)) for each in (shape, *parameters))}, grid {height} × {width}"
            )
        tiles = self.forward_tiles
        launches, constants = cut(shape, height, width, tiles)
        constants |= {"x_token": x[1], "out_token": out[1]}
        return Program(forward_program, launches, tiles, (x[0], out[0], shape[0]), constants)

    @planned
    def plan_backward(self, shape: Sizes, dout: Sizes, x: Sizes, dx: Sizes, height: int, width: int) -> DepthwiseBackward:
        """For the shape of x, and the strides of ∂l/∂out, of x and of its gradient."""
        from softbias.kernels.depthwise_backward_program import backward_program, parameters_program

        images, _, channels = shape
        launches, constants = cut(shape, height, width, self.backward_tiles)
        numbers = (dout[0], x[0], dx[0], images)
        constants |= {"dout_token": dout[1], "x_token": x[1], "dx_token": dx[1]}
        tiles = self.parameter_tiles
        sizes = {"channels": channels, "ROWS": tiles.other, "CHANNELS": tiles.size}
        return DepthwiseBackward(
            launches[0],
            Program(backward_program, launches, self.backward_tiles, numbers, constants),
            Program(parameters_program, (11, -(-channels // tiles.size)), tiles, (launches[0],), sizes),
        )

    def forward(self, x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
        x = with_contiguous_channels(x)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        shapes = shift.shape, weight.shape, bias.shape
        plan = self.plan_forward(x.shape, x.stride(), out.stride(), shapes, height, width)
        plan(x, shift.contiguous(), weight.contiguous(), bias.contiguous(), out)
        return out

    def backward(
        self, dout: Tensor, x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of x, shift, weight and bias."""
        dout, x = with_contiguous_channels(dout), with_contiguous_channels(x)
        dx, dshift, dweight, dbias = empty_gradients(x, shift, weight, bias)
        plan = self.plan_backward(x.shape, dout.stride(), x.stride(), dx.stride(), height, width)
        sums = torch.empty(plan.shares, 11, x.shape[2], dtype=torch.float32, device=x.device)
        plan.inputs(dout, x, shift.contiguous(), weight.contiguous(), bias.contiguous(), dx, sums)
        plan.parameters(sums, dweight, dbias, dshift)
        return dx, dshift, dweight, dbias

    def like_forward(self, x: Tensor, *others: Any) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def like_backward(self, dout: Tensor, x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, *others: Any) -> Any:
        return empty_gradients(x, shift, weight, bias)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.height, ctx.width = inputs
        ctx.save_for_backward(*tensors)

    def differentiate(self, ctx: Any, backward: Run, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return *backward(*gradients, *ctx.saved_tensors, ctx.height, ctx.width), None, None


def cut(shape: Sizes, height: int, width: int, tiles: Tiles) -> tuple[tuple[int, int], dict[str, int]]:
    """The programs (those for all images and strips, and for all channels) and their constants. Strips are as equal as
    possible."""
    images, tokens, channels = shape
    strips = -(-width // tiles.depth)
    fixed = {"channels": channels, "prefix": tokens - height * width, "height": height, "width": width, "STRIPS": strips}
    constants = fixed | {"COLUMNS": -(-width // strips), "IMAGES": tiles.other, "CHANNELS": tiles.size}
    return (-(-images // tiles.other) * strips, -(-channels // tiles.size)), constants


depthwise_gelu = operation("depthwise_gelu", DepthwiseGelu())
"""(x, shift, weight, bias, height, width): x (B, N, C), whose last height · width tokens lie on the grid; shift (C,),
weight (C, 1, 3, 3) and bias (C,).  # -> (B, N, C)"""


def plain_depthwise_gelu(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    """The same in plain PyTorch."""
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    hidden = gelu(x + shift.to(x.dtype))
    first = x.shape[1] - height * width
    patches = hidden[:, first:]
    on_grid = patches.mT.unflatten(2, (height, width))  # (B, C, height, width)
    seen = conv2d(on_grid, weight, bias, padding=1, groups=len(weight)).flatten(2).mT
    return torch.cat([hidden[:, :first], patches + gelu(seen)], dim=1)
