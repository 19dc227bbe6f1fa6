"""Put our models into timm's registry when timm is imported, without importing timm (and torch) ourselves.

`import softbias` must be quick, and `timm.create_model("softbias_convit_tiny")` must work after it. If timm is imported
already, we register at once. If not, a finder waits for `timm.models`, lets Python import it as usual, and then registers.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

AWAITED = "timm.models"


def register() -> None:
    importlib.import_module("softbias.models.timm_compat")


class RegisteringLoader(importlib.abc.Loader):
    """Python's own loader for timm.models, followed by our registration."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        register()


class TimmFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = RegisteringLoader(spec.loader)
        return spec


def install() -> None:
    if AWAITED in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, TimmFinder())
