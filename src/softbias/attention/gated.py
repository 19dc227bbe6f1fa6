"""Gated positional self-attention (GPSA), the layer of ConViT (d'Ascoli et al., 2021).

    A = (1 − g) softmax(Q Kᵀ / √D) + g softmax(v · r(δ)),     g = σ(λ), one per head

A head looks partly at content and partly at position. It starts as one tap Δ of a small convolution and learns how much of
that to keep: λ falls where content matters more. r(δ) and v are those of `positional`.

We differ from the paper's code in three ways that change no result. The output is linear in A, so both terms are applied to
the values separately and no map of the content is built. The positional map is computed once per step and not once per
image, as a product of a map over rows and one over columns. The last row normalization is left out: rows sum to one already.

On a GPU in half precision the positional term and the gate are one fused kernel (`softbias.kernels.gated`) after PyTorch's own
attention: it applies the positional map to the values of all images, mixes in the content and writes the result once, as the
projection reads it. For backward it keeps the positional map, one per head, beside the arrays that the attention keeps already.
For short sequences, such as the 64 tokens of an image of 32 px, all of it is one kernel (`softbias.kernels.short_seq`).

A prefix token has no position, so ConViT lets it join after the last gated block, and we refuse one by default. With
`prefix="content"` (our own extension, for converting a ViT that has a class token) its row is pure content and the patches'
positional term does not see it; rows still sum to one.

With `gating="free"` (our own extension) g is the parameter itself, of any sign, and starts at zero. The layer then is exactly
full attention, and g learns from the first step on; a σ(λ) near zero would hardly move. `convert` uses it, so that a pretrained
model keeps its function until training finds that position helps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.attention.base import Attention, BiasRow, Mixture, by_head, refuse_prefix
from softbias.attention.positional import UNITS, PositionBias
from softbias.bounds import Centers, Finite, ShortText
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels import dispatch

STARTS = {"sigmoid": 1.0, "free": 0.0}  # of the gate


class Gated(Attention):
    formula: ClassVar[str] = '(1−g) softmax(QKᵀ/√D) + g softmax(v·r(δ)), g = σ(λ); `gating="free"`: g is learned as it is'
    bias_name: ClassVar[str] = "positional map"
    bias_measures: ClassVar[tuple[str, ...]] = ("gate", *UNITS)

    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        strength: Finite = 1.0,
        gate: Finite | None = None,
        gating: ShortText = "sigmoid",
        centers: Centers = "square",
        prefix: ShortText = "refuse",
        qkv_bias: bool = False,
    ) -> None:
        """`gate` is where λ starts (1), or g itself where it is free (0)."""
        super().__init__(width, heads, grid, qkv_bias=qkv_bias)
        if gating not in STARTS:
            raise SoftbiasError(f"gating must be one of {', '.join(STARTS)}, but gating={gating!r}")
        if prefix not in ("refuse", "content"):
            raise SoftbiasError(f'prefix must be "refuse" or "content", but prefix={prefix!r}')
        if prefix == "refuse":
            refuse_prefix(grid, "gated attention", 'let them join at a later block, or ask for prefix="content"')
        self.position = PositionBias(heads, grid.with_prefix(0), strength, centers, bias=True)
        self.gating, self.rows_sum_to_one = gating, gating == "sigmoid"  # a free share can make entries negative
        self.gate = nn.Parameter(torch.full((heads,), STARTS[gating] if gate is None else float(gate)))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Values start as the input itself, as in a convolution whose taps pick patches."""
        nn.init.eye_(self.qkv.weight[2 * self.width :])

    def bias_map(self) -> Tensor:
        return self.position.map()

    def bias_rows(self) -> list[BiasRow]:
        return by_head(gate_rows(self.share()) + self.position.rows_of_heads())

    def mixture(self) -> Mixture:
        return Mixture(self.share(), self.position.map())

    @classmethod
    def options_to_replace(cls, source: Attention, options: Mapping[str, Any]) -> dict[str, Any]:
        """In place of full attention the gate is free, so that the function stays the same; heads need not tile a square."""
        chosen: dict[str, Any] = {"prefix": "content"} if source.grid.prefix else {}
        if math.isqrt(source.heads) ** 2 != source.heads:
            chosen["centers"] = "rectangular"
        if source.is_plain() and "gate" not in options:
            chosen["gating"] = "free"
        return super().options_to_replace(source, chosen | dict(options))

    def share(self) -> Tensor:
        """g, one number per head.  # (H,)"""
        return self.gate if self.gating == "free" else self.gate.sigmoid()

    def shares(self) -> Tensor:
        """g, zero in the rows of prefix tokens.  # (H, N, 1) or (H, 1, 1)"""
        share = self.share()[:, None, None]
        if self.grid.prefix:
            share = pad(share.expand(-1, self.grid.patches, 1), (0, 0, self.grid.prefix, 0))
        return share

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        g = self.shares()
        position_map = pad(self.position.map(), (self.grid.prefix, 0, self.grid.prefix, 0))
        return (1 - g) * self.scores(q, k).softmax(-1) + g * position_map

    @property
    def has_programs(self) -> bool:
        """The fused programs compute σ(λ), and know no prefix tokens."""
        return self.gating == "sigmoid" and not self.grid.prefix

    def fused(self, qkv: Tensor) -> Tensor | None:
        program = dispatch.gated_attention(qkv) if self.has_programs else None
        if program is None:
            return None
        return program(qkv, self.position.weight, self.position.bias, self.gate, self.scale, self.grid.width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        content_out = dispatch.dot_product_attention(q, k, v, scale=self.scale)
        program = dispatch.gated_mix(content_out, v) if self.has_programs else None
        if program is not None:
            learned = self.position.weight, self.position.bias, self.gate
            mixed = program(content_out, v, *learned, self.grid.height, self.grid.width)
            return mixed.transpose(1, 2)  # `merge` turns it back: no copy
        g = self.shares().to(v.dtype)
        position_out = self.position(v[:, :, self.grid.prefix :])
        if self.grid.prefix:
            position_out = pad(position_out, (0, 0, self.grid.prefix, 0))
        return torch.lerp(content_out, position_out, g)  # content_out + g (position_out − content_out)


def gate_rows(shares: Tensor) -> list[BiasRow]:
    """# (H,)"""
    values = shares.detach().tolist()
    return [{"measure": "gate", "unit": "share of position", "head": head, "value": g} for head, g in enumerate(values)]
