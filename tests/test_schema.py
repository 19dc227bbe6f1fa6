from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from softbias.schema import SchemaError, from_plain


@dataclass(frozen=True)
class Inner:
    flip: float = 0.5
    zoom: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class Outer:
    data: str
    seed: int = 0
    mode: Literal["on", "off"] = "on"
    names: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None


class Meta(TypedDict):
    step: int
    note: NotRequired[str]


def test_a_dataclass_is_built_from_plain_data_with_its_inner_ones():
    given = {"data": "x", "names": ["a", "b"], "inner": {"flip": 1, "zoom": [0.5, 2]}, "limit": None}
    found = from_plain(Outer, given, "f")
    assert found == Outer("x", names=("a", "b"), inner=Inner(1.0, (0.5, 2.0)))
    assert isinstance(found.inner.flip, float)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "data"),
        ({"data": 3}, "data"),
        ({"data": "x", "seed": True}, "seed"),
        ({"data": "x", "seed": 1.5}, "seed"),
        ({"data": "x", "mode": "maybe"}, "mode"),
        ({"data": "x", "names": "ab"}, "names"),
        ({"data": "x", "names": ["a", 2]}, "names[1]"),
        ({"data": "x", "inner": {"flip": float("nan")}}, "inner.flip"),
        ({"data": "x", "inner": {"zoom": [1]}}, "inner.zoom"),
        ({"data": "x", "limit": "many"}, "limit"),
        ({"data": "x", "options": [1]}, "options"),
        ({"data": "x", "sed": 1}, "sed"),
        ([1], "the whole"),
    ],
)
def test_a_wrong_field_is_named_with_the_file(given, field):
    with pytest.raises(SchemaError) as error:
        from_plain(Outer, given, "config.yaml")
    assert str(error.value).startswith("config.yaml: ") and field in str(error.value)


def test_a_typed_dict_needs_its_keys_and_keeps_others():
    assert from_plain(Meta, {"step": 3, "later": [1]}, "meta.json") == {"step": 3, "later": [1]}
    with pytest.raises(SchemaError, match="step"):
        from_plain(Meta, {"note": "x"}, "meta.json")
    with pytest.raises(SchemaError, match="note"):
        from_plain(Meta, {"step": 3, "note": 4}, "meta.json")
