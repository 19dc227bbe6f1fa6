"""The parts of a block around its attention, fixed positions, and pooling by attention.

Shapes: B images, N tokens, P patches, C channels.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad

from softbias.grid import Grid
from softbias.kernels import dispatch
from softbias.models.spec import ModelSpec


class DropPath(nn.Module):
    """In training leaves a branch out for some images, and counts it more for the others (Huang et al., 2016).

    It gives the same numbers as timm's. Importing timm would take longer than everything else that a model needs.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.drop_prob:
            return x
        kept = 1 - self.drop_prob
        return x * x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(kept).div_(kept)

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob:.3f}"


class LayerScale(nn.Module):
    """γ x, one learned factor per channel, which starts small so that a block starts as the identity (Touvron et al., 2021)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def waves(coordinates: Tensor, rates: Tensor) -> Tensor:
    """sin and cos of a coordinate at these frequencies.  # (P,), (C / 2,) -> (P, C)"""
    angles = coordinates[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def sinusoid(coordinates: Tensor, channels: int) -> Tensor:
    """sin and cos at geometrically falling frequencies (Vaswani et al., 2017).  # (P,) -> (P, channels)"""
    rates = torch.exp(torch.arange(channels // 2) * (-math.log(10_000.0) / (channels // 2)))
    return waves(coordinates, rates)


def fixed_positions(grid: Grid, width: int, kind: str) -> Tensor:
    """Positions that are not learned.  # (N, C)

    sinusoid      half of the channels encode the row and half the column; prefix tokens get zeros
    sinusoid_1d   all channels encode the index of the token, prefix tokens included, at frequencies from 1 to
                  exp(−⌈log N⌉): the positions of IBiT's release
    """
    if kind == "sinusoid_1d":
        rates = 1 / torch.exp(torch.linspace(0, math.ceil(math.log(len(grid))), width // 2))
        return waves(torch.arange(len(grid)).float(), rates)
    rows, columns = grid.positions().float().unbind(-1)
    patches = torch.cat([sinusoid(rows, width // 2), sinusoid(columns, width // 2)], dim=-1)
    return torch.cat([torch.zeros(grid.prefix, width), patches])


class FeedForward(nn.Module):
    """W₂ drop(act(W₁ x)); nothing is dropped by default."""

    def __init__(self, width: int, hidden: int, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.ReLU() if activation == "relu" else nn.GELU()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.dropout(self.act(self.fc1(x))))
        return out


class DepthwiseFeedForward(FeedForward):
    """A feed-forward network whose patches also look at their neighbors (after Guo et al., 2022).

        h = gelu(W₁ x),    out = W₂ (h + gelu(D h)),    D a 3 × 3 depth-wise convolution over the grid, zero beyond its borders

    Prefix tokens have no neighbors: they pass the convolution by. On a GPU all between W₁ and W₂ may be one program, which adds
    the bias of W₁, too (`dispatch.depthwise_gelu`).
    """

    has_fused: ClassVar[bool] = True

    def __init__(self, width: int, hidden: int, grid: Grid, dropout: float = 0.0) -> None:
        super().__init__(width, hidden, "gelu", dropout)
        self.width = width
        self.grid = grid
        self.conv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        nn.init.normal_(self.conv.weight, std=0.1)
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.dropout(self.mixed(x)))
        return out

    def mixed(self, x: Tensor) -> Tensor:
        """h + gelu(D h).  # (B, N, width) -> (B, N, hidden)"""
        program = dispatch.depthwise_gelu(x)
        if program:
            product, conv = linear(x, self.fc1.weight), self.conv
            return program(product, self.fc1.bias, conv.weight, conv.bias, self.grid.height, self.grid.width)
        hidden: Tensor = self.act(self.fc1(x))
        first = self.grid.prefix
        patches = hidden[:, first:]
        patches = patches + self.act(self.neighbors(patches))
        return torch.cat([hidden[:, :first], patches], dim=1) if first else patches

    def neighbors(self, patches: Tensor) -> Tensor:
        """D h.  # (B, P, C) -> (B, P, C)

        A GPU that cannot run our program takes nine shifted products, which the compiler joins into one kernel; depth-wise
        convolutions of libraries are slower there. A CPU takes the convolution on the layout that the tokens have.
        """
        on_grid = patches.unflatten(1, (self.grid.height, self.grid.width))  # (B, height, width, C)
        weight, bias = self.conv.weight.to(patches.dtype), self.conv.bias
        assert bias is not None
        if not patches.is_cuda:
            seen = conv2d(on_grid.permute(0, 3, 1, 2), weight, bias.to(patches.dtype), padding=1, groups=len(weight))
            return seen.permute(0, 2, 3, 1).flatten(1, 2)
        return shifted_products(on_grid, weight, bias.to(patches.dtype)).flatten(1, 2)


def shifted_products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 3 × 3 depth-wise convolution as nine products.  # (B, height, width, C), (C, 1, 3, 3), (C,) -> (B, height, width, C)"""
    height, width = x.shape[1:3]
    around = pad(x, (0, 0, 1, 1, 1, 1))
    total = bias
    for row in range(3):
        for column in range(3):
            total = total + around[:, row : row + height, column : column + width] * weight[:, 0, row, column]
    return total


def build_feed_forward(spec: ModelSpec, grid: Grid) -> nn.Module:
    hidden, dropout = spec.hidden or 4 * spec.width, spec.dropout if "hidden" in spec.dropout_in else 0.0
    if spec.feed_forward == "linear":
        return nn.Linear(spec.width, spec.width)
    if spec.feed_forward == "dwconv":
        return DepthwiseFeedForward(spec.width, hidden, grid, dropout)
    return FeedForward(spec.width, hidden, spec.feed_forward, dropout)


class SequencePool(nn.Module):
    """Σ softmax(w · x) x over the patches: a learned score says how much each counts (Hassani et al., 2021).

    # (B, P, C) -> (B, C)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, patches: Tensor) -> Tensor:
        share: Tensor = self.score(patches).softmax(1)  # (B, P, 1)
        return (share * patches).sum(1)
