"""softbias: vision transformers that learn from small image sets, because their attention carries a soft inductive bias.

    import softbias
    model = softbias.create_model("convit_tiny", num_classes=10, img_size=32)
    seen = softbias.inspect(model, images, layers=[0])

Names are imported when they are first used, so that `import softbias` and `softbias --help` are quick; torch comes with the
first of them. The models are in timm's registry as `softbias_…` as soon as both libraries are imported, in either order.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softbias import _timm_hook, environment
from softbias._version import __version__

if TYPE_CHECKING:  # for type checkers and editors; a test compares it with EXPORTS
    from softbias.attention import ATTENTION as ATTENTION
    from softbias.attention import register_attention as register_attention
    from softbias.data import load_dataset as load_dataset
    from softbias.data import register_dataset as register_dataset
    from softbias.explanations import Explanation as Explanation
    from softbias.grid import Grid as Grid
    from softbias.models import Layer as Layer
    from softbias.models import ModelSpec as ModelSpec
    from softbias.models import Preset as Preset
    from softbias.models import ResNetSpec as ResNetSpec
    from softbias.models import build as build
    from softbias.models import create_model as create_model
    from softbias.models import list_models as list_models
    from softbias.models import register_preset as register_preset
    from softbias.models.convert import convert as convert
    from softbias.models.convert import resize as resize
    from softbias.models.convolution_heads import convert_convolutions as convert_convolutions
    from softbias.models.export import export as export
    from softbias.models.inspect import Inspection as Inspection
    from softbias.models.inspect import inspect as inspect
    from softbias.models.storage import load as load
    from softbias.models.storage import save as save
    from softbias.models.weights import load_weights as load_weights
    from softbias.probes import register_probe as register_probe
    from softbias.runs.fit import fit as fit
    from softbias.runs.inference import evaluate as evaluate
    from softbias.runs.inference import explain as explain
    from softbias.runs.inference import predict as predict
    from softbias.runs.probing import probe as probe
    from softbias.sklearn import SoftbiasClassifier as SoftbiasClassifier
    from softbias.study.compare import compare as compare

EXPORTS: dict[str, tuple[str, ...]] = {
    "softbias.attention": ("ATTENTION", "register_attention"),
    "softbias.data": ("load_dataset", "register_dataset"),
    "softbias.explanations": ("Explanation",),
    "softbias.grid": ("Grid",),
    "softbias.models": (
        "Layer",
        "ModelSpec",
        "Preset",
        "ResNetSpec",
        "build",
        "create_model",
        "list_models",
        "register_preset",
    ),
    "softbias.models.convert": ("convert", "resize"),
    "softbias.models.convolution_heads": ("convert_convolutions",),
    "softbias.models.export": ("export",),
    "softbias.models.inspect": ("Inspection", "inspect"),
    "softbias.models.storage": ("load", "save"),
    "softbias.models.weights": ("load_weights",),
    "softbias.probes": ("register_probe",),
    "softbias.runs.fit": ("fit",),
    "softbias.runs.inference": ("evaluate", "explain", "predict"),
    "softbias.runs.probing": ("probe",),
    "softbias.sklearn": ("SoftbiasClassifier",),
    "softbias.study.compare": ("compare",),
}
MODULES = {name: module for module, names in EXPORTS.items() for name in names}

__all__ = ["__version__", *sorted(MODULES)]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'softbias' has no attribute {name!r}")
    value = getattr(importlib.import_module(MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})


environment.set_defaults()
_timm_hook.install()
