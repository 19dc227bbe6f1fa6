"""Stems: from an image to one token per patch.  # (B, channels, height, width) -> (B, P, C)

    patch       every patch through the same linear map, as in ViT (Dosovitskiy et al., 2020)
    conv        overlapping 3 × 3 convolutions (Xiao et al., 2021): one of stride 1, then one of stride 2 for every halving down
                to the same grid, each with about twice the channels of the one before; a norm and a GELU between them
    strided     the same without the convolution of stride 1, which costs much on a CPU at full size. Any patch will do:
                what is left of it after the halvings is the stride of the last convolution
    residual    as a residual network begins (He et al., 2016): a 5 × 5 convolution of stride 2, a max-pool of stride 2, then a
                residual block of two 3 × 3 convolutions, and one more for every further stride, with norms and ReLU. It takes
                any patch, too; what cannot be halved twice has no max-pool
    shifted     patches of the image and of its four copies that are moved by half a patch along the diagonals, through a norm
                and a linear map: a token sees beyond its own borders (shifted patch tokenization, Lee et al., 2021)

The grid of tokens is the same for all of them, so any attention works behind any stem.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.errors import SoftbiasError
from softbias.models.spec import ModelSpec

FEWEST_CHANNELS = 16  # of a convolution in a stem
MULTIPLE = 8  # channels fill the tensor cores of a GPU in multiples of this


class Stem(nn.Module):
    """What the stems share: the sizes, and the check of the input."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.img_size, self.in_chans, self.patch_size = spec.img_size, spec.in_chans, spec.patch_size
        self.grid_size = (spec.grid(0).height, spec.grid(0).width)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1:] != (self.in_chans, *self.img_size):
            raise SoftbiasError(
                f"this model takes images of shape (batch, {self.in_chans}, {self.img_size[0]}, {self.img_size[1]}), "
                f"but got {tuple(images.shape)}; softbias.resize(model, img_size) makes it fit another size"
            )
        return self.tokens(images)

    def tokens(self, images: Tensor) -> Tensor:
        raise NotImplementedError


class PatchEmbed(Stem):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.proj = nn.Conv2d(spec.in_chans, spec.width, spec.patch_size, stride=spec.patch_size)

    def tokens(self, images: Tensor) -> Tensor:
        patches: Tensor = self.proj(images)
        return patches.flatten(2).mT.contiguous()  # the residual stream keeps this layout through all blocks


class ConvStem(Stem):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        halvings = spec.patch_size[0].bit_length() - 1
        channels = [in_eights(spec.width / 2 ** (halvings - index)) for index in range(halvings)]
        layers: list[nn.Module] = []
        before = spec.in_chans
        for index, after in enumerate(channels):
            layers += [nn.Conv2d(before, after, 3, 1 if index == 0 else 2, 1, bias=False), nn.BatchNorm2d(after), nn.GELU()]
            before = after
        self.convs = nn.Sequential(*layers)
        self.proj = nn.Conv2d(before, spec.width, 3, 2, 1)

    def tokens(self, images: Tensor) -> Tensor:
        patches: Tensor = self.proj(self.convs(images))
        return patches.flatten(2).mT.contiguous()


class StridedStem(Stem):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        steps = strides(spec.patch_size[0])
        channels = [in_eights(spec.width / 2**left) for left in reversed(range(len(steps) - 1))]
        layers: list[nn.Module] = []
        before = spec.in_chans
        for after in channels:
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.GELU()]
            before = after
        self.convs = nn.Sequential(*layers)
        last = steps[-1]
        self.proj = nn.Conv2d(before, spec.width, overlapping(last), last, 1)

    def tokens(self, images: Tensor) -> Tensor:
        if images.device.type == "cpu":  # a quarter less time there; tokens have this layout anyway
            images = images.contiguous(memory_format=torch.channels_last)
        patches: Tensor = self.proj(self.convs(images))
        return patches.permute(0, 2, 3, 1).flatten(1, 2).contiguous()


class ResidualStem(Stem):
    """The last block writes the tokens. Channels: all of the width there, 3/4 of it in the block before, then half of that, …

    The convolutions lie in `stages`, so that Muon trains them as it trains those of a ResNet.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        first, *later = strides(spec.patch_size[0])
        pooled = later[:1] == [2]
        steps = [1, *later[1:]] if pooled else later or [1]
        channels = [in_eights(0.75 * spec.width / 2**left) for left in reversed(range(len(steps)))] + [spec.width]
        kernel = 5 if first == 2 else overlapping(first)
        layers: list[nn.Module] = [
            nn.Conv2d(spec.in_chans, channels[0], kernel, first, 2 if first == 2 else 1, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(),
        ]
        if pooled:
            layers.append(nn.MaxPool2d(3, 2, 1))
        layers += [ResidualBlock(*pair, stride) for pair, stride in zip(pairwise(channels), steps, strict=True)]
        self.stages = nn.Sequential(*layers)

    def tokens(self, images: Tensor) -> Tensor:
        if images.device.type == "cpu":
            images = images.contiguous(memory_format=torch.channels_last)
        patches: Tensor = self.stages(images)
        return patches.permute(0, 2, 3, 1).flatten(1, 2).contiguous()


class ResidualBlock(nn.Module):
    """relu(s(x) + norm(conv(relu(norm(conv(x)))))), where s is a 1 × 1 convolution and a norm if the shapes differ.

    # (B, before, H, W) -> (B, after, H / stride, W / stride)
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, overlapping(stride), stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        shortcut = [] if same else [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.shortcut = nn.Sequential(*shortcut)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        out: Tensor = self.act(self.shortcut(x) + seen)
        return out


def overlapping(stride: int) -> int:
    """The kernel that, with one pixel around the image, overlaps and divides its side by the stride.

    >>> [overlapping(stride) for stride in (1, 2, 3, 7)]
    [3, 3, 5, 9]
    """
    return 3 if stride < 3 else stride + 2 - (stride % 2 == 0)


def in_eights(channels: float) -> int:
    """The number of channels, rounded up, and not too small.

    >>> in_eights(36.0), in_eights(9.0)
    (40, 16)
    """
    return max(FEWEST_CHANNELS, math.ceil(channels / MULTIPLE) * MULTIPLE)


def strides(patch: int) -> list[int]:
    """The strides of convolutions from an image to its patches: twos, and the odd rest.

    >>> strides(8), strides(24), strides(7)
    ([2, 2, 2], [2, 2, 2, 3], [7])
    """
    halvings = (patch & -patch).bit_length() - 1
    rest = patch >> halvings
    return [2] * halvings + ([rest] if rest > 1 else [])


class ShiftedStem(Stem):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        height, width = spec.patch_size
        self.norm = nn.LayerNorm(5 * spec.in_chans * height * width)
        self.proj = nn.Linear(5 * spec.in_chans * height * width, spec.width)

    def tokens(self, images: Tensor) -> Tensor:
        (rows, columns), (height, width) = self.grid_size, self.patch_size
        down, across = height // 2, width // 2
        around = pad(images, (across, across, down, down))
        corners = [(i, j) for i in (0, 2 * down) for j in (0, 2 * across)]
        moved = [around[..., i : i + images.shape[-2], j : j + images.shape[-1]] for i, j in corners]
        every = torch.cat([images, *moved], dim=1).unflatten(3, (columns, width)).unflatten(2, (rows, height))
        patches = every.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, P, 5 · channels · height · width)
        out: Tensor = self.proj(self.norm(patches))
        return out


STEMS: dict[str, type[Stem]] = {
    "patch": PatchEmbed,
    "conv": ConvStem,
    "strided": StridedStem,
    "residual": ResidualStem,
    "shifted": ShiftedStem,
}
