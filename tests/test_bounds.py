"""Every setting has bounds: a new field without them fails here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, is_typeddict

import pytest

import softbias
from softbias.attention import ATTENTION
from softbias.bench.suites import Options
from softbias.bounds import Bound, Text, Within
from softbias.cli import COMMANDS, find
from softbias.data.augment import Augmentation, RandAugment
from softbias.data.sources import DataOptions
from softbias.models.conversion import Conversion
from softbias.models.presets import PRESETS
from softbias.models.spec import DWNetSpec, Layer, ModelSpec, ResNetSpec
from softbias.regularizers import REGULARIZERS, RegularizerConfig
from softbias.runs.fit import fit
from softbias.runs.inference import predict
from softbias.runs.partial import PartialRunSpec
from softbias.runs.probing import probe
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start
from softbias.schema import Checked, SchemaError, bounded_hints, check_options, has_bounds
from softbias.study.arms import Arm, Pretrain, arms_from
from softbias.study.compare import compare, run_study
from softbias.study.scores import Score, Scores
from softbias.study.spec import StudySpec
from softbias.training.plan import LoopSettings
from softbias.training.recipe import Recipe

VALID: dict[type, Any] = {
    Recipe: Recipe(),
    Augmentation: Augmentation(),
    RandAugment: RandAugment(),
    RunSpec: RunSpec("fashion", "deit_nano", Recipe()),
    PartialRunSpec: PartialRunSpec(),
    Start: Start("pretrained", "w", "w", None, "0" * 64, "mit", (0.5,), (0.5,), (32, 32)),
    Pretrain: Pretrain(Recipe()),
    Arm: Arm("a", "deit_nano"),
    StudySpec: StudySpec("s", ("fashion",), arms_from("deit_nano")),
    RegularizerConfig: RegularizerConfig("distance", (0,)),
    Conversion: Conversion("gated", (0,)),
    Layer: Layer(),
    ModelSpec: ModelSpec((32, 32), (8, 8), 64, 4, (Layer(),)),
    ResNetSpec: ResNetSpec((32, 32)),
    DWNetSpec: DWNetSpec((32, 32)),
    DataOptions: DataOptions(),
    LoopSettings: LoopSettings(),
    Score: Score(0.5, 0.4, 0.6),
    Scores: Scores("accuracy", {"0123456789": Score(0.5)}, "on scenes", 0.1),
    Options: None,
}
FUNCTIONS = [fit, predict, probe, compare, run_study, *map(find, COMMANDS)]
NUMBERS = [float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 10**400, True, "many"]
TEXTS = ["a\0b", "x" * 200_000, 3]


def import_everything() -> None:
    for module in pkgutil.walk_packages(softbias.__path__, "softbias."):
        if "__main__" not in module.name and not module.name.endswith(("_program", "triton_api")):
            importlib.import_module(module.name)


def leaves(kind: Any, bounds: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The plain types inside a type, each with the bounds that are stated directly at it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = tuple(each for each in arguments[1:] if isinstance(each, Bound))
        yield from leaves(arguments[0], own)
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from leaves(each, bounds)
    elif origin is Literal or origin in (dict, Mapping):
        return
    elif origin is NotRequired:
        yield from leaves(arguments[0])
    elif arguments:
        for each in arguments:
            if each is not Ellipsis:
                yield from leaves(each)
    elif is_typeddict(kind):
        for each in bounded_hints(kind).values():
            yield from leaves(each)
    else:
        yield kind, bounds


def unbounded(hints: Mapping[str, Any]) -> list[str]:
    wanted = {int: Within, float: Within, str: Text, Path: Text}
    return [
        name
        for name, kind in hints.items()
        for leaf, bounds in leaves(kind)
        if leaf in wanted and not any(isinstance(bound, wanted[leaf]) for bound in bounds)
    ]


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_field_of_every_dataclass_of_settings_has_bounds():
    import_everything()
    found = {each for each in subclasses(Checked) if each.__module__.startswith("softbias.")}
    assert found == set(VALID)
    assert {each.__name__: unbounded(bounded_hints(each)) for each in found if unbounded(bounded_hints(each))} == {}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_every_argument_of_every_command_and_function_has_bounds(function):
    hints = dict(bounded_hints(function))
    if "options" in hints and dataclasses.is_dataclass(get_args(hints["options"])[0]):
        hints |= bounded_hints(get_args(hints.pop("options"))[0])
    objects = ("return", "line", *(() if "cli" in function.__module__ else ("source", "sources", "files", "spec")))
    assert unbounded({name: kind for name, kind in hints.items() if name not in objects}) == []


def options_of(function: Any) -> dict[str, Any]:
    """The keyword-only options of a mechanism, a regularizer or a family of models, with their types."""
    named = [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
    hints = bounded_hints(function.__init__ if inspect.isclass(function) else function)
    return {name: hints[name] for name in named}


FAMILIES = dict.fromkeys(preset.family for preset in PRESETS.values())  # in order: workers must collect the same tests
OPTIONS = [*ATTENTION.values(), *REGULARIZERS.values(), *FAMILIES]


@pytest.mark.parametrize("function", OPTIONS, ids=lambda each: each.__name__)
def test_every_option_of_a_mechanism_a_regularizer_and_a_family_refuses_nonsense(function):
    for name, kind in options_of(function).items():
        if name in ("width", "heads", "img_size"):  # fields of the spec, which checks them
            continue
        assert unbounded({name: kind}) == []
        for value in (*NUMBERS[:6], "a\0b") if has_bounds(kind) else ():
            with pytest.raises(SchemaError, match=name):
                check_options(function, {name: value})


CASES = [(kind, field.name) for kind, valid in VALID.items() if valid is not None for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_nonsense_is_refused_with_the_name_of_the_field(kind, name):
    hint = bounded_hints(kind)[name]
    plain = [(leaf, bounds) for leaf, bounds in leaves(hint) if leaf in (int, float, str)]
    kinds = {leaf for leaf, _ in plain}
    wrong: list[Any] = [object(), {1: 2}]
    wrong += NUMBERS if kinds & {int, float} else []
    wrong += TEXTS if kinds == {str} else []
    for leaf, bounds in plain:
        within = next((bound for bound in bounds if isinstance(bound, Within)), None)
        if within is not None:
            less = within.least - 1 if leaf is int else math.nextafter(within.least, -math.inf)
            wrong += [within.least if within.above else less, within.most + (0 if within.below else 1)]
    listed = any(get_origin(each) in (list, tuple) for each in (hint, *get_args(hint)))
    for value in wrong:
        if value is True and bool in {leaf for leaf, _ in leaves(hint)}:
            continue
        for given in [value, *([(value,), (value, value)] if listed else [])]:
            with pytest.raises(SchemaError) as error:
                dataclasses.replace(VALID[kind], **{name: given})
            text = str(error.value)
            assert name in text and "\n" not in text and len(text) < 500
