"""From the settings that somebody names to a StudySpec: a new study, or more runs for the one in the folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softbias import environment
from softbias.errors import SoftbiasError
from softbias.runs import automatic, feature_learning
from softbias.runs.partial import check_model_name
from softbias.runs.start import WORDS, Start
from softbias.study.arms import Arm, read_recipe
from softbias.study.plan import load_once
from softbias.study.spec import Budget, DifferentStudyError, StudySpec, extended, read_study, seeds_from
from softbias.study.starts import kept_starts
from softbias.training.recipe import RECIPES, Recipe

TEXTS = ("title", "question", "source", "published", "warnings", "notes")  # of a study that continues


def study_for(
    data: str | Path | Sequence[str | Path],
    arms: tuple[Arm, ...],
    *,
    fractions: float | Sequence[float] | None = None,
    per_class: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] | None = None,
    recipe: str | Mapping[str, Any] | Recipe | None = None,
    budget: Budget = "steps",
    tune: int = 0,
    name: str | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    metric: str | None = None,
    probe_every: int | None = None,
    keep: str | None = None,
    data_options: Mapping[str, Any] | None = None,
    device: str = "auto",
    overrides: Mapping[str, Any] | None = None,
) -> StudySpec:
    """The study with these settings; if its folder holds one already, that one with the new arms, data, fractions, seeds.

    What is not given is the study's own, so that a new arm gets the seeds and the amounts of data that the others have. A new
    study gets all pictures, three seeds, and the recipe that suits the images and the device.
    """
    from softbias.data.sources import source_name

    check_models(arms)
    sets = tuple(map(source_name, [data] if isinstance(data, str | Path) else data))
    name = name or default_name(sets)
    folder = Path(out) if out else Path("studies") / name
    old = read_study(folder) if (folder / "study.yaml").is_file() else None
    if recipe is None:
        chosen = old.recipe if old else suitable_recipe(sets[0], data_options or {}, device, overrides or {})
    else:
        chosen = read_recipe(recipe)
    new = StudySpec(
        name=name,
        data=sets,
        arms=tuple(with_suitable_pretraining(arm, sets[0], data_options or {}, device) for arm in arms),
        **amounts(old, fractions, per_class),
        seeds=seeds_from(seeds) if seeds is not None else old.seeds if old else seeds_from(3),
        recipe=chosen.with_overrides(overrides or {}),
        budget=budget,
        tune=tune,
        metric=metric or (old.metric if old else "accuracy"),
        probe_every=probe_every,
        keep=keep,
        data_options=dict(data_options or {}),
        store=None if store is None else os.path.relpath(store, folder),
    )
    if old is None:
        return new
    try:
        return replace(extended(old, kept_starts(old, new)), **{name: getattr(old, name) for name in TEXTS})
    except DifferentStudyError as error:
        raise SoftbiasError(
            f"{folder} holds a study already, and {error}; give the same settings, or choose another --out"
        ) from error


def amounts(
    old: StudySpec | None, fractions: float | Sequence[float] | None, per_class: int | Sequence[int] | None
) -> dict[str, Any]:
    """fractions and per_class of a study: those that were given, or else those of the study that continues."""
    if fractions is None and per_class is None and old is not None:
        return {"fractions": old.fractions, "per_class": old.per_class}
    fractions, per_class = 1.0 if fractions is None else fractions, () if per_class is None else per_class
    return {
        "fractions": (float(fractions),) if isinstance(fractions, int | float) else tuple(fractions),
        "per_class": (per_class,) if isinstance(per_class, int) else tuple(per_class),
    }


def default_name(data: Sequence[str | Path]) -> str:
    """
    >>> default_name(["pictures/birds", "fashion"])
    'birds+fashion'
    """
    return "+".join(re.sub(r"[^\w.-]+", "_", Path(d).stem or Path(d).absolute().name) for d in data)


def suitable_recipe(data: str, options: Mapping[str, Any], device: str, overrides: Mapping[str, Any]) -> Recipe:
    """The recipe that `softbias fit` chooses for this number of images, this device, and the settings that somebody named."""
    images = load_once(data, options)
    kind = environment.find_device(device)
    return automatic.choose(len(images.splits["train"]), images.img_size, kind, 1, named=overrides).recipe


def with_suitable_pretraining(arm: Arm, data: str, options: Mapping[str, Any], device: str) -> Arm:
    """The arm with a pretraining as `softbias pretrain` would choose it, if it names a recipe of features alone."""
    before = arm.pretrain
    if before is None or RECIPES.get(before.recipe.objective) != before.recipe:
        return arm
    images = load_once(before.data or data, {**options, **arm.data_options})
    facts = len(images.splits["train"]), images.img_size, environment.find_device(device), 1
    chosen = feature_learning.choose(*facts, objective=before.recipe.objective)
    return replace(arm, pretrain=replace(before, recipe=chosen.recipe))


def check_models(arms: Sequence[Arm]) -> None:
    """Refuse a model that does not exist, before any image is read."""
    for arm in arms:
        if arm.start in WORDS or isinstance(arm.start, Start):
            check_model_name(arm.model)
