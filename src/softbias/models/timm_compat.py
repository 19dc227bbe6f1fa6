"""What we build on timm: ResNet, and our models in timm's registry. Checked against timm 1.0.30.

    timm.create_model("softbias_convit_tiny", num_classes=10, img_size=32)

Importing this module registers the models; `softbias._timm_hook` does so as soon as timm is imported. `softbias_vit` takes a
whole spec; it is the architecture of saved models that have no preset's name, such as mixtures. Without a spec it is DeiT-Ti.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from timm.models import build_model_with_cfg, register_model
from timm.models.resnet import BasicBlock, Bottleneck
from timm.models.resnet import ResNet as TimmResNet
from torch import Tensor, nn

from softbias.models.presets import BUILT_IN, preset_spec, timm_cfg
from softbias.models.spec import ResNetSpec, spec_from_dict

TIMM_NAMES = {  # timm's names for options that have other names here
    "drop_path_rate": "drop_path",
    "drop_rate": "dropout",
    "embed_dim": "width",
    "num_heads": "heads",
    "global_pool": "pool",
}
POOLS = {"avg": "average", "token": "token", "flatten": "flatten"}


class ResNet(TimmResNet):
    """ResNet (He et al., 2016) with a stem that fits the image: timm's network, built from our spec.

    At 32 px the usual stem (7 × 7 of stride 2, then a max-pool) leaves an 8 × 8 map before the first block. The small stem is
    one 3 × 3 convolution and keeps all 32 × 32, as every CIFAR ResNet does.
    """

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
            zero_init_last=spec.start_closed,
        )
        self.spec = spec
        if spec.stem == "small":
            width: Any = self.bn1.num_features
            stem = nn.Conv2d(spec.in_chans, width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
            self.add_module("conv1", stem)
            self.add_module("maxpool", nn.Identity())

    def forward_features(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":  # convolutions take a quarter less time there with channels last
            x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = super().forward_features(x)
        return out


def prefixed(name: str) -> str:
    return f"softbias_{name}"


def build_registered(name: str | None, *, spec: Mapping[str, Any] | None = None, **options: Any) -> nn.Module:
    """A preset, or exactly the model of a spec, from the options that timm hands over."""
    from softbias.models import build, create_model  # here, because importing them may be what imports timm

    options = {TIMM_NAMES.get(option, option): value for option, value in options.items() if value is not None}
    if "pool" in options:
        options["pool"] = POOLS.get(options["pool"], options["pool"])
    if spec is None:
        return create_model(name or "deit_tiny", **options)
    placement = {option: options.pop(option) for option in ("device", "dtype") if option in options}
    return build(replace(spec_from_dict(spec), **options), name=name, **placement)


def entry_point(name: str | None) -> Callable[..., nn.Module]:
    """The function that timm's registry keeps for a preset, or for `softbias_vit`."""

    def create(pretrained: bool = False, **options: Any) -> nn.Module:
        def model_class(**chosen: Any) -> nn.Module:
            return build_registered(name, **chosen)

        model: Any = build_model_with_cfg(model_class, variant, pretrained, **options)
        model.pretrained_cfg["input_size"] = timm_cfg(model.spec, name)["input_size"]  # of this model, not of the preset
        made: nn.Module = model
        return made

    variant = prefixed(name or "vit")
    create.__name__ = create.__qualname__ = variant
    create.__doc__ = f"The softbias preset {name}." if name else "The softbias model of the given spec, or DeiT-Ti."
    create.__module__ = __name__  # timm looks for `default_cfgs` there
    return create


default_cfgs = {prefixed(name): timm_cfg(preset_spec(name), name) for name in BUILT_IN}
default_cfgs[prefixed("vit")] = timm_cfg(preset_spec("deit_tiny"), None)
for preset in (*BUILT_IN, None):
    register_model(entry_point(preset))
