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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.attention.base import Attention, BiasRow, Mixture, by_head, refuse_prefix
from softbias.attention.positional import UNITS, PositionBias
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels import dispatch


class Gated(Attention):
    formula: ClassVar[str] = "(1−g) softmax(QKᵀ/√D) + g softmax(v·r(δ)), g = σ(λ)"
    bias_name: ClassVar[str] = "positional map"
    bias_measures: ClassVar[tuple[str, ...]] = ("gate", *UNITS)

    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        strength: float = 1.0,
        gate: float = 1.0,
        centers: str | Sequence[Sequence[float]] = "square",
        prefix: str = "refuse",
        qkv_bias: bool = False,
    ) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias)
        if prefix not in ("refuse", "content"):
            raise SoftbiasError(f'prefix must be "refuse" or "content", but prefix={prefix!r}')
        if prefix == "refuse":
            refuse_prefix(grid, "gated attention", 'let them join at a later block, or ask for prefix="content"')
        self.position = PositionBias(heads, grid.with_prefix(0), strength, centers, bias=True)
        self.gate = nn.Parameter(torch.full((heads,), float(gate)))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Values start as the input itself, as in a convolution whose taps pick patches."""
        nn.init.eye_(self.qkv.weight[2 * self.width :])

    def bias_map(self) -> Tensor:
        return self.position.map()

    def bias_rows(self) -> list[BiasRow]:
        return by_head(gate_rows(self.gate.sigmoid()) + self.position.rows_of_heads())

    def mixture(self) -> Mixture:
        return Mixture(self.gate.sigmoid(), self.position.map())

    @classmethod
    def options_to_replace(cls, source: Attention, options: Mapping[str, Any]) -> dict[str, Any]:
        content = {"prefix": "content"} if source.grid.prefix else {}
        return super().options_to_replace(source, content | dict(options))

    def shares(self) -> Tensor:
        """g, the share of position, zero in the rows of prefix tokens.  # (H, N, 1) or (H, 1, 1)"""
        share = self.gate.sigmoid()[:, None, None]
        if self.grid.prefix:
            share = pad(share.expand(-1, self.grid.patches, 1), (0, 0, self.grid.prefix, 0))
        return share

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        g = self.shares()
        position_map = pad(self.position.map(), (self.grid.prefix, 0, self.grid.prefix, 0))
        return (1 - g) * self.scores(q, k).softmax(-1) + g * position_map

    def fused(self, qkv: Tensor) -> Tensor | None:
        program = None if self.grid.prefix else dispatch.gated_attention(qkv)
        if program is None:
            return None
        return program(qkv, self.position.weight, self.position.bias, self.gate, self.scale, self.grid.width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        content_out = dispatch.dot_product_attention(q, k, v, scale=self.scale)
        program = None if self.grid.prefix else dispatch.gated_mix(content_out, v)
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
