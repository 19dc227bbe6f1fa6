"""Plain data from a file (JSON, YAML) checked against types: which field, what was given, what is allowed.

    spec = from_plain(RunSpec, yaml.safe_load(text), "config.yaml")

A type is a dataclass, a TypedDict, a builtin, a Literal, or list, tuple, dict and union of these. Lists become tuples where a
tuple is asked for, and whole numbers become floats. A number must be finite.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

from softbias.errors import SoftbiasError, in_one_line, unknown_name

T = TypeVar("T")
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}


class SchemaError(SoftbiasError):
    """A field of a file that has the wrong type or value, or is missing."""


def from_plain(kind: type[T], given: Any, where: str) -> T:
    """`given` as a `kind`; `where` names the file in messages.

    >>> from_plain(dict[str, int], {"n": "many"}, "counts.json")
    Traceback (most recent call last):
    softbias.schema.SchemaError: counts.json: n must be a whole number, but is 'many'
    """
    return typing.cast(T, convert(kind, given, where, ""))


def read_json(path: Path) -> Any:
    """The content of a JSON file; a file that holds something else is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, or of UTF-8
        raise SchemaError(f"{path} is not JSON: {in_one_line(error)}") from error


def convert(kind: Any, given: Any, where: str, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return given
    if dataclasses.is_dataclass(kind):
        return from_fields(kind, given, where, path)
    if typing.is_typeddict(kind):
        return from_keys(kind, given, where, path)
    if origin in (Union, types.UnionType):
        return from_union(kind, given, where, path)
    if origin is NotRequired:
        return convert(arguments[0], given, where, path)
    if origin is Literal:
        return require(
            any(given is each or (given == each and type(given) is type(each)) for each in arguments), kind, given, where, path
        )
    if kind in (list, tuple) or origin in (list, tuple):
        return from_list(origin or kind, arguments, given, where, path)
    if kind in (dict, Mapping) or origin in (dict, Mapping):
        require(isinstance(given, Mapping) and all(isinstance(key, str) for key in given), dict, given, where, path)
        inner = arguments[1] if arguments else Any
        return {key: convert(inner, value, where, joined(path, key)) for key, value in given.items()}
    if kind is float:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        return float(require(number and math.isfinite(given), kind, given, where, path))
    if kind is int:
        return require(isinstance(given, int) and not isinstance(given, bool), kind, given, where, path)
    return require(isinstance(given, kind), kind, given, where, path)


def from_fields(kind: Any, given: Any, where: str, path: str) -> Any:
    """A dataclass from a mapping: every field by name, and no other."""
    require(isinstance(given, Mapping), dict, given, where, path)
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind) if field.init}
    refuse_unknown(given, fields, where, path)
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in given:
            raise SchemaError(f"{where}: {joined(path, name)} is missing")
    return kind(**{name: convert(hints[name], value, where, joined(path, name)) for name, value in given.items()})


def from_keys(kind: Any, given: Any, where: str, path: str) -> dict[str, Any]:
    """A TypedDict from a mapping; keys that it does not name are kept as they are, for readers of later versions."""
    require(isinstance(given, Mapping), dict, given, where, path)
    hints = get_type_hints(kind, include_extras=True)
    for name in sorted(kind.__required_keys__):
        if name not in given and get_origin(hints[name]) is not NotRequired:
            raise SchemaError(f"{where}: {joined(path, name)} is missing")
    return {
        name: convert(hints[name], value, where, joined(path, name)) if name in hints else value
        for name, value in given.items()
    }


def from_union(kind: Any, given: Any, where: str, path: str) -> Any:
    """The first type of the union that fits; a mapping is meant as its dataclass, whose error names the field."""
    for option in get_args(kind):
        if dataclasses.is_dataclass(option) and isinstance(given, Mapping):
            return convert(option, given, where, path)
        try:
            return convert(option, given, where, path)
        except SchemaError:
            continue
    return require(False, kind, given, where, path)


def from_list(kind: Any, arguments: tuple[Any, ...], given: Any, where: str, path: str) -> Any:
    fixed = kind is tuple and arguments and arguments[-1] is not Ellipsis
    right = isinstance(given, list | tuple) and (not fixed or len(given) == len(arguments))
    require(right, tuple[arguments] if fixed else list, given, where, path)  # type: ignore[valid-type]
    inner = arguments if fixed else [arguments[0] if arguments else Any] * len(given)
    return kind(
        convert(each, value, where, f"{path}[{index}]") for index, (each, value) in enumerate(zip(inner, given, strict=True))
    )


def refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any], where: str, path: str) -> None:
    for name in given:
        if name not in known:
            raise SchemaError(f"{where}: {unknown_name(f'field of {path}' if path else 'field', name, known)}")


def require(right: bool, kind: Any, given: Any, where: str, path: str) -> Any:
    if not right:
        abridged = repr(given) if len(repr(given)) <= 60 else f"{repr(given)[:57]}…"
        raise SchemaError(f"{where}: {path or 'the whole'} must be {describe(kind)}, but is {abridged}")
    return given


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(Literal["on", "off"]), describe(tuple[float, float])
    ('a whole number or nothing', "'on' or 'off'", 'a list of a number, a number')
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(each) for each in arguments)
    if origin is Literal:
        return " or ".join(repr(each) for each in arguments)
    if origin in (list, tuple) or kind in (list, tuple):
        return "a list of " + ", ".join(describe(each) for each in arguments if each is not Ellipsis) if arguments else "a list"
    if kind in (dict, Mapping) or origin in (dict, Mapping) or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return "settings by name"
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
