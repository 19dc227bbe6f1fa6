"""A named study: a table of a paper as a function of scale, with its source, its numbers, and what it can and cannot show.

smoke   two CPU cores, minutes: nano models, few steps; the embedded set replaces any set that is absent
small   one GPU, hours, in pieces: the paper's models, or smaller ones, on small sets
paper   the original setting, as far as the document states it

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from softbias.errors import unknown_name
from softbias.pages.format import share
from softbias.study.arms import Arm
from softbias.study.spec import PublishedNumber, StudySpec, pick_names
from softbias.training.recipe import Recipe, find_recipe

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
EMBEDDED = "fashion"
NANO_SIDE = 32  # pixels of every set at smoke scale
SMOKE_NOTE = (
    "Smoke scale: nano models stand in for the paper's and take a few steps. It shows that the study runs, and no more."
)
HELD_OUT: dict[Scale, float] = {"smoke": 0.1, "small": 0.05, "paper": 0.01}  # share of the training pictures
HELD_OUT_NOTE = (
    "{share} of the training pictures are held out: accuracy on them is drawn over epochs, and chooses nothing. A set with "
    "validation pictures of its own has these instead."
)
TOO_LARGE = ("imagenet", "imagenet100")  # to be used at smoke scale, even where they are present


@dataclass(frozen=True)
class Measurement:
    """A measurement on the finished runs: a title, a text, and files under <study>/extra."""

    title: str
    about: str
    figures: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()


@dataclass(frozen=True)
class NamedStudy:
    """A study of a paper.

    source        the document, with the sentence or the table that is reproduced
    can, cannot   what of the original this study shows, and what it does not
    build         scale -> arms, data, fractions, seeds, recipe; `spec` adds title, question and numbers
    metric        the score that its report is about (`study.metric`)
    published     numbers of the document as printed, shares in percent, drawn beside ours: see `number`
    beside        numbers of the document in other units, beside which `after` draws its measurements
    after         (the study's folder, scale, device) -> measurements on the finished runs
    """

    name: str
    title: str
    question: str
    source: str
    can: str
    cannot: str
    build: Callable[[Scale], StudySpec]
    published: tuple[PublishedNumber, ...] = ()
    beside: tuple[PublishedNumber, ...] = ()
    after: Callable[[Path, Scale, str], list[Measurement]] | None = None
    metric: str = "accuracy"

    def spec(
        self,
        scale: str = "smoke",
        *,
        data_dir: str | Path | None = None,
        seeds: tuple[int, ...] | None = None,
        arms: Sequence[str] | None = None,
        data: Sequence[str] | None = None,
    ) -> StudySpec:
        """The study at a scale, or some rows (`arms`) and columns (`data`) of it by name.

        At smoke scale the embedded set replaces every set that is absent.
        """
        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        bare = self.build(scale)
        by_name = {arm.name: arm for arm in bare.arms}
        kept = pick_names(arms, by_name, "arm"), pick_names(data, bare.data, "set")
        left_out = {*by_name} - {*kept[0]}, {*bare.data} - {*kept[1]}
        bare = replace(bare, arms=tuple(by_name[name] for name in kept[0]), data=kept[1])
        numbers = (one for one in self.published if one["arm"] not in left_out[0] and one["data"] not in left_out[1])
        notes = [f"This study can show: {self.can}", f"It cannot show: {self.cannot}", *bare.notes]
        spec = replace(
            bare, name=f"{self.name}-{scale}", title=f"{self.title} ({scale} scale)", question=self.question,
            source=self.source, metric=self.metric, published=tuple(numbers), seeds=seeds or bare.seeds,
        )  # fmt: skip
        if data_dir is not None:
            spec = replace(spec, data_options={**spec.data_options, "data_dir": str(data_dir)})
        if scale == "smoke":
            spec = with_available_sets(spec)
            notes += [SMOKE_NOTE]
        return replace(spec, notes=tuple(notes))


def number(
    data: str, arm: str, value: float, note: str, *, train_fraction: float = 1.0, metric: str = "accuracy"
) -> PublishedNumber:
    """A published number; `note` names its table."""
    return PublishedNumber(data=data, arm=arm, train_fraction=train_fraction, metric=metric, value=value, note=note)


def smoke_recipe(**overrides: Any) -> Recipe:
    """A dozen small steps: everything runs, nothing is learned."""
    steps = {"steps": 12} if not {"epochs", "steps"} & set(overrides) else {}
    return find_recipe("quick").with_overrides({"batch_size": 32, "warmup_epochs": 0, **steps, **overrides})


def small_recipe(**overrides: Any) -> Recipe:
    """Our recipe for small sets, on all training images: none are set aside for choosing an epoch."""
    usual = {"epochs": 100, "batch_size": 512, "val_fraction": 0.0, "select": "last"}
    return find_recipe("small").with_overrides({**usual, **overrides})


def study(scale: Scale, data: tuple[str, ...], arms: tuple[Arm, ...], recipe: Recipe, **more: Any) -> StudySpec:
    """A spec without words: one seed at smoke scale and at the paper's, where documents report one; three at small scale.

    Accuracy on held-out pictures is drawn over epochs: on a part of the training pictures, or with `test_curve` on the test
    pictures, where the document's own figure shows these. Neither chooses anything.
    """
    if scale == "smoke":
        more.setdefault("data_options", {"img_size": NANO_SIDE})
    more.setdefault("seeds", (0, 1, 2) if scale == "small" else (0,))
    held_out = HELD_OUT[scale]
    if not more.get("test_curve"):
        if not recipe.val_fraction:
            more["notes"] = (*more.get("notes", ()), HELD_OUT_NOTE.format(share=share(held_out)))
        recipe = watched(recipe, held_out)
        arms = tuple(watched_arm(arm, held_out) for arm in arms)
    return StudySpec("unnamed", data, arms, recipe=recipe, **more)


def watched(recipe: Recipe, held_out: float) -> Recipe:
    """The recipe with validation pictures, which choose nothing; one that has some stays as it is."""
    return recipe if recipe.val_fraction else recipe.with_overrides({"val_fraction": held_out, "select": "last"})


def watched_arm(arm: Arm, held_out: float) -> Arm:
    """The arm with the same validation pictures, where it has a recipe of its own."""
    if "preset" not in arm.recipe or find_recipe(arm.recipe["preset"]).val_fraction:
        return arm
    return replace(arm, recipe={"val_fraction": held_out, "select": "last", **arm.recipe})


def with_available_sets(spec: StudySpec) -> StudySpec:
    """The study with the embedded set for every set that is absent, and warnings about it."""
    before = [arm.pretrain.data for arm in spec.arms if arm.pretrain and arm.pretrain.data]
    wanted = list(dict.fromkeys((*spec.data, *before)))
    large = [name for name in wanted if name in TOO_LARGE]
    absent = [name for name in wanted if name not in large and not is_available(name, spec.data_options)]
    used = {name: EMBEDDED if name in (*large, *absent) else name for name in wanted}
    data = tuple(dict.fromkeys(used[name] for name in spec.data))
    warnings = []
    if absent:
        warnings.append(f"Not found here: {', '.join(absent)}. The embedded set {EMBEDDED} is used instead.")
    if large:
        warnings.append(f"{', '.join(large)} is too large for this scale. The embedded set {EMBEDDED} is used instead.")
    return replace(spec, data=data, arms=tuple(with_pretraining_on(arm, used) for arm in spec.arms), warnings=tuple(warnings))


def with_pretraining_on(arm: Arm, used: Mapping[str, str]) -> Arm:
    if arm.pretrain is None or arm.pretrain.data is None:
        return arm
    return replace(arm, pretrain=replace(arm.pretrain, data=used[arm.pretrain.data]))


def is_available(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a named set can be read without a download."""
    from softbias.data import load_dataset
    from softbias.data.obtain import MissingDataError

    try:
        load_dataset(name, download=False, **options)
    except MissingDataError:  # a damaged set is an error: it must not be replaced silently
        return False
    return True
