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

if TYPE_CHECKING:
    from softbias.attention import ATTENTION, register_attention
    from softbias.data import load_dataset, register_dataset
    from softbias.explanations import Explanation
    from softbias.grid import Grid
    from softbias.models import Layer, ModelSpec, ResNetSpec, build, create_model, list_models
    from softbias.models.convert import convert
    from softbias.models.inspect import Inspection, inspect
    from softbias.models.resize import resize
    from softbias.models.storage import export, load, save
    from softbias.models.weights import load_weights
    from softbias.probes import register_probe
    from softbias.runs.fit import fit
    from softbias.runs.inference import evaluate, explain, predict
    from softbias.runs.probing import probe
    from softbias.sklearn import SoftbiasClassifier
    from softbias.study.compare import compare

__all__ = [
    "ATTENTION",
    "Explanation",
    "Grid",
    "Inspection",
    "Layer",
    "ModelSpec",
    "ResNetSpec",
    "SoftbiasClassifier",
    "__version__",
    "build",
    "compare",
    "convert",
    "create_model",
    "evaluate",
    "explain",
    "export",
    "fit",
    "inspect",
    "list_models",
    "load",
    "load_dataset",
    "load_weights",
    "predict",
    "probe",
    "register_attention",
    "register_dataset",
    "register_probe",
    "resize",
    "save",
]

PLACES = {
    "ATTENTION": "softbias.attention",
    "Explanation": "softbias.explanations",
    "Grid": "softbias.grid",
    "Inspection": "softbias.models.inspect",
    "Layer": "softbias.models",
    "ModelSpec": "softbias.models",
    "ResNetSpec": "softbias.models",
    "SoftbiasClassifier": "softbias.sklearn",
    "build": "softbias.models",
    "compare": "softbias.study.compare",
    "convert": "softbias.models.convert",
    "create_model": "softbias.models",
    "evaluate": "softbias.runs.inference",
    "explain": "softbias.runs.inference",
    "export": "softbias.models.storage",
    "fit": "softbias.runs.fit",
    "inspect": "softbias.models.inspect",
    "list_models": "softbias.models",
    "load": "softbias.models.storage",
    "load_dataset": "softbias.data",
    "load_weights": "softbias.models.weights",
    "predict": "softbias.runs.inference",
    "probe": "softbias.runs.probing",
    "register_attention": "softbias.attention",
    "register_dataset": "softbias.data",
    "register_probe": "softbias.probes",
    "resize": "softbias.models.resize",
    "save": "softbias.models.storage",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'softbias' has no attribute {name!r}")
    value = getattr(importlib.import_module(PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})


environment.set_defaults()
_timm_hook.install()
