"""Our models in timm's registry: `timm.create_model("softbias_convit_tiny", num_classes=10, img_size=32)`.

Importing this module registers them; `softbias._timm_hook` does so as soon as timm is imported. `softbias_vit` takes a
whole spec and is the architecture of saved models that no preset names (mixtures, converted models); without one it is DeiT-Ti.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from timm.models._builder import build_model_with_cfg
from timm.models._registry import register_model
from torch import nn

from softbias.models.cfg import timm_cfg
from softbias.models.presets import PRESETS, preset_spec
from softbias.models.spec import spec_from_dict

TIMM_NAMES = {  # timm's words for options that we name otherwise
    "drop_path_rate": "drop_path",
    "drop_rate": "dropout",
    "embed_dim": "width",
    "num_heads": "heads",
    "global_pool": "pool",
}
POOLS = {"avg": "average", "token": "token", "flatten": "flatten"}


def prefixed(name: str) -> str:
    return f"softbias_{name}"


def build_registered(name: str | None, *, spec: Mapping[str, Any] | None = None, **options: Any) -> nn.Module:
    """Build a preset, or exactly the model of a spec, from the options that timm hands over."""
    from softbias.models import build, create_model  # here, because importing them may be what imports timm

    options = {TIMM_NAMES.get(option, option): value for option, value in options.items() if value is not None}
    if "pool" in options:
        options["pool"] = POOLS.get(options["pool"], options["pool"])
    if spec is None:
        return create_model(name or "deit_tiny", **options)
    placement = {option: options.pop(option) for option in ("device", "dtype") if option in options}
    return build(replace(spec_from_dict(spec), **options), name=name, **placement)


def entry_point(name: str | None) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **options: Any) -> nn.Module:
        def model_class(**chosen: Any) -> nn.Module:
            return build_registered(name, **chosen)

        model: Any = build_model_with_cfg(model_class, variant, pretrained, **options)
        model.pretrained_cfg["input_size"] = timm_cfg(model.spec, name)["input_size"]  # of this model, not of the preset
        return model

    variant = prefixed(name or "vit")
    create.__name__ = create.__qualname__ = variant
    create.__doc__ = f"The softbias preset {name}." if name else "A plain ViT, or the softbias model of the spec that is given."
    create.__module__ = __name__
    return create


default_cfgs = {prefixed(name): timm_cfg(preset_spec(name), name) for name in PRESETS}
default_cfgs[prefixed("vit")] = timm_cfg(preset_spec("deit_tiny"), None)
for preset in (*PRESETS, None):
    register_model(entry_point(preset))
