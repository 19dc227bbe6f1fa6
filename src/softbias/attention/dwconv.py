"""Depth-wise convolution mixers for a flat transformer. They are not attention and have no map.

    static    y = proj(K ⋆ value(x))          K: one k × k kernel per channel, learned
    dynamic   y = proj(K(x) ⋆ value(x))       K(x): one k × k kernel per channel and image, predicted from the mean token

Han et al. (2022) show how close such mixers come to window attention: both weigh a neighborhood per channel. Attention computes
the weights per position, the dynamic convolution per image, and the static one has fixed weights. Their own network, which the
ETH study trained, has stages and other blocks: `softbias.models.dwnet`.

`heads` belongs to the signature of every mechanism; a mixer has one kernel per channel and no heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from softbias.attention.base import Attention, NoAttentionMapError, refuse_prefix
from softbias.bounds import Side
from softbias.errors import SoftbiasError
from softbias.grid import Grid


class DepthwiseConv(Attention):
    formula: ClassVar[str] = "none: a depth-wise convolution; `dynamic=True`: with kernels per image"
    has_map: ClassVar[bool] = False
    rows_sum_to_one = False

    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        kernel_size: Side = 7,
        dynamic: bool = False,
        reduction: Side = 4,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias, reads="v")
        refuse_prefix(grid, "a depth-wise convolution", "let them join at a later block, or pool by average")
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise SoftbiasError(f"kernel_size must be odd, but kernel_size={kernel_size}")
        if reduction < 1:
            raise SoftbiasError(f"reduction must be at least 1, but reduction={reduction}")
        self.kernel_size, self.dynamic = kernel_size, dynamic
        taps = kernel_size * kernel_size
        if dynamic:
            self.squeeze = nn.Linear(width, max(1, width // reduction))
            self.kernel = nn.Linear(max(1, width // reduction), width * taps)
        else:
            self.mix = nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2, groups=width)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        return f"dynamic {name}" if options.get("dynamic") else name

    def attention_map(self, x: Tensor) -> Tensor:
        raise NoAttentionMapError(
            "a depth-wise convolution mixes tokens without attention, so it has no attention map; "
            'ask for another layer, or use the "window" mechanism for local attention with maps'
        )

    def forward(self, x: Tensor) -> Tensor:
        self.check_input(x)
        image = self.grid.as_image(self.qkv(x))  # (B, C, height, width)
        if self.dynamic:
            kernels = self.kernel(relu(self.squeeze(x.mean(1)))).unflatten(-1, (-1, 1, self.kernel_size, self.kernel_size))
            mixed = conv2d(  # every image has its own kernels, so images become groups of one convolution
                image.flatten(0, 1)[None],
                kernels.flatten(0, 1),
                padding=self.kernel_size // 2,
                groups=image[:, :, 0, 0].numel(),
            )
            mixed = mixed[0].unflatten(0, (-1, self.width))
        else:
            mixed = self.mix(image)
        out: Tensor = self.proj(self.grid.as_tokens(mixed))
        return out
