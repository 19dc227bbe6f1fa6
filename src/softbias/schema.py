"""Plain data from a file (JSON, YAML) checked against types: which field, what was given, what is allowed.

    spec = from_plain(RunSpec, yaml.safe_load(text), "config.yaml")

A type is a dataclass, a TypedDict, a builtin, a Literal, or list, tuple, dict and union of these. Lists become tuples where a
tuple is asked for, and whole numbers become floats. A number must be finite. `Annotated` types carry the bounds of a value
(`softbias.bounds`).

A dataclass of settings derives from `Checked`, so that its fields are held to their types and bounds however it is made: from
a file, from the command line or in Python. `checked_arguments` does the same for the arguments of a function.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from softbias.bounds import Bound, Length
from softbias.errors import SoftbiasError, unknown_name

T = TypeVar("T")
P = ParamSpec("P")
WORDS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing", Path: "a path",
}  # fmt: skip
LISTS = (list, tuple, Sequence)


class SchemaError(SoftbiasError):
    """A field of a file that has the wrong type or value, or is missing."""


def from_plain(kind: type[T], given: Any, where: str) -> T:
    """`given` as a `kind`; `where` names the file in messages.

    >>> from_plain(dict[str, int], {"n": "many"}, "counts.json")
    Traceback (most recent call last):
    softbias.schema.SchemaError: counts.json: n must be a whole number, but is 'many'
    """
    return typing.cast(T, convert(kind, given, where, ""))


def convert(kind: Any, given: Any, where: str, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return given
    if origin is Annotated:
        return within_bounds(kind, given, where, path)
    if dataclasses.is_dataclass(kind):
        return from_fields(kind, given, where, path)
    if typing.is_typeddict(kind):
        return from_keys(kind, given, where, path)
    if origin in (Union, types.UnionType):
        return from_union(kind, given, where, path)
    if origin is NotRequired:
        return convert(arguments[0], given, where, path)
    if origin is Literal:
        return from_choices(kind, given, where, path)
    if kind in LISTS or origin in LISTS:
        return from_list(list if list in (kind, origin) else tuple, arguments, given, where, path)
    if kind in (dict, Mapping) or origin in (dict, Mapping):
        require(isinstance(given, Mapping) and all(isinstance(key, str) for key in given), dict, given, where, path)
        inner = arguments[1] if arguments else Any
        return {key: convert(inner, value, where, joined(path, key)) for key, value in given.items()}
    if kind is float:
        return float(require(is_finite(given), kind, given, where, path))
    if kind is int:
        return int(require(isinstance(given, numbers.Integral) and not isinstance(given, bool), kind, given, where, path))
    return require(isinstance(given, kind), kind, given, where, path)


def is_finite(given: Any) -> bool:
    """Whether it is a number, of any library, that a float can hold."""
    try:
        return isinstance(given, numbers.Real) and not isinstance(given, bool) and math.isfinite(given)
    except OverflowError:  # a whole number beyond the largest float
        return False


def within_bounds(kind: Any, given: Any, where: str, path: str) -> Any:
    """A value whose type carries bounds; the error about a plain value names them even if its type is wrong."""
    inner, *bounds = get_args(kind)
    lengths = [bound for bound in bounds if isinstance(bound, Length)]
    if isinstance(given, list | tuple):  # before millions of entries are looked at
        require(all(bound.allows(given) for bound in lengths), kind, given, where, path)
    try:
        value = convert(inner, given, where, path)
    except SchemaError:
        require(inner not in WORDS, kind, given, where, path)
        raise
    require(all(bound.allows(value) for bound in bounds if isinstance(bound, Bound)), kind, given, where, path)
    return value


def from_choices(kind: Any, given: Any, where: str, path: str) -> Any:
    choices = get_args(kind)
    if isinstance(given, str) and path and all(isinstance(each, str) for each in choices) and given not in choices:
        unknown = unknown_name(path, given, choices)
        raise SchemaError(f"{where}: {unknown}" if where else str(unknown))
    return require(
        any(given is each or (given == each and type(given) is type(each)) for each in choices), kind, given, where, path
    )


def from_fields(kind: Any, given: Any, where: str, path: str) -> Any:
    """A dataclass from a mapping: every field by name, and no other."""
    if isinstance(given, kind):
        return given
    require(isinstance(given, Mapping), dict, given, where, path)
    hints, fields = bounded_hints(kind), {field.name: field for field in dataclasses.fields(kind) if field.init}
    refuse_unknown(given, fields, where, path)
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in given:
            raise SchemaError(f"{where}: {joined(path, name)} is missing")
    values = {name: convert(hints[name], value, where, joined(path, name)) for name, value in given.items()}
    try:
        return kind(**values)
    except SoftbiasError as error:  # fields that do not suit each other
        raise SchemaError(f"{where}: {error}" if where else str(error)) from error


def from_keys(kind: Any, given: Any, where: str, path: str) -> dict[str, Any]:
    """A TypedDict from a mapping; keys that it does not name are kept as they are, for readers of later versions."""
    require(isinstance(given, Mapping), dict, given, where, path)
    hints = bounded_hints(kind)
    for name in sorted(kind.__required_keys__):
        if name not in given and get_origin(hints[name]) is not NotRequired:
            raise SchemaError(f"{where}: {joined(path, name)} is missing")
    return {
        name: convert(hints[name], value, where, joined(path, name)) if name in hints else value
        for name, value in given.items()
    }


def from_union(kind: Any, given: Any, where: str, path: str) -> Any:
    """The first type of the union that fits. If only one of them is of the value's kind, its error is the exact one."""
    errors = {}
    for option in get_args(kind):
        try:
            return convert(option, given, where, path)
        except SchemaError as error:
            errors[option] = error
    meant = [option for option in errors if is_of_kind(given, option)]
    if len(meant) == 1:
        raise errors[meant[0]]
    return require(False, kind, given, where, path)


def is_of_kind(given: Any, option: Any) -> bool:
    """Whether a value is a number, a text, a list or settings by name, as the type is."""
    if get_origin(option) is Annotated:
        return is_of_kind(given, get_args(option)[0])
    origin = get_origin(option) or option
    if isinstance(given, str):
        return origin in (str, Path, Literal)
    if isinstance(given, list | tuple):
        return origin in LISTS
    if isinstance(given, Mapping):
        return origin in (dict, Mapping) or dataclasses.is_dataclass(origin) or typing.is_typeddict(origin)
    return isinstance(given, numbers.Real) and not isinstance(given, bool) and origin in (int, float)


def from_list(kind: Any, arguments: tuple[Any, ...], given: Any, where: str, path: str) -> Any:
    fixed = kind is tuple and len(arguments) > 1 and arguments[-1] is not Ellipsis
    right = isinstance(given, list | tuple | range) and (not fixed or len(given) == len(arguments))
    require(right, tuple[arguments] if fixed else list, given, where, path)  # type: ignore[valid-type]
    inner = arguments if fixed else [arguments[0] if arguments else Any] * len(given)
    return kind(
        convert(each, value, where, f"{path}[{index}]") for index, (each, value) in enumerate(zip(inner, given, strict=True))
    )


def refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any], where: str, path: str) -> None:
    for name in given:
        if name not in known:
            unknown = unknown_name(f"field of {path}" if path else "field", name, known)
            raise SchemaError(f"{where}: {unknown}" if where else str(unknown))


def require(right: bool, kind: Any, given: Any, where: str, path: str) -> Any:
    if not right:
        before = f"{where}: " if where else ""
        bounds = [each for each in get_args(kind) if isinstance(each, Bound)] if get_origin(kind) is Annotated else []
        hint = "".join(each.hint(given) for each in bounds)
        raise SchemaError(f"{before}{path or 'the whole'} must be {describe(kind)}, but is {abridged(given)}{hint}")
    return given


def abridged(given: Any) -> str:
    """A value as an error shows it: on one line, and not longer than that."""
    if isinstance(given, int) and abs(given) >= 10**60:
        return "a number of more than 60 digits"
    shortened = reprlib.Repr()
    shortened.maxstring = shortened.maxother = 60
    shortened.maxlevel = 2
    text = shortened.repr(given)
    return text if len(text) <= 80 else f"{text[:79]}…"


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(Literal["on", "off"]), describe(tuple[float, float])
    ('a whole number or nothing', "'on' or 'off'", 'a list of 2 entries, each a number')
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [str(each) for each in arguments[1:] if isinstance(each, Bound)]
        return " ".join([describe(arguments[0]), *bounds])
    if origin in (Union, types.UnionType):
        return " or ".join(describe(each) for each in arguments)
    if origin is Literal:
        return " or ".join(repr(each) for each in arguments)
    if len(arguments) > 1 and len(set(arguments)) == 1:
        return f"a list of {len(arguments)} entries, each {describe(arguments[0])}"
    if origin in LISTS or kind in LISTS:
        return "a list of " + ", ".join(describe(each) for each in arguments if each is not Ellipsis) if arguments else "a list"
    if kind in (dict, Mapping) or origin in (dict, Mapping) or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return "settings by name"
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# Dataclasses and functions whose values are checked


class Checked:
    """The base of dataclasses of settings: every field is held to its type and its bounds, and 8 becomes 8.0 in a float."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        hints = bounded_hints(kind)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            object.__setattr__(self, field.name, convert(hints[field.name], getattr(self, field.name), "", field.name))


def checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose arguments are checked where their annotations carry bounds."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        hints = bounded_hints(function)
        for name, value in signature.bind(*args, **options).arguments.items():
            if name in hints and has_bounds(hints[name]):
                convert(hints[name], value, "", name)
        return function(*args, **options)

    return checked


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Hold options to the annotations of the function, or of the class, that they are meant for."""
    hints = bounded_hints(function.__init__ if inspect.isclass(function) else function)
    for name, value in options.items():
        if name in hints:
            convert(hints[name], value, "", name)


@functools.cache
def bounded_hints(owner: Any) -> dict[str, Any]:
    """The types of a class's fields or of a function's arguments, with their bounds."""
    return get_type_hints(owner, include_extras=True)


def has_bounds(kind: Any) -> bool:
    """
    >>> has_bounds(Annotated[int, Bound()] | None), has_bounds(int | None)
    (True, False)
    """
    inner = get_args(kind)
    return any(isinstance(each, Bound) or has_bounds(each) for each in inner)
