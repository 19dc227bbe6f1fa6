"""The parts of a transformer around its attention: patches, positions, the block.

Shapes: B images, N tokens, C channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softbias.attention import Attention, find_attention
from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.models.spec import Layer, ModelSpec


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


class PatchEmbed(nn.Module):
    """Non-overlapping patches, each through the same linear map.  # (B, channels, height, width) -> (B, P, C)"""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.img_size, self.in_chans, self.patch_size = spec.img_size, spec.in_chans, spec.patch_size
        self.grid_size = (spec.grid(0).height, spec.grid(0).width)
        self.proj = nn.Conv2d(spec.in_chans, spec.width, spec.patch_size, stride=spec.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1:] != (self.in_chans, *self.img_size):
            raise SoftbiasError(
                f"this model takes images of shape (batch, {self.in_chans}, {self.img_size[0]}, {self.img_size[1]}), "
                f"but got {tuple(images.shape)}; softbias.resize(model, img_size) makes it fit another size"
            )
        patches: Tensor = self.proj(images)
        return patches.flatten(2).mT.contiguous()  # the residual stream keeps this layout through all blocks


def sinusoid(coordinates: Tensor, channels: int) -> Tensor:
    """sin and cos of a coordinate at geometrically falling frequencies (Vaswani et al., 2017).  # (P,) -> (P, channels)"""
    rates = torch.exp(torch.arange(channels // 2) * (-math.log(10_000.0) / (channels // 2)))
    angles = coordinates[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def fixed_positions(grid: Grid, width: int, kind: str) -> Tensor:
    """Half of the channels encode the row and half the column, or all of them the index; prefix tokens get zeros.  # (N, C)"""
    if kind == "sinusoid_1d":
        patches = sinusoid(torch.arange(grid.patches).float(), width)
    else:
        rows, columns = grid.positions().float().unbind(-1)
        patches = torch.cat([sinusoid(rows, width // 2), sinusoid(columns, width // 2)], dim=-1)
    return torch.cat([torch.zeros(grid.prefix, width), patches])


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU() if activation == "gelu" else nn.ReLU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


def build_feed_forward(spec: ModelSpec) -> nn.Module:
    if spec.feed_forward == "linear":
        return nn.Linear(spec.width, spec.width)
    return FeedForward(spec.width, spec.hidden or 4 * spec.width, spec.feed_forward)


def build_attention(layer: Layer, width: int, heads: int, grid: Grid, **defaults: Any) -> Attention:
    """A mechanism by name. An unknown option is an error; the options of the layer override `defaults`."""
    mechanism = find_attention(layer.attention)
    known = list(mechanism.__init__.__kwdefaults__ or {})
    for name in layer.options:
        if name not in known:
            raise unknown_name(f"option of {layer.attention} attention", name, known)
    return mechanism(width, heads, grid, **{**defaults, **layer.options})


class Block(nn.Module):
    """Attention and feed-forward, each on a residual branch.

        x + f(norm(x))            pre_norm=True
        norm(x + f(x))            pre_norm=False

    With residual="normalized" a pre-norm branch is added to norm(x) and not to x, as IBiT's release does.
    """

    positions: Tensor | None

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        grid = spec.grid(index)
        self.pre_norm, self.normalized = spec.pre_norm, spec.residual == "normalized"
        rate = spec.drop_path * index / max(1, spec.depth - 1)
        self.norm1 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.attn = build_attention(spec.layers[index], spec.width, spec.heads, grid, qkv_bias=spec.qkv_bias)
        self.drop_path1 = DropPath(rate) if rate else nn.Identity()
        self.norm2 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.mlp = build_feed_forward(spec)
        self.drop_path2 = DropPath(rate) if rate and spec.drop_path_feed_forward else nn.Identity()
        self.dropout = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()
        repeated = spec.positions != "none" and spec.positions_at == "attention"
        self.position_kind, self.position_scale = spec.positions, spec.position_scale
        self.register_buffer("positions", torch.empty(len(grid), spec.width) if repeated else None, persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        if self.positions is not None:
            grid, width = self.attn.grid, self.attn.width
            self.positions.copy_(self.position_scale * fixed_positions(grid, width, self.position_kind))

    def attend(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop_path1(self.dropout(self.attn(x if self.positions is None else x + self.positions)))
        return out

    def feed(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop_path2(self.dropout(self.mlp(x)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        if not self.pre_norm:
            x = self.norm1(x + self.attend(x))
            x = self.norm2(x + self.feed(x))
            return x
        normed = self.norm1(x)
        x = (normed if self.normalized else x) + self.attend(normed)
        normed = self.norm2(x)
        x = (normed if self.normalized else x) + self.feed(normed)
        return x
