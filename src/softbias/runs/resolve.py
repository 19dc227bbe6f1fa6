"""From what a user named to a whole run spec: the automatic choices are made here, once, for Python and the command line.

    partial = PartialRunSpec(data="my_pictures", overrides={"epochs": 20}).completed()
    resolved = resolve(partial, "cpu")
    resolved.spec, resolved.notes                       # what will be trained, and why it was chosen

`automatic` chooses for models that start from scratch, `finetuning` for others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from softbias.errors import NoClassesError
from softbias.notes import Note
from softbias.runs import automatic, feature_learning, finetuning
from softbias.runs.partial import PartialRunSpec
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start, start_note
from softbias.training.objectives import find_objective
from softbias.training.recipe import find_recipe

if TYPE_CHECKING:
    from softbias.data.cache import Progress
    from softbias.data.dataset import Dataset
    from softbias.data.sources import Source


@dataclass(frozen=True)
class Resolved:
    """A run that can be trained.

    notes    why the settings are as they are, where the user did not name them
    advice   what the user may want to know before training: how long it takes, what may work better
    minutes  a limit for training, the user's or a chosen one
    """

    spec: RunSpec
    data: Dataset
    notes: tuple[Note, ...] = ()
    advice: tuple[Note, ...] = ()
    minutes: float | None = None


def resolve(
    partial: PartialRunSpec,
    device: str,
    data: Dataset | None = None,
    *,
    minutes: float | None = None,
    advise: bool = True,
    progress: Progress | None = None,
) -> Resolved:
    """Read the images, and choose what was not named.

    data      the images, where they are in memory already
    minutes   a limit for training; with it, no estimate of the time is needed
    advise    whether to look for advice
    """
    started = time.perf_counter()
    partial, data, notes = read_images(partial, device, data, progress)
    import torch

    pretext = partial.is_pretext
    start = partial.settled_start
    assert start is not None
    n_train = count_train(partial, data)
    model_named, recipe_named = partial.model is not None, partial.recipe is not None
    tunes = start.learned and partial.recipe == finetuning.RECIPE
    facts = (n_train, data.img_size, device, torch.get_num_threads())
    if find_objective(partial.objective).learns_features:
        choice = feature_learning.choose(*facts, objective=partial.objective)
    else:
        choice = automatic.choose(
            *facts,
            objective=partial.objective,
            pretrained=partial.model if start.kind == "pretrained" or tunes else None,
            named=partial.overrides,
            minutes=minutes,
        )
    if choice.recipe_name == finetuning.RECIPE:
        suited = finetuning.suited(choice.recipe, choice.model, partial.model_options, start.kind, data.img_size)
        choice = replace(choice, recipe=suited)
    if tunes:
        partial = replace(partial, recipe=choice.recipe)
    options_named = bool(partial.model_options)
    if not model_named or (partial.model == choice.model and pretext and not start.learned):
        partial = replace(partial, model_options={**choice.model_options, **partial.model_options})
    as_chosen = partial.model in (None, choice.model) and partial.model_options == dict(choice.model_options)
    suits = as_chosen or device != "cpu" or start.kind == "pretrained"  # on a CPU the epochs suit only the chosen model
    if not suits:
        choice = replace(choice, recipe=find_recipe(choice.recipe_name))
    spec = partial.spec(choice)
    assert spec is not None
    if not start.learned and (not model_named or (pretext and as_chosen and not options_named)):
        notes.append(choice.reasons[0])
    if not recipe_named and minutes is not None and not spec.recipe.steps:  # time ends it before
        notes.append(Note("recipe-chosen", {"recipe": choice.recipe_name, "epochs": spec.recipe.epochs, "why": "limit"}))
    elif not recipe_named and suits and spec.recipe.epochs == choice.recipe.epochs and not spec.recipe.steps:
        notes.append(choice.reasons[-1])
    elif not recipe_named:
        length = {"steps": spec.recipe.steps} if spec.recipe.steps else {}
        notes.append(Note("recipe-chosen", {"recipe": choice.recipe_name, "epochs": spec.recipe.epochs, **length}))
    if not recipe_named and suits and choice.strength is not None:
        notes.append(choice.strength)
    seconds = choice.seconds(n_train, spec.recipe) if as_chosen and minutes is None else None
    advice = tuple(give_advice(spec, seconds, choice.recipe.epochs)) if advise else ()
    if choice.recipe_name == finetuning.RECIPE and (tunes or not recipe_named):
        fixed = {"epochs", "steps"} & set(partial.overrides)
        free = device == "cpu" and minutes is None and not fixed
        held_out = len(data.splits.get("test", ()))
        chosen = finetuning.cpu_minutes(time.perf_counter() - started, held_out) if free else None
        if spec.finetune != "linear":
            advice += (finetuning.cost_note(spec, n_train, data, chosen or minutes, named=chosen is None),)
        minutes = chosen or minutes
    return Resolved(spec, data, tuple(notes), advice, minutes)


def count_train(partial: PartialRunSpec, data: Dataset) -> int:
    """About how many images the run will train on."""
    train = data.splits["train"]
    if partial.per_class is not None:
        return int(np.minimum(np.bincount(data.labels[train]), partial.per_class).sum())
    return max(1, round(len(train) * (1.0 if partial.train_fraction is None else partial.train_fraction)))


def read_images(
    partial: PartialRunSpec, device: str, data: Dataset | None, progress: Progress | None
) -> tuple[PartialRunSpec, Dataset, list[Note]]:
    """The set that the partial spec names, at a size that suits the start and the device, and the start itself."""
    from softbias.data.packs import resized_set

    notes: list[Note] = []
    partial, source = listed_source(partial) if data is None else (partial, None)
    settled = partial.settled_start is not None or partial.asks_for_weights
    sized = "img_size" in partial.data_options
    if source is not None and source.listing is None and not (settled and sized):
        # the sizes of arrays and named sets are known when they are read
        data = source.read_with(partial.data_options, progress)
    if partial.settled_start is None:
        partial, more = with_chosen_start(partial, device, source, data)
        notes += more
    elif isinstance(partial.start, Start) and partial.start.learned:
        notes.append(start_note(partial.start))
    elif partial.start == "auto" and not partial.is_pretext:
        notes.append(Note("start-chosen", {"kind": "scratch", "why": "no-weights", "model": partial.model}))
    own = min(data.img_size) if data is not None else None if source is None else source.size
    options = finetuning.data_options(partial, device, source, own)
    chosen = smaller_images(partial, options, device, source, data)
    if chosen is not None:
        options["img_size"] = chosen[0]
        notes.append(chosen[1])
    partial = replace(partial, data_options=options)
    if data is not None and (source is None or options.get("img_size") is None or is_size(data, options["img_size"])):
        size = options.get("img_size")
        if size is not None and not is_size(data, size):
            data = resized_set(data, pair_of(size), options.get("resize_mode") or "crop")
        return partial, data, notes
    assert source is not None
    return partial, source.read_with(options, progress), notes


def smaller_images(
    partial: PartialRunSpec, options: Mapping[str, Any], device: str, source: Source | None, data: Dataset | None
) -> tuple[int, Note] | None:
    """The side of the images and why, where a model from scratch learns more from smaller ones and the user named no size."""
    start = partial.settled_start
    named = options.get("img_size") is not None or "patch_size" in partial.model_options
    if named or partial.model not in (None, automatic.CPU_MODEL) or (start is not None and start.learned):
        return None
    if data is not None:
        size, count = data.img_size, len(data.labels)
    elif source is not None and source.size is not None:
        size, count = (source.size, source.size), source.count or 0
    else:
        return None
    other_model = partial.is_pretext and not find_objective(partial.objective).learns_features
    return automatic.image_size(size, count, device, pretext=other_model)


def listed_source(partial: PartialRunSpec) -> tuple[PartialRunSpec, Source]:
    """The set that the partial spec names; learning without labels takes a folder without classes as it is."""
    from softbias.data.sources import open_source

    assert partial.data is not None
    options = partial.data_options
    try:
        return partial, open_source(partial.data, options.get("group_by"), options.get("unlabeled"))
    except NoClassesError:
        if not partial.is_pretext or options.get("group_by") is not None:
            raise
        return replace(partial, data_options={**options, "unlabeled": True}), open_source(partial.data, unlabeled=True)


def with_chosen_start(
    partial: PartialRunSpec, device: str, source: Source | None, data: Dataset | None
) -> tuple[PartialRunSpec, tuple[Note, ...]]:
    """The partial spec with what its word stands for, and why."""
    from softbias.runs.starting import ImageFacts, choose_start

    assert isinstance(partial.start, str)
    named = partial.data_options.get("img_size")
    if named is not None:
        side: int | None = min(pair_of(named))
    elif data is not None:
        side = min(data.img_size)
    else:
        side = source.size if source is not None else None
    count = len(data.labels) if data is not None else source.count if source is not None else None
    images = ImageFacts(side, named is not None, count)
    asked = partial.asks_for_weights
    found = choose_start(partial.start, partial.model, partial.model_options, device, images, asked=asked)
    return partial.with_start(found), found.notes


def pair_of(size: int | Sequence[int]) -> tuple[int, int]:
    from softbias.data.named import height_and_width

    return height_and_width(size)


def is_size(data: Dataset, size: int | Sequence[int]) -> bool:
    return data.img_size == pair_of(size)


def give_advice(spec: RunSpec, seconds: float | None, automatic_epochs: float) -> list[Note]:
    """What to know before training. A longer one is named where it is sensible: the automatic choice, if the user asked for
    fewer epochs than that, and several times that, if the user asked for none."""
    if not seconds:
        return []
    values: dict[str, Any] = {"seconds": seconds}
    epochs, own = automatic_epochs, spec.recipe.epochs
    if own == automatic_epochs:
        epochs = automatic.LONGER * own
    if own < epochs <= automatic.MOST_EPOCHS and not spec.recipe.steps:
        chosen = epochs == automatic_epochs
        values |= {"longer_epochs": epochs, "longer_seconds": epochs / own * seconds, "automatic": chosen}
    return [Note("training-time", values)]
