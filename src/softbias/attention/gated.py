"""Gated positional self-attention (GPSA), the layer of ConViT (d'Ascoli et al., 2021).

    A = (1 − g) softmax(Q Kᵀ / √D) + g softmax(v · r(δ)),     g = σ(λ), one per head

A head looks partly at content and partly at place. It starts as one tap Δ of a small convolution and learns how much of
that to keep: λ falls where content matters more. r(δ) and v are those of `positional`.

We differ from the paper's code in three ways that change no result. The output is linear in A, so both terms are applied to
the values separately and no map of the content is built. The positional map is computed once per step and not once per
image, as a product of a map over rows and one over columns. The last row normalization is left out: rows sum to one already.

On a GPU in half precision the positional term and the gate are one fused kernel (`softbias.kernels.gated`) after PyTorch's own
attention: it applies the positional map to the values of all images, mixes in the content and writes the result once, as the
projection reads it. For backward it keeps the positional map, one per head, and else only what the attention keeps already.
Among few tokens, such as the 64 of a picture of 32 px, all of it is one kernel (`softbias.kernels.gated_short_seq`).

A prefix token has no place, so ConViT lets it join after the last gated block, and we refuse one by default. With
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
from softbias.attention.fused import dot_product_attention
from softbias.attention.positional import UNITS, PositionBias
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels import gated as fused
from softbias.kernels import gated_short_seq as gated_few


class Gated(Attention):
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
        self.place = PositionBias(heads, grid.with_prefix(0), strength, centers, bias=True)
        self.gate = nn.Parameter(torch.full((heads,), float(gate)))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Values start as the input itself, as in a convolution whose taps pick patches."""
        nn.init.eye_(self.qkv.weight[2 * self.width :])

    def bias_map(self) -> Tensor:
        return self.place.map()

    def bias_rows(self) -> list[BiasRow]:
        return by_head(gate_rows(self.gate.sigmoid()) + self.place.rows_of_heads())

    def mixture(self) -> Mixture:
        return Mixture(self.gate.sigmoid(), self.place.map())

    @classmethod
    def options_to_replace(cls, source: Attention, options: Mapping[str, Any]) -> dict[str, Any]:
        content = {"prefix": "content"} if source.grid.prefix else {}
        return super().options_to_replace(source, content | dict(options))

    def shares(self) -> Tensor:
        """g, the share of place, zero in the rows of prefix tokens.  # (H, N, 1) or (H, 1, 1)"""
        share = self.gate.sigmoid()[:, None, None]
        if self.grid.prefix:
            share = pad(share.expand(-1, self.grid.patches, 1), (0, 0, self.grid.prefix, 0))
        return share

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        g = self.shares()
        nearby = pad(self.place.map(), (self.grid.prefix, 0, self.grid.prefix, 0))
        return (1 - g) * self.scores(q, k).softmax(-1) + g * nearby

    def forward(self, x: Tensor) -> Tensor:
        if type(self) is not Gated or self.grid.prefix:  # a subclass may project or attend otherwise
            return self.merge(self.attend(*self.project(x)))
        qkv = self.packed_qkv(x)
        if self.place.bias is not None and gated_few.fits(qkv):
            place = self.place.weight, self.place.bias, self.gate
            return self.proj(gated_few.gated_few_attention(qkv, *place, self.scale, self.grid.width).flatten(2))
        return self.merge(self.attend(*self.split_qkv(qkv)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        anywhere = dot_product_attention(q, k, v, scale=self.scale)
        weight, bias = self.place.weight, self.place.bias
        if bias is not None and not self.grid.prefix and fused.fits(anywhere, v):
            mixed = fused.gated_mix(anywhere, v, weight, bias, self.gate, self.grid.height, self.grid.width)
            return mixed.transpose(1, 2)  # which `merge` turns back: no copy
        g = self.shares().to(v.dtype)
        nearby = self.place(v[:, :, self.grid.prefix :])
        if self.grid.prefix:
            nearby = pad(nearby, (0, 0, self.grid.prefix, 0))
        return torch.lerp(anywhere, nearby, g)  # anywhere + g (nearby − anywhere)


def gate_rows(shares: Tensor) -> list[BiasRow]:
    """# (H,)"""
    values = shares.detach().tolist()
    return [{"measure": "gate", "unit": "share of position", "head": head, "value": g} for head, g in enumerate(values)]
