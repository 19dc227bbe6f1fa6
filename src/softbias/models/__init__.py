"""Models by name: our presets, `timm:NAME`, and `hf:FOLDER`."""

from __future__ import annotations

import fnmatch
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from softbias.models.dwnet import DWNet
from softbias.models.presets import PRESETS, Preset, find_preset, preset_names, preset_spec, register_preset, timm_cfg
from softbias.models.spec import DWNetSpec, Layer, ModelSpec, ResNetSpec, Spec, spec_from_dict
from softbias.models.vit import VisionTransformer

if TYPE_CHECKING:
    from softbias.models.timm_compat import ResNet

__all__ = [
    "PRESETS",
    "DWNet",
    "DWNetSpec",
    "Layer",
    "ModelSpec",
    "Preset",
    "ResNet",
    "ResNetSpec",
    "Spec",
    "VisionTransformer",
    "build",
    "create_model",
    "find_preset",
    "list_models",
    "preset_spec",
    "register_preset",
    "spec_from_dict",
]


def __getattr__(name: str) -> Any:
    if name == "ResNet":  # timm's, which takes seconds to import
        from softbias.models.timm_compat import ResNet

        return ResNet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build(
    spec: Spec, *, name: str | None = None, device: Any = None, dtype: torch.dtype | None = None
) -> VisionTransformer | ResNet | DWNet:
    """A module with fresh weights; on device "meta" it has shapes only."""
    with torch.device(device) if device is not None else nullcontext():
        if isinstance(spec, ResNetSpec):
            from softbias.models.timm_compat import ResNet

            model: VisionTransformer | ResNet | DWNet = ResNet(spec)
        elif isinstance(spec, DWNetSpec):
            model = DWNet(spec)
        else:
            model = VisionTransformer(spec)
    model.name = name
    model.pretrained_cfg = model.default_cfg = timm_cfg(spec, name)
    return model.to(dtype=dtype) if dtype is not None else model


def create_model(
    name: str,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    *,
    patch_size: int | tuple[int, int] | None = None,
    in_chans: int = 3,
    device: Any = None,
    dtype: torch.dtype | None = None,
    **overrides: Any,
) -> nn.Module:
    """A model that maps images to logits.

    name        one of `list_models()`, `timm:NAME` for any classifier of timm, or `hf:FOLDER` for a Hugging Face folder
    img_size    a number or (height, width); 224 by default, 32 for the nano models, 256 for ARViT
    overrides   options of the family or fields of the spec, see `softbias.models.presets`; for timm they go to timm

    >>> model = create_model("convit_nano", num_classes=3, img_size=32, strength=2.0)
    >>> model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 3])
    """
    source, colon, rest = name.partition(":")
    if colon and source in ("timm", "hf"):
        from softbias.models import foreign

        chosen: dict[str, Any] = {"num_classes": num_classes, "img_size": img_size, "patch_size": patch_size}
        chosen = {option: value for option, value in chosen.items() if value is not None}
        create = foreign.create_timm if source == "timm" else foreign.create_hugging_face
        return create(rest, in_chans=in_chans, device=device, dtype=dtype, **chosen, **overrides)
    spec = preset_spec(name, num_classes=num_classes, img_size=img_size, patch_size=patch_size, in_chans=in_chans, **overrides)
    return build(spec, name=name, device=device, dtype=dtype)


def list_models(filter: str = "*") -> list[str]:
    """Names of presets, by shell pattern.

    >>> list_models("arvit_*")
    ['arvit_base', 'arvit_nano', 'arvit_style', 'arvit_vit_tiny']
    """
    return sorted(fnmatch.filter(preset_names(), filter))
