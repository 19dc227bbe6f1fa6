"""Full self-attention, the layer of ViT and DeiT (Dosovitskiy et al., 2020; Touvron et al., 2021).

    A = softmax(Q Kᵀ / √D)

Every token looks at every token by content alone: no bias, the baseline of all the others.

PyTorch's kernels compute it without the map. For short sequences, such as the 65 tokens of an image of 32 px in patches of 4,
our kernels are faster (`softbias.kernels.short_seq`).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from softbias.attention.base import Attention, Mixture
from softbias.grid import Grid
from softbias.kernels import dispatch


class Full(Attention):
    formula: ClassVar[str] = "softmax(QKᵀ/√D)"

    def __init__(self, width: int, heads: int, grid: Grid, *, qkv_bias: bool = True) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias)

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        return self.scores(q, k).softmax(-1)

    def mixture(self) -> Mixture:
        return Mixture()

    def score_mask(self) -> Tensor:
        return self.proj.weight.new_ones(self.heads, len(self.grid), len(self.grid))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dispatch.dot_product_attention(q, k, v, scale=self.scale)

    def fused(self, qkv: Tensor) -> Tensor | None:
        program = dispatch.softmax_attention(qkv)
        return None if program is None else program(qkv, self.scale)
