"""What a study compares: arms × data × fractions × seeds, as frozen data. Settings only, without torch.

An arm is a model plus overrides: `deit_tiny@regularize=distance:layer=2,weight=0.01@lr=1e-3`. A study is a YAML file:

    name: mine
    data: [fashion]
    arms: [deit_nano@patch_size=8, {name: ConViT, model: convit_nano, model_options: {patch_size: 8}}]
    fractions: [0.1, 1]
    seeds: 3
    recipe: {preset: quick, epochs: 10}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from softbias.errors import SoftbiasError, in_one_line, unknown_name
from softbias.files import write_text
from softbias.runs.spec import checked_fraction, differences
from softbias.study.arms import Arm, read_arm, read_recipe, shallow, short_arm, short_recipe
from softbias.training.recipe import Recipe, checked_fields, plain_value

BUDGETS = ("steps", "epochs", "flops")
SHOWN = 4  # differences between two recipes that an error names


@dataclass(frozen=True)
class StudySpec:
    """A comparison: every arm with the same data, fractions, seeds, recipe and budget.

    budget      "steps": every run takes the steps of a run on all the data; "epochs": the recipe's epochs, whatever the
                fraction; "flops": the steps that cost as much as the first arm's
    tune        trials that every arm may spend on its learning rate and weight decay, on a validation part of the training data
    published   numbers to show beside ours: dicts of data, arm, train_fraction, metric, value, note
    store       the folder of the runs, seen from the study's; "runs" inside it if not given
    """

    name: str
    data: tuple[str, ...]
    arms: tuple[Arm, ...]
    fractions: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0, 1, 2)
    recipe: Recipe = field(default_factory=Recipe)
    budget: Literal["steps", "epochs", "flops"] = "steps"
    tune: int = 0
    data_options: Mapping[str, Any] = field(default_factory=dict)
    store: str | None = None
    title: str = ""
    question: str = ""
    source: str = ""
    published: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fractions", tuple(checked_fraction(each, "a fraction") for each in self.fractions))
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise SoftbiasError(f"a study's name is made of letters, digits, '.', '+', '-' and '_', but name={self.name!r}")
        for what in ("data", "arms", "fractions", "seeds"):
            values = [arm.name for arm in self.arms] if what == "arms" else list(getattr(self, what))
            if not values:
                raise SoftbiasError(f"a study needs at least one of {what}, but there is none")
            twice = sorted({str(value) for value in values if values.count(value) > 1})
            if twice:
                raise SoftbiasError(f"{what} of a study differ from each other, but {', '.join(twice)} stands there twice")
        if self.budget not in BUDGETS:
            raise unknown_name("budget", self.budget, BUDGETS)
        if self.tune < 0 or min(self.seeds) < 0:
            raise SoftbiasError(f"tune and seeds count from 0, but tune={self.tune} and seeds={self.seeds}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of recipes and arms what differs from the defaults."""
        plain = {name: plain_value(value) for name, value in shallow(self).items()}
        plain["recipe"] = short_recipe(self.recipe)
        plain["arms"] = [short_arm(arm) for arm in self.arms]
        plain["published"] = [dict(number) for number in self.published]
        empty = StudySpec("x", ("x",), (Arm("x", "x"),))
        must = ("name", "data", "arms", "fractions", "seeds", "recipe", "budget")
        return {name: plain[name] for name in plain if name in must or getattr(self, name) != getattr(empty, name)}

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> StudySpec:
        plain = checked_fields(StudySpec, given)
        for name in ("name", "data", "arms"):
            if name not in plain:
                raise SoftbiasError(f"a study needs {name}; it has {', '.join(sorted(plain)) or 'nothing'}")
        plain["data"] = (plain["data"],) if isinstance(plain["data"], str) else tuple(plain["data"])
        plain["arms"] = tuple(read_arm(arm) for arm in plain["arms"])
        seeds = plain.get("seeds", 3)
        plain["seeds"] = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        fractions = plain.get("fractions", (1.0,))
        plain["fractions"] = (fractions,) if isinstance(fractions, int | float) else tuple(fractions)
        plain["recipe"] = read_recipe(plain.get("recipe", "small"))
        plain["published"] = tuple(plain.get("published", ()))
        plain["notes"] = tuple(plain.get("notes", ()))
        return StudySpec(**plain)


def extended(old: StudySpec, new: StudySpec) -> StudySpec:
    """The old study with what the new one has more; other settings must be the same."""
    plain = ("budget", "tune", "data_options", "store")
    different = [name for name in ("recipe", *plain) if getattr(old, name) != getattr(new, name)]
    arms = {arm.name: arm for arm in old.arms}
    different += [f"arm {arm.name}" for arm in new.arms if arms.setdefault(arm.name, arm) != arm]
    if different:
        changes = differences(old.recipe.to_dict(), new.recipe.to_dict())
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        before, after = ({name: plain_value(getattr(one, name)) for name in plain} for one in (old, new))
        told = differences(before, after)
        told += [f"recipe: {'; '.join(changes[:SHOWN])}{more}"] if changes else []
        why = f" ({'; '.join(told)})" if told else ""
        raise SoftbiasError(f"its {', '.join(different)} was another{why}")
    return replace(
        new,
        data=tuple(dict.fromkeys((*old.data, *new.data))),
        arms=tuple(arms.values()),
        fractions=tuple(sorted({*old.fractions, *new.fractions})),
        seeds=tuple(sorted({*old.seeds, *new.seeds})),
    )


def read_study(path: str | Path) -> StudySpec:
    """The study of a YAML file, or of a study's folder."""
    file = Path(path) / "study.yaml" if Path(path).is_dir() else Path(path)
    try:
        plain = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SoftbiasError(f"the study {file} cannot be read: {in_one_line(error)}") from error
    if not isinstance(plain, dict):
        raise SoftbiasError(f"the study {file} must hold settings by name")
    try:
        return StudySpec.from_dict(plain)
    except (ValueError, TypeError) as error:
        raise SoftbiasError(f"the study {file}: {error}") from error


def write_study(spec: StudySpec, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "study.yaml", yaml.safe_dump(spec.to_dict(), sort_keys=False, allow_unicode=True))


def parse_numbers(text: str, what: str) -> tuple[float, ...]:
    """
    >>> parse_numbers("0.05,0.1,1", "fractions")
    (0.05, 0.1, 1.0)
    """
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise SoftbiasError(f"{what} takes numbers separated by commas, such as 0.1,1, but got {text!r}") from None


def parse_seeds(text: str | int) -> tuple[int, ...]:
    """How many, or which.

    >>> parse_seeds("3"), parse_seeds("4,7")
    ((0, 1, 2), (4, 7))
    """
    words = str(text).split(",")
    if not all(word.strip().isdecimal() for word in words) or words == ["0"]:
        raise SoftbiasError(f"seeds takes how many there are (3) or which ones (0,1,5), but got {text!r}")
    return tuple(range(int(words[0]))) if len(words) == 1 else tuple(map(int, words))
