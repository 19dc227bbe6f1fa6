"""What defines a run (config.yaml), and the types of the other files that a run leaves. Nothing here imports torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from softbias._version import __version__
from softbias.bounds import Count, Fraction, Seed, ShortText
from softbias.checksums import CHECKSUMS, DamagedError, read_checksums, sha256
from softbias.errors import SoftbiasError
from softbias.notes import Note
from softbias.runs.start import Start, identity
from softbias.schema import Checked, from_plain
from softbias.training.recipe import Recipe
from softbias.yaml_file import read_yaml, to_yaml

CONFIG_FORMAT = 1
DECIDED = {
    "img_size": "the pictures decide it (--img-size)", "num_classes": "the classes of the data decide it",
    "in_chans": "pictures have three channels", "pretrained": "it is a setting of the run (--start)",
    "device": "it is a setting of the run (--device)", "dtype": "the recipe decides it (--precision)",
    "name": "the name of the model is given by --model",
}  # fmt: skip


class ConfigHead(TypedDict, total=False):
    """The entries of config.yaml that are not settings of the run, and the recipe, which is read on its own."""

    format: int
    softbias: str
    notes: list[Note]
    recipe: dict[str, Any]


@dataclass(frozen=True)
class RunSpec(Checked):
    """All that defines a run: the same spec on the same data gives the same run.

    data            a named set, a folder, a CSV file or arrays
    data_options    img_size, resize_mode, group_by, skip_broken, …: options of the reader
    train_fraction  share of the training images, more than 0 and at most 1; nested and stratified
    per_class       instead of a share, the number of training images of each class (all there are, where fewer); nested, too
    model_options   overrides of the model's spec
    start           the weights that it begins with
    convert         attention that replaces that of the model after it has them, see `models.conversion`
    finetune        "linear" trains the head alone, "full" the whole model
    """

    data: ShortText
    model: ShortText
    recipe: Recipe
    seed: Seed = 0
    train_fraction: Fraction = 1.0
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    start: Start = field(default_factory=Start)
    finetune: Literal["linear", "full"] | None = None
    convert: ShortText | None = None
    per_class: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model_options(self.model_options)
        check_amount(self.train_fraction, self.per_class)

    @property
    def amount(self) -> float:
        """How much of the training images, as one number: a share, or above 1 the number of each class."""
        return amount_of(self.train_fraction, self.per_class)

    def to_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {"recipe": self.recipe.to_dict(), "data_options": dict(self.data_options), "start": self.start.to_dict()}
        return plain | {"model_options": dict(self.model_options)}

    def identity(self) -> dict[str, Any]:
        """`to_dict` without the path and the name of weights whose hash is known: they may lie elsewhere now."""
        plain = self.to_dict()
        return plain | {"start": identity(plain["start"])}

    @staticmethod
    def from_dict(given: Mapping[str, Any], where: str = "the config") -> RunSpec:
        """The inverse of `to_dict`; the error about a wrong value begins with `where`."""
        known = from_plain(ConfigHead, given, where)
        if known.get("format", CONFIG_FORMAT) > CONFIG_FORMAT:
            raise SoftbiasError(
                f"{where} was written by softbias {known.get('softbias')} in format {known['format']}, and this is "
                f"softbias {__version__}, which reads up to format {CONFIG_FORMAT}: upgrade softbias"
            )
        plain = {name: value for name, value in given.items() if name not in ConfigHead.__annotations__}
        recipe = Recipe.from_dict(known.get("recipe", {}), f"{where}: recipe")
        return dataclasses.replace(from_plain(RunSpec, {**plain, "recipe": {}}, where), recipe=recipe)

    @cached_property
    def id(self) -> str:
        """A hash of the spec, without the folder of a named set and the path of weights whose hash is known.

        Only values that differ from their defaults are hashed, so a new field leaves the ids of stored runs as they are. A
        default must therefore never change.
        """
        plain = self.identity()
        plain["data_options"].pop("data_dir", None)
        text = json.dumps(non_default(plain, default_settings()), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def title(self) -> str:
        """<data>-<model>-<id>, in characters that a folder's name may have."""
        data = self.data if "/" not in self.data else Path(self.data).stem or Path(self.data).name
        return "-".join(re.sub(r"[^\w.]+", "_", part).strip("_") for part in (data, self.model, self.id))


def amount_of(train_fraction: float, per_class: int | None) -> float:
    """A share of the training images, at most 1, or the number of each class, above 1. Tables and charts are ordered by it.

    >>> amount_of(0.1, None), amount_of(1.0, 5), amount_of(1.0, 1) > 1
    (0.1, 5.0, True)
    """
    return train_fraction if per_class is None else max(float(per_class), math.nextafter(1, 2))  # 1 itself is all of them


def check_amount(train_fraction: float | None, per_class: int | None) -> None:
    if per_class is not None and train_fraction not in (None, 1):
        raise SoftbiasError(
            f"give a share of the training pictures or a number of each class, and not both: train_fraction={train_fraction:g} "
            f"and per_class={per_class}"
        )


def check_model_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a model that the data, the device or another setting decide."""
    for name in options:
        if name in DECIDED:
            raise SoftbiasError(f"{name} is no option of the model: {DECIDED[name]}")


def default_settings() -> dict[str, Any]:
    """The settings of a run for which nothing was named but its data and its model, which have no default."""
    return RunSpec("-", "-", Recipe()).to_dict() | {"data": None, "model": None}


def write_config(spec: RunSpec, notes: Sequence[Note] = ()) -> str:
    """The text of config.yaml; the notes say why settings were chosen."""
    plain = {"format": CONFIG_FORMAT, "softbias": __version__, **spec.to_dict()}
    plain |= {"notes": [note.to_dict() for note in notes]} if notes else {}
    return to_yaml(plain)


def read_config(path: Path) -> RunSpec:
    """The settings in a config.yaml; that of a finished run must be as it was written."""
    try:
        listed = read_checksums(path.parent).get(path.name)
    except (OSError, DamagedError):  # the run is not finished, or --resume makes SHA256SUMS again
        listed = None
    if path.is_file() and listed not in (None, sha256(path)):
        raise DamagedError(
            f"{path} is damaged: its checksum is not the one in {CHECKSUMS}; restore it, or, if you changed it on purpose, "
            f"remove its line from {CHECKSUMS}"
        )
    return RunSpec.from_dict(read_yaml(path, "the config"), f"the config {path}")


def read_notes(path: Path) -> tuple[Note, ...]:
    """The notes of a config.yaml."""
    return tuple(from_plain(ConfigHead, read_yaml(path, "the config"), f"the config {path}").get("notes", ()))


def non_default(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from their defaults.

    >>> non_default({"lr": 0.1, "epochs": 8, "inner": {"flip": 0.5, "zoom": 1}}, {"epochs": 8.0, "inner": {"zoom": 1}})
    {'lr': 0.1, 'inner': {'flip': 0.5}}
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        before = defaults.get(name, ...)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = non_default(value, before)
            found |= {name: inner} if inner else {}
        elif value != before:
            found[name] = value
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """ "recipe.lr was 0.001, is 0.002" for every setting that differs."""
    found = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append(f"{prefix}{name} was {before}, is {after}")
    return found


class ImageCounts(TypedDict):
    train: int
    val: int
    test: NotRequired[int]


class Summary(TypedDict):
    """The entries of summary.json that its readers rely on; `outcome.finish` writes them and more."""

    id: str
    data: str
    model: str
    seed: int
    train_fraction: float
    per_class: NotRequired[int | None]
    start: NotRequired[Start]
    convert: NotRequired[str | None]
    objective: str
    pretext: bool
    parameters: int
    pictures: ImageCounts
    img_size: tuple[int, int]
    train_size: NotRequired[int | None]
    steps: int
    epochs: float
    seconds: float
    images_per_second: float
    notes: NotRequired[list[Note]]
    test: NotRequired[dict[str, Any] | None]
    baseline: NotRequired[dict[str, Any] | None]
    regularize: NotRequired[list[str]]
    selected: NotRequired[Literal["best", "last"]]
    best_epoch: NotRequired[int | None]
    validation_accuracy: NotRequired[float | None]
    peak_memory: NotRequired[int]


class EpochRow(TypedDict):
    """The entries of a row of metrics.jsonl that its readers rely on; losses and scores may be NaN."""

    event: str
    epoch: int
    step: int


def epoch_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of epochs in metrics.jsonl; none without the file. A last line that a kill tore is dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError as error:
        raise SoftbiasError(f"{path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise SoftbiasError(f"{path}, line {number}: {error}") from error
        if isinstance(row, dict) and row.get("event") == "epoch":
            from_plain(EpochRow, row, f"{path}, line {number}")
            rows.append(row)
    return rows
