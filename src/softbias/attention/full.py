"""Full self-attention, the layer of ViT and DeiT (Dosovitskiy et al., 2020; Touvron et al., 2021).

    A = softmax(Q Kᵀ / √D)

Every token looks at every token by content alone: no bias, the baseline of all the others.

Two options make it the locality self-attention of Lee et al. (2021), which sharpens maps on small sets: `temperature=True`
learns one factor τ of the scores per head, which starts at 1 (the paper learns τ / √D as one number), and `mask_self=True`
forbids a token to look at itself.

`dropout` sets this share of the weights to zero in training and counts the others more, as PyTorch's MultiheadAttention does
(Vaswani et al., 2017). The map is that without dropout.

PyTorch's kernels compute it without the map. For short sequences, such as the 65 tokens of an image of 32 px in patches of 4,
our kernels are faster (`softbias.kernels.short_seq`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from softbias.attention.base import Attention, Mixture
from softbias.bounds import NotWhole
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels import dispatch


class Full(Attention):
    formula: ClassVar[str] = "softmax(QKᵀ/√D); `temperature=True`, `mask_self=True`: locality self-attention"

    own: Tensor | None

    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        temperature: bool = False,
        mask_self: bool = False,
        dropout: NotWhole = 0.0,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias)
        if mask_self and len(grid) < 2:
            raise SoftbiasError("mask_self=True leaves a single token nothing to look at")
        self.dropout = dropout
        self.temperature = nn.Parameter(torch.ones(heads)) if temperature else None
        own = torch.empty(len(grid), len(grid), dtype=torch.bool) if mask_self else None
        self.register_buffer("own", own, persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        if self.own is not None:
            self.own.copy_(torch.eye(len(self.grid), dtype=torch.bool))

    @property
    def plain(self) -> bool:
        return self.temperature is None and self.own is None

    @property
    def dropped(self) -> float:
        """The share of weights that are set to zero now."""
        return self.dropout if self.training else 0.0

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        scores = self.scores(self.sharpened(q), k)
        return (scores if self.own is None else scores.masked_fill(self.own, float("-inf"))).softmax(-1)

    def sharpened(self, q: Tensor) -> Tensor:
        """τ Q.  # (B, H, N, D)"""
        return q if self.temperature is None else q * self.temperature[:, None, None].to(q.dtype)

    def mixture(self) -> Mixture | None:
        return Mixture() if self.plain else None

    def score_mask(self) -> Tensor | None:
        return self.proj.weight.new_ones(self.heads, len(self.grid), len(self.grid)) if self.plain else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        others = None if self.own is None else ~self.own
        return dispatch.dot_product_attention(self.sharpened(q), k, v, others, scale=self.scale, dropout=self.dropped)

    def fused(self, qkv: Tensor) -> Tensor | None:
        program = dispatch.softmax_attention(qkv) if self.plain and not self.dropped else None
        return None if program is None else program(qkv, self.scale)
