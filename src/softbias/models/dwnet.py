"""DWNet: a network of depth-wise convolutions in stages (Han et al., 2022), the "local" network that the ETH study trained.

    images -> patches of 4 × 4, LayerNorm -> stages of blocks, with a merge between stages -> LayerNorm -> average -> head

    block   x + mixer(x),   then   x + W₂ gelu(W₁ norm(x))                 norm: BatchNorm; W₁: d -> 4 d
    mixer   norm(V · relu(norm(K ⋆ relu(norm(U · x)))))                    U, V: 1 × 1, without bias; K: one kernel per channel
    merge   W · LayerNorm of four neighbors side by side                   4 d -> 2 d, without bias

The static mixer learns K. The dynamic one predicts it for each image from the average of u = relu(norm(U · x)):

    K = E · relu(norm(S · mean(u))),    S: d -> d / 4, without bias;  E: d / 4 -> d k²

It has the shape of Swin, and no attention. Han et al. show how close such mixers come to attention inside windows.

We differ in one way: where a map has an odd side, its last neighbors are zeros, so that any multiple of 4 pixels is a size. The
release refuses such images.

Shapes: B images, C channels, a map of height × width cells with channels last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu
from torch.utils.checkpoint import checkpoint

from softbias.errors import SoftbiasError
from softbias.models.initial import init_normal, normal
from softbias.models.layers import DropPath, FeedForward
from softbias.models.spec import DWNET_PATCH, DWNetSpec

REDUCTION = 4  # of channels, before kernels are predicted
NEIGHBORS = ((0, 0), (1, 0), (0, 1), (1, 1))  # row and column, in the order in which a merge reads them


class DynamicConv(nn.Module):
    """A depth-wise convolution with kernels that are predicted for each image.  # (B, C, height, width) -> the same shape"""

    def __init__(self, width: int, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        inner = max(1, width // REDUCTION)
        self.squeeze = nn.Conv2d(width, inner, 1, bias=False)
        self.norm = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, width * kernel_size**2, 1)
        self.bias = nn.Parameter(torch.zeros(width))

    def kernels(self, x: Tensor) -> Tensor:
        """# (B, C, height, width) -> (B · C, 1, k, k)"""
        if self.training and len(x) < 2:
            raise SoftbiasError(
                "dynamic kernels are normalized over the images of a batch, so training needs at least two of them"
            )
        predicted: Tensor = self.expand(relu(self.norm(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return predicted.reshape(-1, 1, self.kernel_size, self.kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.kernels(x)
        images = x.reshape(1, -1, *x.shape[2:])  # every image has its own kernels: images become groups of one convolution
        mixed = conv2d(images, kernels, padding=self.kernel_size // 2, groups=len(kernels))
        return mixed.reshape(x.shape) + self.bias[:, None, None]


class Mixer(nn.Module):
    """The convolutions of a block.  # (B, height, width, C) -> the same shape"""

    def __init__(self, width: int, kernel_size: int, dynamic: bool) -> None:
        super().__init__()
        self.before = nn.Conv2d(width, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.mix: nn.Module
        if dynamic:
            self.mix = DynamicConv(width, kernel_size)
        else:
            self.mix = nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2, groups=width)
        self.norm2 = nn.BatchNorm2d(width)
        self.after = nn.Conv2d(width, width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.norm1(self.before(x.permute(0, 3, 1, 2))))
        x = relu(self.norm2(self.mix(x)))
        x = self.norm3(self.after(x))
        return x.permute(0, 2, 3, 1)


class DWBlock(nn.Module):
    """# (B, height, width, C) -> the same shape"""

    def __init__(self, spec: DWNetSpec, width: int, rate: float) -> None:
        super().__init__()
        self.mixer = Mixer(width, spec.kernel_size, spec.dynamic)
        self.norm = nn.BatchNorm2d(width)
        self.mlp = FeedForward(width, 4 * width, "gelu")
        self.drop_path = DropPath(rate) if rate else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.mixer(x))
        normed = self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = x + self.drop_path(self.mlp(normed))
        return x


class Merge(nn.Module):
    """Four neighbors become one cell of twice the channels.  # (B, height, width, C) -> (B, ⌈height / 2⌉, ⌈width / 2⌉, 2 C)"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        x = pad(x, (0, 0, 0, width % 2, 0, height % 2))
        joined = torch.cat([x[:, row::2, column::2] for row, column in NEIGHBORS], dim=-1)
        out: Tensor = self.reduction(self.norm(joined))
        return out


class Patches(nn.Module):
    """# (B, channels, height, width) -> (B, height / 4, width / 4, C)"""

    def __init__(self, spec: DWNetSpec) -> None:
        super().__init__()
        self.proj = nn.Conv2d(spec.in_chans, spec.width, DWNET_PATCH, stride=DWNET_PATCH)
        self.norm = nn.LayerNorm(spec.width)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.norm(self.proj(images).permute(0, 2, 3, 1))
        return out


class DWNet(nn.Module):
    """Build it with `softbias.create_model` or from a spec; `model(images)` returns logits.  # (B, …) -> (B, K)"""

    name: str | None = None
    class_names: tuple[str, ...] | None = None
    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]

    def __init__(self, spec: DWNetSpec) -> None:
        super().__init__()
        self.spec = spec
        self.num_classes = spec.num_classes
        self.grad_checkpointing = False
        widths = [spec.width * 2**stage for stage in range(len(spec.blocks))]
        self.num_features = self.head_hidden_size = widths[-1]
        rates = torch.linspace(0, spec.drop_path, sum(spec.blocks), device="cpu").tolist()
        self.patch_embed = Patches(spec)
        self.stages = nn.ModuleList()
        for stage, (count, width) in enumerate(zip(spec.blocks, widths, strict=True)):
            layers: list[nn.Module] = [Merge(width // 2)] if stage else []
            layers += [DWBlock(spec, width, rates.pop(0)) for _ in range(count)]
            self.stages.append(nn.Sequential(*layers))
        self.norm = nn.LayerNorm(self.num_features)
        self.head: nn.Module = nn.Linear(self.num_features, spec.num_classes) if spec.num_classes else nn.Identity()
        self.init_weights()

    def init_weights(self) -> None:
        """Truncated normal of .02 for linear layers; convolutions and norms as PyTorch starts them."""
        normal(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """The last map, after its norm.  # (B, C, height, width)"""
        x = self.patch_embed(images)
        for stage in self.stages:
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(stage, x, use_reentrant=False)
            else:
                x = stage(x)
        normed: Tensor = self.norm(x)
        return normed.permute(0, 3, 1, 2)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits, or with `pre_logits` the average cell.  # (B, C, height, width) -> (B, K)"""
        pooled = x.mean((2, 3))
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    # timm's conventions

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for another number of classes; the spec follows."""
        if global_pool not in (None, "avg"):
            raise SoftbiasError(f"a dwnet pools by average, but global_pool={global_pool!r}")
        like = self.norm.weight
        self.spec, self.num_classes = replace(self.spec, num_classes=num_classes), num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        if isinstance(self.head, nn.Linear):
            init_normal(self.head)
        self.head.to(device=like.device, dtype=like.dtype).train(self.training)
