"""The models of the papers, by name: a preset is a family of models and a size, and gives a spec.

A new preset is a line in PRESETS; from outside the package it is `register_preset("mine", Preset(family, size))`, or an entry
point in the group "softbias.models". The families are in `families`.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softbias.errors import FewTokensWarning, SoftbiasError, unknown_name
from softbias.models.families import arvit, convit, deit, dwconv, dwnet, ibit, resnet, soft, vit, window
from softbias.models.patch_sizes import cpu_patch, fine_patch, suitable_patch
from softbias.models.spec import DWNetSpec, ModelSpec, ResNetSpec, Spec, pair
from softbias.registry import Registry
from softbias.schema import check_options

FEW_PATCHES = 16


@dataclass(frozen=True)
class Preset:
    """family: a function that makes a spec from its own options and from the fields of the image; size: some of its options;
    patch: the side of the patches that suits an image."""

    family: Callable[..., Spec]
    size: dict[str, Any]
    img_size: int = 224
    num_classes: int = 1000
    kind: type[Spec] = ModelSpec
    patch: Callable[[int | tuple[int, int]], int] = suitable_patch


TINY, SMALL, BASE = {"width": 192, "heads": 3}, {"width": 384, "heads": 6}, {"width": 768, "heads": 12}
DWNET_TINY, DWNET_BASE = {"blocks": (2, 2, 6, 2), "width": 96}, {"blocks": (2, 2, 18, 2), "width": 128}
NANO = {"width": 64, "heads": 4, "depth": 4}
SOFT_NANO = {"width": 64, "heads": 4, "depth": 2, "biased_blocks": 2, "stem": "residual", "feed_forward": "relu", "hidden": 128}

PRESETS = Registry[Preset]("model", group="softbias.models", instance_of=Preset)
PRESETS |= {
    "deit_tiny": Preset(deit, TINY),
    "deit_small": Preset(deit, SMALL),
    "deit_base": Preset(deit, BASE),
    "vit_base": Preset(vit, BASE),
    "convit_tiny": Preset(convit, {"width": 192, "heads": 4}),
    "convit_tiny_plus": Preset(convit, {"width": 256, "heads": 4}),
    "convit_small": Preset(convit, {"width": 432, "heads": 9}),
    "convit_small_plus": Preset(convit, {"width": 576, "heads": 9}),
    "convit_base": Preset(convit, {"width": 768, "heads": 16}),
    "convit_base_plus": Preset(convit, {"width": 1024, "heads": 16}),
    "ibit_tiny": Preset(ibit, TINY),
    "ibit_small": Preset(ibit, SMALL),
    "ibit_base": Preset(ibit, BASE),
    "arvit_base": Preset(arvit, {"width": 516, "heads": 12}, img_size=256),
    "arvit_style": Preset(arvit, {"width": 512, "heads": 8}, img_size=256),
    "arvit_vit_tiny": Preset(deit, {"width": 516, "heads": 12, "depth": 6}, img_size=256),
    "window_tiny": Preset(window, TINY),
    "window_small": Preset(window, SMALL),
    "dwconv_tiny": Preset(dwconv, TINY),
    "dwconv_dynamic_tiny": Preset(dwconv, TINY | {"dynamic": True}),
    "dwnet_tiny": Preset(dwnet, DWNET_TINY, kind=DWNetSpec),
    "dwnet_base": Preset(dwnet, DWNET_BASE, kind=DWNetSpec),
    "dwnet_dynamic_tiny": Preset(dwnet, DWNET_TINY | {"dynamic": True}, kind=DWNetSpec),
    "dwnet_dynamic_base": Preset(dwnet, DWNET_BASE | {"dynamic": True}, kind=DWNetSpec),
    "soft_tiny": Preset(soft, {"width": 192, "heads": 4}, 32, 10),
    "soft_small": Preset(soft, {"width": 288, "heads": 9, "depth": 12}, 96, 10, patch=fine_patch),
    "resnet50": Preset(resnet, {}, kind=ResNetSpec),
    "soft_nano": Preset(soft, SOFT_NANO, 32, 10, patch=cpu_patch),
    "deit_nano": Preset(deit, NANO, 32, 10),
    "convit_nano": Preset(convit, NANO | {"gated_blocks": 3}, 32, 10),
    "ibit_nano": Preset(ibit, NANO, 32, 10),
    "arvit_nano": Preset(arvit, NANO, 32, 10),
    "window_nano": Preset(window, NANO, 32, 10),
    "dwconv_nano": Preset(dwconv, NANO, 32, 10),
    "dwnet_nano": Preset(dwnet, {"blocks": (1, 1, 1, 1), "width": 12}, 32, 10, DWNetSpec),
    "resnet_nano": Preset(
        resnet, {"blocks": (1, 1, 1, 1), "channels": (16, 32, 64, 96), "bottleneck": False}, 32, 10, ResNetSpec
    ),
}
register_preset, find_preset, preset_names = PRESETS.register, PRESETS.find, PRESETS.names
BUILT_IN = tuple(PRESETS)  # these are in timm's registry, too


def preset_spec(
    name: str,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_chans: int = 3,
    **overrides: Any,
) -> Spec:
    """The spec of a preset, for the given images, with overrides.

    An override is an option of the preset's family (`strength` of ConViT, `rank` of IBiT, `depth`, …) or a field of the spec
    (`drop_path`, `pool`, …); any other name is an error.
    """
    preset = find_preset(name)
    size = pair("img_size", preset.img_size if img_size is None else img_size)
    image = {"img_size": size, "in_chans": in_chans}
    image["num_classes"] = preset.num_classes if num_classes is None else num_classes
    signature = inspect.signature(preset.family).parameters
    own = [option for option, parameter in signature.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    of_family = preset.size | {option: overrides.pop(option) for option in own if option in overrides}
    known = {field.name for field in dataclasses.fields(preset.kind)} | set(own)
    for option in overrides:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    if preset.kind is ModelSpec:
        image["patch_size"] = preset.patch(size) if patch_size is None else pair("patch_size", patch_size)
    elif patch_size is not None:
        raise SoftbiasError(f"the patches of {name} cannot be chosen, but patch_size={patch_size}")
    check_options(preset.family, of_family)
    spec = preset.family(**of_family, **image)
    if overrides:
        spec = dataclasses.replace(spec, **overrides)
    warn_of_few_patches(spec)
    return spec


def warn_of_few_patches(spec: Spec) -> None:
    if isinstance(spec, ModelSpec) and spec.grid(0).patches < FEW_PATCHES:
        patches, better = spec.grid(0).patches, suitable_patch(spec.img_size)
        warnings.warn(
            f"an image of {spec.img_size[0]} × {spec.img_size[1]} in patches of {spec.patch_size[0]} × {spec.patch_size[1]} "
            f"leaves only {patches} tokens to attend to; patch_size={better} is a better choice",
            FewTokensWarning,
            stacklevel=3,
        )


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def timm_cfg(spec: Spec, name: str | None) -> dict[str, Any]:
    """timm's `pretrained_cfg` of a model; without a preset's name its architecture is the one that takes a whole spec."""
    transformer, colored = isinstance(spec, ModelSpec), spec.in_chans == 3
    convolutional = isinstance(spec, ResNetSpec)
    return {
        "architecture": f"softbias_{name if name in BUILT_IN else 'vit'}",
        "url": "",
        "num_classes": spec.num_classes,
        "input_size": (spec.in_chans, *spec.img_size),
        "fixed_input_size": transformer,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_MEAN if colored else (0.5,) * spec.in_chans,
        "std": IMAGENET_STD if colored else (0.5,) * spec.in_chans,
        "first_conv": first_layer(spec),
        "classifier": "fc" if convolutional else "head",
        "license": "apache-2.0",
    }


def first_layer(spec: Spec) -> str:
    """The name of the layer that takes the image."""
    if isinstance(spec, ResNetSpec):
        return "conv1"
    if not isinstance(spec, ModelSpec) or (spec.stem == "strided" and spec.patch_size[0] == 2):  # a single convolution
        return "patch_embed.proj"
    return "patch_embed." + {"conv": "convs.0", "strided": "convs.0", "residual": "stages.0"}.get(spec.stem, "proj")
