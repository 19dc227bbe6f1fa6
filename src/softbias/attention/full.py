"""Full self-attention, the layer of ViT and DeiT (Dosovitskiy et al., 2020; Touvron et al., 2021).

    A = softmax(Q Kᵀ / √D)

Every token looks at every token by content alone: no bias, the baseline of all the others.
"""

from __future__ import annotations

from torch import Tensor

from softbias.attention.base import Attention
from softbias.attention.fused import dot_product_attention


class Full(Attention):
    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        return self.scores(q, k).softmax(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product_attention(q, k, v, scale=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(self.attend(*self.project(x)))
