"""Full self-attention, the layer of ViT and DeiT (Dosovitskiy et al., 2020; Touvron et al., 2021).

    A = softmax(Q Kᵀ / √D)

Every token looks at every token by content alone: no bias, the baseline of all the others.

PyTorch's kernels compute it without the map. Among few tokens, such as the 65 of a picture of 32 px in patches of 4, ours are
faster (`softbias.kernels.short_seq`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from softbias.attention.base import Attention, Mixture
from softbias.attention.fused import dot_product_attention
from softbias.kernels.short_seq import few_attention, fits


class Full(Attention):
    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        return self.scores(q, k).softmax(-1)

    def mixture(self) -> Mixture:
        return Mixture()

    def score_mask(self) -> Tensor:
        return torch.ones(self.heads, len(self.grid), len(self.grid), device=self.proj.weight.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product_attention(q, k, v, scale=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        if type(self) is not Full:  # which may project or attend otherwise
            return self.merge(self.attend(*self.project(x)))
        qkv = self.packed_qkv(x)
        if fits(qkv):
            return self.proj(few_attention(qkv, self.scale).flatten(2))
        return self.merge(self.attend(*self.split_qkv(qkv)))
