"""From what a user named to a whole run spec: the automatic choices are made here, once, for Python and the command line.

    partial = PartialRunSpec(data="my_pictures", overrides={"epochs": 20}).completed()
    resolved = resolve(partial, "cpu")
    resolved.spec, resolved.notes                       # what will be trained, and why it was chosen

A setting comes from the user first, then from a config (`--config`, or that of the run to resume), then from the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softbias.bounds import Fraction, Seed, ShortText
from softbias.errors import SoftbiasError
from softbias.notes import Note
from softbias.runs import automatic, finetuning
from softbias.runs.automatic import Choice
from softbias.runs.spec import RunSpec, check_model_options
from softbias.runs.start import WORDS, Start
from softbias.schema import Checked
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.cache import Progress
    from softbias.data.dataset import Dataset
    from softbias.data.sources import Source
    from softbias.runs.starting import StartChoice


@dataclass(frozen=True)
class PartialRunSpec(Checked):
    """The fields of a RunSpec that the user gave; None stands for a field that is not given.

    recipe      a preset's name, or a whole recipe
    start       a word, "auto", "pretrained", "scratch" or a run, or what it stands for; weights: a file or folder of them
    overrides   fields of the recipe and of its augmentation by name: {"epochs": 20, "flip": 0}
    """

    data: ShortText | None = None
    model: ShortText | None = None
    recipe: ShortText | Recipe | None = None
    seed: Seed | None = None
    train_fraction: Fraction | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    start: ShortText | Start = "auto"
    weights: ShortText | None = None
    finetune: Literal["linear", "full"] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base_recipe(self) -> Recipe | None:
        return find_recipe(self.recipe) if isinstance(self.recipe, str) else self.recipe

    @property
    def objective(self) -> str:
        base = self.base_recipe
        return str(self.overrides.get("objective") or (base.objective if base else "supervised"))

    def completed(self, config: RunSpec | None = None) -> PartialRunSpec:
        """With the fields that a config, a run to start from and named weights bring; mistakes and contradictions are refused
        here, before any image is read."""
        found = self.with_run().with_config(config).with_weights()
        if found.data is None:
            raise SoftbiasError("which pictures? Name a folder, a CSV file, arrays or a named set")
        if Path(found.data).exists():
            found = replace(found, data=str(Path(found.data)))  # "pictures/" and "pictures" are the same set
        found.check()
        return found

    def with_run(self) -> PartialRunSpec:
        """With the model of the run to start from, and the size of its images."""
        if isinstance(self.start, Start) or self.start in WORDS:
            return self
        if self.weights is not None:
            raise SoftbiasError(f"--start {self.start} brings its own weights; leave out --weights {self.weights}")
        from softbias.runs.starting import run_start

        found = run_start(self.start)
        if self.model not in (None, found.model):
            raise SoftbiasError(f"--start {self.start} brings its own model, {found.model}; leave out --model {self.model}")
        return self.with_start(found)

    def with_weights(self) -> PartialRunSpec:
        """With the model that named weights are for."""
        if self.weights is None or isinstance(self.start, Start):
            return self
        if self.start == "scratch":
            raise SoftbiasError(f"--start scratch takes fresh weights; leave it out, or leave out --weights {self.weights}")
        from softbias.runs.starting import weights_start

        return self.with_start(weights_start(self.weights, self.model))

    def with_start(self, found: StartChoice) -> PartialRunSpec:
        """With a start, the model that takes its weights, and the size of its images; what the user named stays."""
        if not found.start.learned:
            return replace(self, start=found.start)
        side = found.start.img_size if found.start.kind == "run" else None  # that of other weights depends on the device
        sized = {} if side is None else {"img_size": side[0] if side[0] == side[1] else side}
        return replace(
            self,
            start=found.start,
            model=found.model or self.model,
            model_options={**found.model_options, **self.model_options},
            data_options={**sized, **self.data_options},
            finetune=self.finetune or "full",
        )

    @property
    def settled_start(self) -> Start | None:
        """The start, where it is known before any image is read."""
        if isinstance(self.start, Start):
            return self.start
        if self.start == "scratch" or (self.start == "auto" and (self.is_pretext or self.has_no_weights)):
            return Start()
        return None

    @property
    def is_fine_tuning_open(self) -> bool:
        """Whether the size of the images or the recipe of pretrained weights is still to be chosen."""
        start = self.settled_start
        open_size = start is not None and start.kind == "pretrained" and "img_size" not in self.data_options
        return open_size or (self.recipe == finetuning.RECIPE and start is not None and start.learned)

    @property
    def has_no_weights(self) -> bool:
        """Whether nobody has trained the model that the user named for others."""
        if self.model is None or self.model.startswith("hf:") or self.finetune == "linear":
            return False
        from softbias.runs.starting import has_weights

        return not has_weights(self.model)

    @property
    def asks_for_weights(self) -> bool:
        """Whether it is an error if there are no pretrained weights."""
        return self.start == "pretrained" or (self.start == "auto" and self.finetune == "linear")

    @property
    def is_pretext(self) -> bool:
        from softbias.training.objectives import find_objective

        return find_objective(self.objective).pretext

    def with_config(self, config: RunSpec | None) -> PartialRunSpec:
        if config is None:
            return self
        same_model = self.model in (None, config.model)
        kept = config.model_options if same_model else {}
        start = self.start
        if isinstance(start, str) and same_model and config.start.answers(start, self.weights):
            start = config.start
        return PartialRunSpec(
            data=self.data or config.data,
            model=self.model or config.model,
            recipe=self.recipe or config.recipe,
            seed=config.seed if self.seed is None else self.seed,
            train_fraction=config.train_fraction if self.train_fraction is None else self.train_fraction,
            data_options={**config.data_options, **self.data_options},
            model_options={**kept, **self.model_options},
            start=start,
            weights=self.weights,
            finetune=self.finetune or (config.finetune if start == config.start else None),
            overrides=self.overrides,
        )

    def check(self) -> None:
        check_model_options(self.model_options)
        if self.model is not None and not (isinstance(self.start, Start) and self.start.kind == "run"):
            check_model_name(self.model)
        if self.finetune == "linear" and self.settled_start is not None and not self.settled_start.learned:
            raise SoftbiasError("--finetune linear needs a model that has learned something: --start pretrained or --start RUN")
        if self.overrides.get("regularize"):
            from softbias.regularizers import parse_regularizers

            parse_regularizers(self.overrides["regularize"])
        # accumulate must suit the size of a batch, which may not be known yet
        no_batch_size = self.base_recipe is None and "batch_size" not in self.overrides
        checked = {name: value for name, value in self.overrides.items() if not (no_batch_size and name == "accumulate")}
        (self.base_recipe or Recipe()).with_overrides(checked)

    def spec(self, choice: Choice | None = None) -> RunSpec | None:
        """The complete spec; None if the start is not settled, or the model or the recipe neither given nor in `choice`."""
        model = self.model or (None if choice is None else choice.model)
        recipe = self.base_recipe or (None if choice is None else choice.recipe)
        start = self.settled_start
        if model is None or recipe is None or start is None or (choice is None and self.is_fine_tuning_open):
            return None
        return RunSpec(
            data=self.data or "",
            model=model,
            recipe=recipe.with_overrides(self.overrides),
            seed=self.seed or 0,
            train_fraction=1.0 if self.train_fraction is None else self.train_fraction,
            data_options=dict(self.data_options),
            model_options=dict(self.model_options),
            start=start,
            finetune=self.finetune,
        )


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
    partial, data, notes = read_images(partial, device, data, progress)
    import torch

    pretext = partial.is_pretext
    start = partial.settled_start
    assert start is not None
    share = 1.0 if partial.train_fraction is None else partial.train_fraction
    n_train = max(1, round(len(data.splits["train"]) * share))
    model_named, recipe_named = partial.model is not None, partial.recipe is not None
    tunes = start.learned and partial.recipe == finetuning.RECIPE
    choice = automatic.choose(
        n_train, data.img_size, device, torch.get_num_threads(), objective=partial.objective,
        pretrained=partial.model if start.kind == "pretrained" or tunes else None,
    )  # fmt: skip
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
    if not recipe_named and suits and spec.recipe.epochs == choice.recipe.epochs and not spec.recipe.steps:
        notes.append(choice.reasons[-1])
    elif not recipe_named:
        notes.append(Note("recipe-chosen", {"recipe": choice.recipe_name, "epochs": spec.recipe.epochs}))
    seconds = choice.seconds(n_train, spec.recipe) if as_chosen and minutes is None else None
    advice = tuple(give_advice(spec, seconds, choice.recipe.epochs)) if advise else ()
    if choice.recipe_name == finetuning.RECIPE and (tunes or not recipe_named):
        fixed = {"epochs", "steps"} & set(partial.overrides)
        minutes = finetuning.CPU_MINUTES if device == "cpu" and minutes is None and not fixed else minutes
        if spec.finetune != "linear":
            advice += (finetuning.cost_note(spec, n_train, data, minutes),)
    return Resolved(spec, data, tuple(notes), advice, minutes)


def read_images(
    partial: PartialRunSpec, device: str, data: Dataset | None, progress: Progress | None
) -> tuple[PartialRunSpec, Dataset, list[Note]]:
    """The set that the partial spec names, at a size that suits the start and the device, and the start itself."""
    from softbias.data.packs import resized_set
    from softbias.data.sources import open_source

    assert partial.data is not None
    notes: list[Note] = []
    source = open_source(partial.data, partial.data_options.get("group_by")) if data is None else None
    settled = partial.settled_start is not None or partial.asks_for_weights
    if source is not None and source.listing is None and not settled:
        # the sizes of arrays and named sets are known when they are read
        data = source.read_with(partial.data_options, progress)
    if partial.settled_start is None:
        partial, note = with_chosen_start(partial, device, source, data)
        notes += [] if note is None else [note]
    elif partial.start == "auto" and not partial.is_pretext:
        notes.append(Note("start-chosen", {"kind": "scratch", "why": "no-weights", "model": partial.model}))
    options = finetuning.data_options(partial, device, source)
    partial = replace(partial, data_options=options)
    if data is not None and (source is None or options.get("img_size") is None or is_size(data, options["img_size"])):
        size = options.get("img_size")
        if size is not None and not is_size(data, size):
            data = resized_set(data, pair_of(size), options.get("resize_mode") or "crop")
        return partial, data, notes
    assert source is not None
    size = automatic.image_size(source, device) if "img_size" not in options and partial.model is None else None
    if size:
        options["img_size"] = size[0]
        notes.append(size[1])
    return replace(partial, data_options=options), source.read_with(options, progress), notes


def with_chosen_start(
    partial: PartialRunSpec, device: str, source: Source | None, data: Dataset | None
) -> tuple[PartialRunSpec, Note | None]:
    """The partial spec with what its word stands for, and why."""
    from softbias.runs.starting import ImageFacts, choose_start, is_grey

    assert isinstance(partial.start, str)
    named = partial.data_options.get("img_size")
    if named is not None:
        side: int | None = min(pair_of(named))
    elif data is not None:
        side = min(data.img_size)
    else:
        side = source.size if source is not None else None
    count = len(data.labels) if data is not None else source.count if source is not None else None
    images = ImageFacts(side, named is not None, is_grey(source, data), count)
    asked = partial.asks_for_weights
    found = choose_start(partial.start, partial.model, partial.model_options, device, images, asked=asked)
    return partial.with_start(found), found.note


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


def check_model_name(name: str) -> None:
    """Refuse a name that no model has; folders are checked when they are read."""
    if name.startswith(("timm:local-dir:", "timm:hf_hub:")):
        return
    if name.startswith("timm:"):
        from softbias.models.foreign import require_timm

        require_timm(name.removeprefix("timm:"))
    elif ":" not in name:
        from softbias.models.presets import find_preset

        find_preset(name)
