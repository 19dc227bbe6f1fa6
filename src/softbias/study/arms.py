"""Arms: a model plus overrides, in one line or field by field. Nothing here imports torch."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from softbias.bounds import Fraction, Seed, ShortText
from softbias.data.augment import Augmentation
from softbias.errors import SoftbiasError
from softbias.runs.spec import check_model_options, non_default
from softbias.runs.start import Start
from softbias.schema import Checked, SchemaError, bounded_hints, convert, from_plain
from softbias.training.recipe import Recipe, find_recipe, plain_value, tuple_value

CONSTANTS = {"true": True, "false": False, "none": None}
FIELDS = {**bounded_hints(Augmentation), **bounded_hints(Recipe)}  # of a recipe and of its augmentation, with their types
PRETRAINING = "arvit-pretrain"


@dataclass(frozen=True)
class Pretrain(Checked):
    """A training without labels that fine-tunings share.

    data             the arm's own if not given
    train_fraction   share of its images; None: the share of the fine-tuned run
    seed             None: the seed of the fine-tuned run
    """

    recipe: Recipe
    data: ShortText | None = None
    train_fraction: Fraction | None = 1.0
    seed: Seed | None = None


@dataclass(frozen=True)
class Arm(Checked):
    """A model plus overrides.

    recipe         fields in which this arm differs from the study's recipe and its augmentation; "preset" names another recipe
    pretrain       a training before, which the arm's fractions share, and other arms with the same one, too
    start          "scratch", "pretrained", or the folder of a finished run; a study that was begun has what it stands for.
                   weights: a file or folder of pretrained weights
    finetune       after either: "full", or "linear" (the head alone)
    convert        after either: other attention, such as "gated" or "masked:blocks=0-9" (`softbias.models.conversion`)
    """

    name: ShortText
    model: ShortText
    model_options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    data_options: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Pretrain | None = None
    start: ShortText | Start = "scratch"
    weights: ShortText | None = None
    finetune: Literal["full", "linear"] | None = None
    convert: ShortText | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model_options(self.model_options)
        if self.pretrain and self.weights is None and self.start not in ("scratch", Start()):
            raise SoftbiasError(f"the arm {self.name} has both pretrain and start={self.start}; give one of them")
        if self.convert is not None and self.pretrain is None and self.weights is None and self.start in ("scratch", Start()):
            raise SoftbiasError(
                f"the arm {self.name} has convert={self.convert}, which is for a model that has learned something: give start, "
                "weights or pretrain, too"
            )


def shallow(given: Any) -> dict[str, Any]:
    return {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}


def short_recipe(recipe: Recipe) -> dict[str, Any]:
    """The fields that differ from a plain `Recipe()`, so that a preset that changes later does not change the study."""
    return non_default(recipe.to_dict(), Recipe().to_dict())


def short_arm(arm: Arm) -> dict[str, Any]:
    plain = non_default({**shallow(arm), "pretrain": None}, shallow(Arm("-", "-")))
    if arm.pretrain:
        plain["pretrain"] = {
            **non_default(shallow(arm.pretrain), shallow(Pretrain(Recipe()))),
            "recipe": short_recipe(arm.pretrain.recipe),
        }
    if isinstance(arm.start, Start):
        plain["start"] = non_default(arm.start.to_dict(), Start().to_dict())
    return {name: plain_value(dict(value) if isinstance(value, Mapping) else value) for name, value in plain.items()}


def read_recipe(given: str | Mapping[str, Any] | Recipe, base: Recipe | None = None, where: str = "recipe") -> Recipe:
    """A preset's name, fields on top of `preset`, or a recipe.

    >>> read_recipe({"preset": "quick", "epochs": 3, "augmentation": {"flip": 0}}).epochs
    3.0
    """
    if isinstance(given, Recipe):
        return given
    if isinstance(given, str):
        return find_recipe(given)
    fields = dict(given)
    preset = fields.pop("preset", None)
    base = find_recipe(preset) if preset else base or Recipe()
    inner = convert(dict[str, Any], fields.pop("augmentation", {}), where, "augmentation")
    fields |= {f"augmentation.{name}": value for name, value in inner.items()}
    for name, value in fields.items():
        kind = FIELDS.get(name.removeprefix("augmentation."))
        if kind is not None and name != "compile":  # YAML reads a bare "on" or "off" as true or false
            convert(kind, value, where, name)
    return base.with_overrides(fields)


def read_arm(given: str | Mapping[str, Any], where: str = "arm") -> Arm:
    """An arm as a YAML file has it: in one line, or field by field."""
    if isinstance(given, str):
        try:
            return parse_arm(given)
        except SoftbiasError as error:
            raise SchemaError(f"{where}: {error}") from error
    fields = convert(dict[str, Any], given, where, "")
    fields = {**({"name": fields["model"]} if "model" in fields else {}), **fields}
    before = fields.pop("pretrain", None)
    arm = from_plain(Arm, fields, where)
    read_recipe(arm.recipe, where=f"{where}: recipe")
    options: dict[str, Any] = {  # YAML has no tuples, and an arm read back is the same arm
        name: {key: tuple_value(value) for key, value in getattr(arm, name).items()}
        for name in ("model_options", "recipe", "data_options")
    }
    return replace(arm, **options, pretrain=None if before is None else read_pretrain(before, f"{where}: pretrain"))


def read_pretrain(given: str | Mapping[str, Any], where: str) -> Pretrain:
    """A pre-training as a YAML file has it: the name of a recipe, or field by field."""
    fields = {"recipe": given} if isinstance(given, str) else convert(dict[str, Any], given, where, "")
    recipe = read_recipe(fields.get("recipe", PRETRAINING), where=f"{where}: recipe")
    return replace(from_plain(Pretrain, {**fields, "recipe": {}}, where), recipe=recipe)


def parse_arm(text: str) -> Arm:
    """An arm from one line: MODEL@NAME=VALUE@NAME=VALUE.

    A name is a field of a recipe or of its augmentation; or img_size, pretrain (see `parse_recipe`), start (pretrained, scratch
    or a run), weights, convert, finetune or name (what the report calls the arm); everything else is an option of the model.

    >>> arm = parse_arm("convit_nano@strength=2@lr=1e-3@name=strong")
    >>> arm.name, arm.model, arm.model_options, arm.recipe
    ('strong', 'convit_nano', {'strength': 2}, {'lr': 0.001})
    """
    model, *overrides = text.strip().split("@")
    if not model or "=" in model:
        raise SoftbiasError(f"an arm is MODEL or MODEL@NAME=VALUE, such as deit_nano@patch_size=8, but got {text!r}")
    arm: dict[str, Any] = {"name": text.strip(), "model": model, "model_options": {}, "recipe": {}, "data_options": {}}
    for override in overrides:
        name, equals, value = override.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SoftbiasError(f"an override of an arm is NAME=VALUE, such as lr=1e-3, but got {override!r} in {text!r}")
        if name == "pretrain":
            arm["pretrain"] = Pretrain(parse_recipe(value))
        elif name in ("name", "start", "finetune", "weights", "convert"):
            arm[name] = value
        elif name == "img_size":
            arm["data_options"][name] = read_value(value)
        elif name.removeprefix("augmentation.") in FIELDS and name != "augmentation":
            arm["recipe"] |= recipe_value(arm["recipe"], name.removeprefix("augmentation."), value)
        else:
            arm["model_options"][name] = read_value(value)
    read_recipe(arm["recipe"], where=f"the arm {text!r}")
    return Arm(**arm)


def parse_recipe(text: str) -> Recipe:
    """A recipe with some of its fields changed: NAME or NAME:FIELD=VALUE,FIELD=VALUE.

    >>> parse_recipe("views:epochs=20,flip=0").epochs
    20.0
    """
    name, _, changes = text.partition(":")
    find_recipe(name)
    fields: dict[str, Any] = {}
    for change in changes.split(",") if changes else ():
        field_name, equals, value = change.partition("=")
        if not equals:
            raise SoftbiasError(
                f"a field of a recipe is changed by NAME=VALUE, such as epochs=20, but got {change!r} in {text!r}"
            )
        fields[field_name.strip().replace("-", "_")] = read_value(value)
    return read_recipe({"preset": name, **fields}, where=f"pretrain={text}")


def recipe_value(earlier: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """A field's value; each override of a field with several values (regularize) adds one."""
    default = getattr(Recipe(), name, None)
    if isinstance(default, tuple) and not default:
        return {name: (*earlier.get(name, ()), text)}
    return {name: read_value(text)}


def read_value(text: str) -> Any:
    """A Python literal, true, false or none; anything else is text.

    >>> [read_value(text) for text in ("8", "1e-3", "average", "true", "0.9,0.99")]
    [8, 0.001, 'average', True, (0.9, 0.99)]
    """
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def split_arms(text: str) -> list[str]:
    """Arms separated by commas. A comma inside brackets, before NAME=VALUE or before a number belongs to the arm's value.

    >>> split_arms("deit_tiny@regularize=distance:layer=2,weight=0.01,convit_tiny@betas=0.9,0.99,resnet50")
    ['deit_tiny@regularize=distance:layer=2,weight=0.01', 'convit_tiny@betas=0.9,0.99', 'resnet50']
    """
    arms: list[str] = []
    depth = 0
    for piece in text.split(","):
        before_at = piece.partition("@")[0]
        continues = arms and (depth > 0 or "=" in before_at or re.fullmatch(r"\s*[-+\d.][\w.+-]*\s*\)?", before_at))
        if continues:
            arms[-1] += f",{piece}"
        else:
            arms.append(piece.strip())
        depth += piece.count("(") + piece.count("[") - piece.count(")") - piece.count("]")
    if not all(arms):
        raise SoftbiasError(f"arms are separated by single commas, but an arm is empty in {text!r}")
    return arms


def arms_from(models: str | Arm | Sequence[str | Arm]) -> tuple[Arm, ...]:
    """Arms as `compare` takes them: text with commas, or a sequence of lines and arms."""
    given = [models] if isinstance(models, str | Arm) else list(models)
    arms: list[Arm] = []
    for item in given:
        arms += [item] if isinstance(item, Arm) else [parse_arm(text) for text in split_arms(item)]
    return tuple(arms)
