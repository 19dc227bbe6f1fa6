"""A trained convolution as gated heads: what ConViT's authors leave for future work, positional attention that starts from one.

    heads = ConvolutionHeads.of(conv, (32, 32))               in place of an nn.Conv2d for images of 32 × 32
    model = convert_convolutions(model, ["conv1"], (32, 32))  a copy of any model with heads in place of named convolutions

A convolution is a sum over its taps: each moves the image by its offset Δ and applies a matrix M_Δ to the channels.

    conv(x) = Σ_Δ M_Δ · moved(x, Δ) + b  =  Σ_h W_h P_h V_h x + b,    P_h = softmax(−α ‖δ − Δ_h‖²),    W_h V_h = M_Δh

So every tap becomes a head (Cordonnier et al., 2020). Values are the input itself, as in ConViT, and the output weights are the
kernel; where all M_Δ have a lower rank than the input has channels, both are their singular vectors, and heads are as narrow as
that rank. Taps that are zero get no head. The gates are free coefficients that start at one, so that position alone counts:

    A = (1 − g) softmax(Q Kᵀ / √D) + g P,    g = 1

Gates and positions have a gradient from the first step on, and queries and keys as soon as a gate has left one.

**Borders.** Attention cannot look outside its tokens, and a softmax cannot return zero. So the image is padded as the
convolution pads it (zeros, or its own mode), the padding becomes tokens, and the outputs of the padding are cut away. Where the
padding is zeros, the content part sees the tokens of the image alone.

**Strides.** With a stride of s the tokens are patches of s × s pixels with all their channels, and a head moves by whole
patches. So no output is computed in vain, and a 7 × 7 kernel of stride 2 has 16 heads.

**How exact.** A finite α leaves a share of about 4 e^(−α) of a head's attention to the neighbors of its tap. At the default of
20 outputs differ by some 1e-8 of their size, which is less than the rounding of float32. A smaller α is less exact, but its
positions learn faster: their gradients are proportional to e^(−α), too.

Heads belong to one image size; `of` makes them for another. They cost much more than the convolution, because they may learn to
look anywhere: every token attends to every other one.

Shapes: B images, C channels, H heads of D channels, N tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, pixel_unshuffle

from softbias.attention import ConversionError
from softbias.attention.base import BiasRow, by_head
from softbias.attention.gated import gate_rows
from softbias.attention.positional import PositionBias
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels.dispatch import dot_product_attention
from softbias.models.convolution_taps import MODES, dense_kernel, factors, pads_of, tap_maps
from softbias.models.spec import pair

Model = TypeVar("Model", bound=nn.Module)
STRENGTH = 20.0
MOST_TOKENS = 4096  # a map between more of them does not fit into memory


class ConvolutionHeads(nn.Module):
    """Gated heads in place of a convolution.  # (B, C, height, width) -> (B, C', height', width')

    kernel     (C', C, rows, columns), without groups
    size       (height, width) of the images
    pads       pixels at (left, right, top, bottom); mode: torch's name of how they are filled
    """

    inside: Tensor

    def __init__(
        self,
        kernel: Tensor,
        bias: Tensor | None,
        size: tuple[int, int],
        *,
        stride: int = 1,
        dilation: tuple[int, int] = (1, 1),
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        mode: str = "constant",
        strength: float = STRENGTH,
    ) -> None:
        super().__init__()
        self.size, self.stride, self.pads, self.mode = size, stride, pads, mode
        left, right, top, bottom = pads
        self.out_channels, self.in_channels, rows, columns = kernel.shape
        padded = size[0] + top + bottom, size[1] + left + right
        reach = dilation[0] * (rows - 1), dilation[1] * (columns - 1)
        self.out_size = (padded[0] - reach[0] - 1) // stride + 1, (padded[1] - reach[1] - 1) // stride + 1
        if min(self.out_size) < 1:
            raise ConversionError(f"a kernel of {rows} × {columns} does not fit into images of {size[0]} × {size[1]}")
        self.grid = Grid(-(-padded[0] // stride), -(-padded[1] // stride))
        if len(self.grid) > MOST_TOKENS:
            raise ConversionError(
                f"images of {size[0]} × {size[1]} pixels would be {len(self.grid):,} tokens, and attention takes at most "
                f"{MOST_TOKENS:,}; take smaller images, or a later layer"
            )
        last = reach[0] // stride, reach[1] // stride
        self.first = min(top // stride, last[0]), min(left // stride, last[1])  # the token that is the first output
        maps = tap_maps(kernel, stride, dilation)
        centers = [(row - self.first[0], column - self.first[1]) for row, column in maps]
        values, outputs = factors(torch.stack(list(maps.values())))
        heads, self.head_width, width = values.shape
        self.heads, self.scale = heads, self.head_width**-0.5
        self.qkv = nn.Linear(width, 3 * heads * self.head_width, bias=False)
        self.proj = nn.Linear(heads * self.head_width, self.out_channels)
        self.position = PositionBias(heads, self.grid, strength, centers)
        self.gate = nn.Parameter(torch.ones(heads))
        self.register_buffer("inside", torch.empty(len(self.grid), dtype=torch.bool), persistent=False)
        self.init_buffers()
        self.to(kernel)
        with torch.no_grad():
            nn.init.trunc_normal_(self.qkv.weight, std=0.02)
            self.qkv.weight[2 * heads * self.head_width :] = values.flatten(0, 1)
            self.proj.weight.copy_(outputs.transpose(0, 1).flatten(1))
            nn.init.zeros_(self.proj.bias) if bias is None else self.proj.bias.copy_(bias)

    @staticmethod
    def of(conv: nn.Conv2d, size: int | Sequence[int], *, strength: float = STRENGTH) -> ConvolutionHeads:
        """Heads that compute what a convolution computes on images of (height, width).

        strength   α: how sharply a head looks at its tap
        """
        if not isinstance(conv, nn.Conv2d) or isinstance(conv, nn.LazyConv2d) or conv.transposed:
            raise ConversionError(f"heads are made from an nn.Conv2d, but got {type(conv).__name__}")
        if conv.stride[0] != conv.stride[1]:
            raise ConversionError(f"heads move by the same stride in both directions, but the convolution has {conv.stride}")
        if not strength > 0:
            raise SoftbiasError(f"strength must be more than 0, so that a head looks at its tap, but strength={strength}")
        height, width = pair("size", size if isinstance(size, int) else tuple(size))
        return ConvolutionHeads(
            dense_kernel(conv), None if conv.bias is None else conv.bias.detach(), (height, width),
            stride=conv.stride[0], dilation=(conv.dilation[0], conv.dilation[1]), pads=pads_of(conv),
            mode=MODES[conv.padding_mode], strength=strength,
        ).train(conv.training)  # fmt: skip

    def init_buffers(self) -> None:
        """Which tokens hold a pixel of the image, or padding that is not zero."""
        marked = self.padded(torch.ones(1, 1, *self.size))
        self.inside.copy_(pixel_unshuffle(marked, self.stride).amax(1).flatten() > 0)

    def padded(self, images: Tensor) -> Tensor:
        """Padded as the convolution does it, then with zeros to whole patches.  # (B, C, s · grid height, s · grid width)"""
        images = pad(images, self.pads, self.mode) if any(self.pads) else images
        down, across = (self.stride * side for side in (self.grid.height, self.grid.width))
        return pad(images, (0, across - images.shape[-1], 0, down - images.shape[-2]))

    def tokens(self, images: Tensor) -> Tensor:
        """# (B, C, height, width) -> (B, N, s² C)"""
        if images.ndim != 4 or images.shape[1:] != (self.in_channels, *self.size):
            raise SoftbiasError(
                f"these heads take images of shape (batch, {self.in_channels}, {self.size[0]}, {self.size[1]}), but got "
                f"{tuple(images.shape)}; convert the convolution for that size"
            )
        return self.grid.as_tokens(pixel_unshuffle(self.padded(images), self.stride))

    def project(self, images: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values.  # 3 × (B, H, N, D)"""
        packed = self.qkv(self.tokens(images)).unflatten(-1, (3, self.heads, self.head_width))
        return tuple(part.transpose(1, 2) for part in packed.unbind(2))

    def hidden(self, like: Tensor) -> Tensor | None:
        """−∞ for tokens that the content part does not see; None where it sees all.  # (1, 1, 1, N)"""
        if not any(self.pads) or self.mode != "constant":
            return None
        return torch.zeros_like(self.inside, dtype=like.dtype).masked_fill(~self.inside, -torch.inf)[None, None, None]

    def attention_map(self, images: Tensor) -> Tensor:
        """How much a token takes from each other one, padding included: what `forward` uses.  # (B, H, N, N)"""
        q, k, _ = self.project(images)
        scores, hidden = (q * self.scale) @ k.mT, self.hidden(q)
        g = self.gate[:, None, None]
        content: Tensor = (scores if hidden is None else scores + hidden).softmax(-1)
        return (1 - g) * content + g * self.position.map()

    def forward(self, images: Tensor) -> Tensor:
        q, k, v = self.project(images)
        content_out = dot_product_attention(q, k, v, self.hidden(q), scale=self.scale)
        mixed = torch.lerp(content_out, self.position(v), self.gate[:, None, None].to(v.dtype))
        return self.cut(self.grid.as_image(self.proj(mixed.transpose(1, 2).flatten(2))))

    def cut(self, outputs: Tensor) -> Tensor:
        """The outputs of the convolution among those of all tokens.  # (B, C', …) -> (B, C', height', width')"""
        (top, left), (height, width) = self.first, self.out_size
        cut: Tensor = outputs[..., top : top + height, left : left + width]
        return cut

    def bias_map(self) -> Tensor:
        """The attention by position, (H, N, N)."""
        return self.position.map()

    def bias_rows(self) -> list[BiasRow]:
        """Gate, strength, center and width of every head, as gated attention has them."""
        return by_head(gate_rows(self.gate) + self.position.rows_of_heads())

    def extra_repr(self) -> str:
        grid = f"{self.grid.height}×{self.grid.width}"
        return f"{self.in_channels}, {self.out_channels}, size={self.size}, heads={self.heads}, grid={grid}"


def convert_convolutions(
    model: Model, names: Iterable[str], img_size: int | tuple[int, int], *, strength: float = STRENGTH
) -> Model:
    """A copy of the model in which heads take the place of the named convolutions, and compute the same.

    names      of nn.Conv2d inside the model, as `model.named_modules()` has them: "conv1", "blocks.0.attn.mix"
    img_size   of the images that the model is used on; the heads belong to it
    strength   α: how sharply a head looks at its tap

    A converted model is for Python: its layers have no names in a spec, so `softbias.save` and runs refuse it.
    """
    converted: Any = copy.deepcopy(model)
    modules = dict(converted.named_modules())
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if not isinstance(modules.get(name), nn.Conv2d):
            known = [each for each, module in modules.items() if isinstance(module, nn.Conv2d)]
            raise ConversionError(
                f"{type(model).__name__} has no convolution named {name!r}, but {', '.join(known[:8]) or 'none at all'}"
            )
    sizes = input_sizes(converted, {name: modules[name] for name in chosen}, pair("img_size", img_size))
    for name in chosen:
        if name not in sizes:
            raise ConversionError(f"the convolution {name} takes no part in the model's output, so its input has no size")
        parent, _, last = name.rpartition(".")
        heads = ConvolutionHeads.of(modules[name], sizes[name], strength=strength)
        setattr(modules[parent] if parent else converted, last, heads)
    return cast(Model, converted)


@torch.no_grad()
def input_sizes(model: nn.Module, convolutions: dict[str, nn.Module], img_size: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """(height, width) of the input of each convolution, seen in one pass."""
    found: dict[str, tuple[int, int]] = {}
    like = next(model.parameters())
    hooks = []
    for name, module in convolutions.items():

        def note(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
            found[name] = (given[0].shape[-2], given[0].shape[-1])

        hooks.append(module.register_forward_pre_hook(note))
    training, channels = model.training, int(getattr(getattr(model, "spec", None), "in_chans", 3))
    try:
        model.eval()(torch.zeros(2, channels, *img_size, dtype=like.dtype, device=like.device))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found
