"""A run and everything that is done with it: resolve, train, read, evaluate, probe, draw its page.

    from softbias.runs import Run, open_classifier

Names are imported when they are first used, because some modules of this package need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softbias.runs.opening import open_classifier
    from softbias.runs.predictions import Predictions
    from softbias.runs.run import Run
    from softbias.runs.spec import RunSpec

__all__ = ["Predictions", "Run", "RunSpec", "open_classifier"]

MODULES = {"Predictions": "predictions", "Run": "run", "RunSpec": "spec", "open_classifier": "opening"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'softbias.runs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"softbias.runs.{MODULES[name]}"), name)
