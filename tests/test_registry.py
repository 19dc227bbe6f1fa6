"""What all registries share; each of them is tested with an entry from outside the package."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from softbias.errors import SoftbiasError, UnknownNameError
from softbias.registry import Registry

OUTSIDE = {  # where a registry is, and a module of another package that defines `entry`
    "softbias.attention": ("softbias.attention:ATTENTION", "from softbias.attention import Full\nclass entry(Full): pass"),
    "softbias.regularizers": (
        "softbias.regularizers:REGULARIZERS",
        "from softbias.regularizers import Regularizer\nclass entry(Regularizer): pass",
    ),
    "softbias.objectives": (
        "softbias.training.objectives:OBJECTIVES",
        "from softbias.training.objectives.supervised import Supervised\nclass entry(Supervised): pass",
    ),
    "softbias.models": (
        "softbias.models.presets:PRESETS",
        "from softbias.models.presets import PRESETS\nfrom dataclasses import replace\nentry = replace(PRESETS['deit_nano'])",
    ),
    "softbias.data": ("softbias.data.named:DATASETS", "def entry(request): ..."),
    "softbias.probes": (
        "softbias.probes:PROBES",
        "from softbias.probes import PROBES\nfrom dataclasses import replace\nentry = replace(PROBES['locality'])",
    ),
    "softbias.studies": (
        "softbias.study.papers:STUDIES",
        "from softbias.study.papers import STUDIES\nfrom dataclasses import replace\nentry = replace(STUDIES['convit-sizes'])",
    ),
}


def registry_at(path: str) -> Registry[Any]:
    module, name = path.split(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Registry)
    return found


@pytest.mark.parametrize("group", OUTSIDE)
def test_an_entry_point_of_another_package_is_listed_unloaded_and_loaded_by_name(group, tmp_path, monkeypatch):
    path, source = OUTSIDE[group]
    registry, name = registry_at(path), f"outside-{group.rpartition('.')[2]}"
    module = name.replace("-", "_")
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:entry\n")
    (tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(UnknownNameError):
        registry.find(name)
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(registry):
        assert registry.group == group
        assert name in registry.names() and name not in registry
        assert registry.find(name) == importlib.import_module(module).entry


class Animal:
    pass


class Cat(Animal):
    pass


def animals() -> Registry[type[Animal]]:
    registry = Registry[type[Animal]]("animal", group="zoo.animals", subclass_of=Animal)
    registry |= {"cat": Cat}
    return registry


def test_the_same_entry_may_be_registered_twice_and_another_may_not_take_its_name():
    registry = animals()
    assert registry.register("cat", Cat) is Cat
    with pytest.raises(SoftbiasError, match=r"'cat'.*test_registry\.Cat"):
        registry.register("cat", type("Lion", (Cat,), {}))
    assert registry["cat"] is Cat


@pytest.mark.parametrize(
    "entry", [object, ModuleType, "Cat", Cat(), None], ids=["object", "module", "text", "instance", "none"]
)
def test_an_entry_of_another_type_is_refused_by_name(entry):
    registry = animals()
    with pytest.raises(SoftbiasError, match=r"'mine'.*test_registry\.Animal"):
        registry.register("mine", entry)
    assert "mine" not in registry


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownNameError, match=r"'cot'.*'cat'"):
        animals().find("cot")
