"""What timm keeps about a model beside its weights: the input it wants, and the names of its first and last layer."""

from __future__ import annotations

from typing import Any

from softbias.models.presets import PRESETS
from softbias.models.spec import ModelSpec, Spec

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def timm_cfg(spec: Spec, name: str | None) -> dict[str, Any]:
    """timm's `pretrained_cfg` of a model; without a preset's name its architecture is the one that takes a whole spec."""
    transformer, colored = isinstance(spec, ModelSpec), spec.in_chans == 3
    return {
        "architecture": f"softbias_{name if name in PRESETS else 'vit'}",
        "url": "",
        "num_classes": spec.num_classes,
        "input_size": (spec.in_chans, *spec.img_size),
        "fixed_input_size": transformer,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_MEAN if colored else (0.5,) * spec.in_chans,
        "std": IMAGENET_STD if colored else (0.5,) * spec.in_chans,
        "first_conv": "patch_embed.proj" if transformer else "conv1",
        "classifier": "head" if transformer else "fc",
        "license": "apache-2.0",
    }
