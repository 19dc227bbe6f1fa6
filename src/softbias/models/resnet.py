"""ResNet (He et al., 2016) with a stem that fits the image: timm's network, built from our spec.

At 32 px the usual stem (7 × 7 of stride 2, then a max-pool) leaves an 8 × 8 map before the first block; the small stem is one
3 × 3 convolution and leaves all 32 × 32, as every CIFAR ResNet has it.
"""

from __future__ import annotations

from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck
from timm.models.resnet import ResNet as TimmResNet
from torch import nn

from softbias.models.spec import ResNetSpec


class ResNet(TimmResNet):
    name: str | None = None
    class_names: tuple[str, ...] | None = None

    def __init__(self, spec: ResNetSpec) -> None:
        block: Any = Bottleneck if spec.bottleneck else BasicBlock
        super().__init__(
            block,
            spec.blocks,
            channels=spec.channels,
            num_classes=spec.num_classes,
            in_chans=spec.in_chans,
            drop_path_rate=spec.drop_path,
        )
        self.spec = spec
        if spec.stem == "small":
            width: Any = self.bn1.num_features
            stem = nn.Conv2d(spec.in_chans, width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
            self.add_module("conv1", stem)
            self.add_module("maxpool", nn.Identity())
