"""What a study compares: arms × data × fractions × seeds, as frozen data. Nothing here imports torch.

An arm is a model plus overrides: `deit_tiny@regularize=distance:layer=2,weight=0.01@lr=1e-3`. A study is a YAML file:

    name: mine
    data: [fashion]
    arms: [deit_nano@patch_size=8, {name: ConViT, model: convit_nano, model_options: {patch_size: 8}}]
    fractions: [0.1, 1]
    seeds: 3
    recipe: {preset: quick, epochs: 10}
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from softbias.bounds import Count, Fraction, Length, LongText, Seed, ShortText, Text, Within
from softbias.errors import SoftbiasError, unknown_name
from softbias.files import write_text
from softbias.runs.spec import differences
from softbias.schema import Checked, SchemaError, bounded_hints, convert, from_plain, refuse_unknown
from softbias.study.arms import Arm, read_arm, read_recipe, shallow, short_arm, short_recipe
from softbias.study.metric import find_metric
from softbias.training.recipe import Recipe, plain_value
from softbias.yaml_file import read_yaml, to_yaml

Budget = Literal["steps", "epochs", "flops"]
MOST_RUNS = 100_000  # of one study; more of them are a typing error
Trials = Annotated[int, Within(0, 10_000)]
SeedCount = Annotated[int, Within(1, MOST_RUNS)]
FILE_TYPES: dict[str, Any] = {  # of fields that a file may have in a shorter form
    "data": ShortText | tuple[ShortText, ...], "arms": tuple[ShortText | dict[str, Any], ...],
    "recipe": ShortText | dict[str, Any], "fractions": Fraction | tuple[Fraction, ...],
    "per_class": Count | tuple[Count, ...], "seeds": SeedCount | tuple[Seed, ...],
}  # fmt: skip
NAMED_DIFFERENCES = 4  # differences between two recipes that an error names


class DifferentStudyError(SoftbiasError):
    """A folder holds a study with other settings."""


class PublishedNumber(TypedDict):
    """A number of a document, to be shown beside ours. Accuracies may be shares or percentages."""

    data: ShortText
    arm: ShortText
    value: Annotated[float, Within(-1e12, 1e12)]
    train_fraction: NotRequired[Fraction]
    metric: NotRequired[ShortText]
    note: NotRequired[LongText]


@dataclass(frozen=True)
class StudySpec(Checked):
    """A comparison: every arm with the same data, fractions, seeds, recipe and budget.

    per_class   instead of fractions, the numbers of training images of each class (all there are, where fewer)
    budget      "steps": every run takes the steps of a run on all the data; "epochs": the recipe's epochs at every
                fraction; "flops": the steps that cost as much as the first arm's
    mixing      "recipe": as the recipe says; "views": mixup and CutMix for every image in runs that see each image often (15
                times or more), and for none in other runs, as `fit` does on a CPU
    tune        trials that every arm may spend on its learning rate and weight decay, on a validation part of the training data
    metric      the score that headline, tables, differences and published numbers are about (`study.metric`)
    probe_every locality, gates and masks are measured every K epochs, and drawn over epochs
    keep        which checkpoints of finished runs stay: last, best, every=K; none if not given
    test_curve  the accuracy on test images is drawn over epochs, as a document's figure has it; it decides nothing
    store       the folder of the runs, relative to the study's; "runs" inside it if not given
    warnings    sentences that a reader must know before the results, such as data that stand in for others
    notes       other sentences about the study
    """

    name: Annotated[str, Text(most=200)]
    data: Annotated[tuple[ShortText, ...], Length(1, MOST_RUNS)]
    arms: Annotated[tuple[Arm, ...], Length(1, MOST_RUNS)]
    fractions: Annotated[tuple[Fraction, ...], Length(1, MOST_RUNS)] = (1.0,)
    per_class: Annotated[tuple[Count, ...], Length(0, MOST_RUNS)] = ()
    seeds: Annotated[tuple[Seed, ...], Length(1, MOST_RUNS)] = (0, 1, 2)
    recipe: Recipe = field(default_factory=Recipe)
    budget: Budget = "steps"
    mixing: Literal["recipe", "views"] = "recipe"
    tune: Trials = 0
    metric: ShortText = "accuracy"
    probe_every: Count | None = None
    keep: ShortText | None = None
    test_curve: bool = False
    data_options: Mapping[str, Any] = field(default_factory=dict)
    store: ShortText | None = None
    title: LongText = ""
    question: LongText = ""
    source: LongText = ""
    published: Annotated[tuple[PublishedNumber, ...], Length(0, MOST_RUNS)] = ()
    warnings: Annotated[tuple[LongText, ...], Length(0, 1000)] = ()
    notes: Annotated[tuple[LongText, ...], Length(0, 1000)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise SoftbiasError(f"a study's name is made of letters, digits, '.', '+', '-' and '_', but name={self.name!r}")
        find_metric(self.metric)
        for what in ("data", "arms", "fractions", "per_class", "seeds"):
            values = [arm.name for arm in self.arms] if what == "arms" else list(getattr(self, what))
            repeated = [str(value) for value, count in Counter(values).items() if count > 1]
            if repeated:
                raise SoftbiasError(f"{what} of a study differ from each other, but {', '.join(repeated)} is repeated")
        if self.per_class and self.fractions != (1.0,):
            raise SoftbiasError(
                "a study takes shares of the training pictures (fractions) or numbers of each class (per_class), and not both"
            )
        sizes = {"sets": self.data, "arms": self.arms, "amounts of data": self.amounts, "seeds": self.seeds}
        count = math.prod(map(len, sizes.values()))
        if count > MOST_RUNS:
            product = " × ".join(f"{len(values):,} {name}" for name, values in sizes.items())
            raise SoftbiasError(f"{product} are {count:,} runs, but a study has at most {MOST_RUNS:,}")

    @property
    def amounts(self) -> tuple[dict[str, Any], ...]:
        """The fields of a run that say how much of the training images it takes, from little to much."""
        if self.per_class:
            return tuple({"per_class": number} for number in self.per_class)
        return tuple({"train_fraction": fraction} for fraction in self.fractions)

    def with_most_data(self) -> StudySpec:
        """The same study with the largest of its amounts of data alone."""
        return replace(self, fractions=(max(self.fractions),), per_class=(max(self.per_class),) if self.per_class else ())

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of recipes and arms the fields that differ from the defaults."""
        plain = {name: plain_value(value) for name, value in shallow(self).items()}
        plain["recipe"] = short_recipe(self.recipe)
        plain["arms"] = [short_arm(arm) for arm in self.arms]
        plain["published"] = [dict(number) for number in self.published]
        empty = StudySpec("x", ("x",), (Arm("x", "x"),))
        always = ("name", "data", "arms", *(() if self.per_class else ("fractions",)), "seeds", "recipe", "budget")
        return {name: plain[name] for name in plain if name in always or getattr(self, name) != getattr(empty, name)}

    @staticmethod
    def from_dict(given: Mapping[str, Any], where: str = "study") -> StudySpec:
        """A study as a file has it, which may be shorter than `to_dict`; `where` names the file in messages."""
        types = {**bounded_hints(StudySpec), **FILE_TYPES}
        fields = convert(dict[str, Any], given, where, "")
        refuse_unknown(fields, types, where, "")
        for name in ("name", "data", "arms"):
            if name not in fields:
                raise SchemaError(f"{where}: {name} is missing")
        fields = {"recipe": "small"} | {name: convert(types[name], value, where, name) for name, value in fields.items()}
        fields["data"] = (fields["data"],) if isinstance(fields["data"], str) else fields["data"]
        fields["arms"] = tuple(read_arm(arm, f"{where}: arms[{index}]") for index, arm in enumerate(fields["arms"]))
        fields["seeds"] = seeds_from(fields.get("seeds", 3))
        fractions = fields.get("fractions", 1.0)
        fields["fractions"] = (fractions,) if isinstance(fractions, float) else fractions
        numbers = fields.get("per_class", ())
        fields["per_class"] = (numbers,) if isinstance(numbers, int) else numbers
        fields["recipe"] = read_recipe(fields["recipe"], where=f"{where}: recipe")
        return from_plain(StudySpec, fields, where)


def extended(old: StudySpec, new: StudySpec) -> StudySpec:
    """The old study with the new arms, data, amounts of it and seeds; other settings must be the same."""
    plain = ("budget", "mixing", "tune", "data_options", "store")
    if bool(old.per_class) != bool(new.per_class):
        raise DifferentStudyError("one of them has shares of the training pictures, the other numbers of each class")
    different = [name for name in ("recipe", *plain) if getattr(old, name) != getattr(new, name)]
    arms = {arm.name: arm for arm in old.arms}
    different += [f"arm {arm.name}" for arm in new.arms if arms.setdefault(arm.name, arm) != arm]
    if different:
        changes = differences(old.recipe.to_dict(), new.recipe.to_dict())
        more = f"; and {len(changes) - NAMED_DIFFERENCES} more" if len(changes) > NAMED_DIFFERENCES else ""
        before, after = ({name: plain_value(getattr(one, name)) for name in plain} for one in (old, new))
        listed = differences(before, after)
        listed += [f"recipe: {'; '.join(changes[:NAMED_DIFFERENCES])}{more}"] if changes else []
        why = f" ({'; '.join(listed)})" if listed else ""
        raise DifferentStudyError(f"its {', '.join(different)} was another{why}")
    return replace(
        new,
        data=tuple(dict.fromkeys((*old.data, *new.data))),
        arms=tuple(arms.values()),
        fractions=tuple(sorted({*old.fractions, *new.fractions})),
        per_class=tuple(sorted({*old.per_class, *new.per_class})),
        seeds=tuple(sorted({*old.seeds, *new.seeds})),
        probe_every=new.probe_every or old.probe_every,
        keep=new.keep or old.keep,
        test_curve=new.test_curve or old.test_curve,
    )


def read_study(path: str | Path, data: Sequence[str] = ()) -> StudySpec:
    """The study of a YAML file, or of a study's folder; `data` replaces the sets of the file, which then need not have any."""
    file = Path(path) / "study.yaml" if Path(path).is_dir() else Path(path)
    given = read_yaml(file, "the study")
    if data and isinstance(given, Mapping):
        given = {**given, "data": list(data)}
    return StudySpec.from_dict(given, f"the study {file}")


def write_study(spec: StudySpec, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "study.yaml", to_yaml(spec.to_dict()))


def pick_names(wanted: Sequence[str] | None, known: Collection[str], kind: str) -> tuple[str, ...]:
    """The wanted names, in their order, each of which must be known; all known names if `wanted` is None.

    A name may have been split at its own commas:

    >>> pick_names(["DeiT", "IBiT", "softmax"], ["DeiT", "IBiT, softmax"], "arm")
    ('DeiT', 'IBiT, softmax')
    """
    if wanted is None:
        return tuple(known)
    if not wanted:
        raise SoftbiasError(f"name at least one {kind} of the study: {', '.join(known)}")
    found: list[str] = []
    rest = list(wanted)
    while rest:
        lengths = range(len(rest), 0, -1)
        length = next((length for length in lengths if ", ".join(rest[:length]) in known), None)
        if length is None:
            raise unknown_name(kind, rest[0], known)
        found.append(", ".join(rest[:length]))
        rest = rest[length:]
    return tuple(dict.fromkeys(found))


def parse_numbers(text: str, what: str) -> tuple[float, ...]:
    """
    >>> parse_numbers("0.05,0.1,1", "fractions")
    (0.05, 0.1, 1.0)
    """
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise SoftbiasError(f"{what} takes numbers separated by commas, such as 0.1,1, but got {text!r}") from None


def parse_counts(text: str, what: str) -> tuple[int, ...]:
    """
    >>> parse_counts("5,10", "--per-class")
    (5, 10)
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 20 for word in words):
        raise SoftbiasError(f"{what} takes whole numbers separated by commas, such as 5,10, but got {text!r}")
    return tuple(map(int, words))


def parse_seeds(text: str) -> tuple[int, ...]:
    """The number of seeds, or the seeds themselves; a comma makes one number a seed.

    >>> parse_seeds("3"), parse_seeds("4,7"), parse_seeds("3,")
    ((0, 1, 2), (4, 7), (3,))
    """
    words = text.split(",")
    if len(words) > 1 and not words[-1].strip():
        words.pop()
    if not all(word.strip().isdecimal() and len(word) < 1000 for word in words):
        raise SoftbiasError(f"seeds takes their number (3) or the seeds themselves (0,1,5 or 4,), but got {text!r}")
    return seeds_from(int(words[0]) if "," not in text else tuple(map(int, words)))


def seeds_from(given: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds 0, 1, … for their number, and given seeds as they are.

    >>> seeds_from(2), seeds_from([4, 7])
    ((0, 1), (4, 7))
    """
    if not isinstance(given, int):
        return tuple(given)
    return tuple(range(convert(SeedCount, given, "", "the number of seeds")))
