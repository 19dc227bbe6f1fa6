"""From what a user named to a whole run spec: the automatic choices are made here, once, for Python and the command line.

    partial = PartialRunSpec(data="my_pictures", overrides={"epochs": 20}).completed()
    resolved = resolve(partial, "cpu")
    resolved.spec, resolved.notes                       # what will be trained, and why it was chosen

A setting comes from the user first, then from a config (`--config`, or that of the run to resume), then from the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softbias.bounds import Fraction, Seed, ShortText
from softbias.errors import SoftbiasError
from softbias.notes import Note
from softbias.runs import automatic
from softbias.runs.automatic import Choice
from softbias.runs.spec import RunSpec, check_model_options
from softbias.schema import Checked, read_json
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.cache import Progress
    from softbias.data.dataset import Dataset


@dataclass(frozen=True)
class PartialRunSpec(Checked):
    """The fields of a RunSpec that the user gave; None stands for a field that is not given.

    recipe      a preset's name, or a whole recipe
    overrides   fields of the recipe and of its augmentation by name: {"epochs": 20, "flip": 0}
    """

    data: ShortText | None = None
    model: ShortText | None = None
    recipe: ShortText | Recipe | None = None
    seed: Seed | None = None
    train_fraction: Fraction | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False
    weights: ShortText | None = None
    source: ShortText | None = None
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
        """With the fields that a config and a source bring; mistakes and contradictions are refused here, before any image is
        read."""
        found = self.with_source().with_config(config)
        if found.data is None:
            raise SoftbiasError("which pictures? Name a folder, a CSV file, arrays or a named set")
        if Path(found.data).exists():
            found = replace(found, data=str(Path(found.data)))  # "pictures/" and "pictures" are the same set
        found.check()
        return found

    def with_source(self) -> PartialRunSpec:
        """With the model of the source, and the size of its images."""
        if self.source is None:
            return self
        name, side = describe_source(Path(self.source))
        if self.model not in (None, name):
            raise SoftbiasError(f"--from {self.source} brings its own model, {name}; leave out --model {self.model}")
        sized = {} if side is None else {"img_size": side}
        return replace(self, model=name, data_options={**sized, **self.data_options}, finetune=self.finetune or "full")

    def with_config(self, config: RunSpec | None) -> PartialRunSpec:
        if config is None:
            return self
        kept = config.model_options if self.model in (None, config.model) else {}
        return PartialRunSpec(
            data=self.data or config.data,
            model=self.model or config.model,
            recipe=self.recipe or config.recipe,
            seed=config.seed if self.seed is None else self.seed,
            train_fraction=config.train_fraction if self.train_fraction is None else self.train_fraction,
            data_options={**config.data_options, **self.data_options},
            model_options={**kept, **self.model_options},
            pretrained=self.pretrained or config.pretrained,
            weights=self.weights or config.weights,
            source=self.source or config.source,
            finetune=self.finetune or config.finetune,
            overrides=self.overrides,
        )

    def check(self) -> None:
        check_model_options(self.model_options)
        model = self.model or ""
        if self.model is not None and self.source is None:
            check_model_name(self.model)
        if self.pretrained and not model.startswith("timm:"):
            raise SoftbiasError(
                f"--pretrained is for timm's models (--model timm:NAME), but the model is {model or 'not given'}"
            )
        learned = self.source or self.pretrained or self.weights or model.startswith("hf:")
        if self.finetune == "linear" and not learned:
            raise SoftbiasError("--finetune linear needs a model that has learned something: --from, --pretrained or --weights")
        if self.overrides.get("regularize"):
            from softbias.regularizers import parse_regularizers

            parse_regularizers(self.overrides["regularize"])
        # accumulate must suit the size of a batch, which may not be known yet
        no_batch_size = self.base_recipe is None and "batch_size" not in self.overrides
        checked = {name: value for name, value in self.overrides.items() if not (no_batch_size and name == "accumulate")}
        (self.base_recipe or Recipe()).with_overrides(checked)

    def spec(self, choice: Choice | None = None) -> RunSpec | None:
        """The complete spec; None if the model or the recipe is neither given nor in `choice`."""
        model = self.model or (None if choice is None else choice.model)
        recipe = self.base_recipe or (None if choice is None else choice.recipe)
        if model is None or recipe is None:
            return None
        return RunSpec(
            data=self.data or "",
            model=model,
            recipe=recipe.with_overrides(self.overrides),
            seed=self.seed or 0,
            train_fraction=1.0 if self.train_fraction is None else self.train_fraction,
            data_options=dict(self.data_options),
            model_options=dict(self.model_options),
            pretrained=self.pretrained,
            weights=self.weights,
            source=self.source,
            finetune=self.finetune,
        )


@dataclass(frozen=True)
class Resolved:
    """A run that can be trained.

    notes    why the settings are as they are, where the user did not name them
    advice   what the user may want to know before training: how long it takes, what may work better
    """

    spec: RunSpec
    data: Dataset
    notes: tuple[Note, ...] = ()
    advice: tuple[Note, ...] = ()


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
    advise    whether to look for advice, which may ask the network
    """
    notes: list[Note] = []
    if data is None:
        partial, data, notes = read_images(partial, device, progress)
    import torch

    from softbias.training.objectives import find_objective

    pretext = find_objective(partial.objective).pretext
    share = 1.0 if partial.train_fraction is None else partial.train_fraction
    n_train = max(1, round(len(data.splits["train"]) * share))
    choice = automatic.choose(n_train, data.img_size, device, torch.get_num_threads(), objective=partial.objective)
    model_named, recipe_named = partial.model is not None, partial.recipe is not None
    options_named = bool(partial.model_options)
    if not model_named or (partial.model == choice.model and pretext and not partial.source):
        partial = replace(partial, model_options={**choice.model_options, **partial.model_options})
    as_chosen = partial.model in (None, choice.model) and partial.model_options == dict(choice.model_options)
    suits = as_chosen or device != "cpu"  # on a CPU the number of epochs suits only the chosen model
    if not suits:
        choice = replace(choice, recipe=find_recipe(choice.recipe_name))
    spec = partial.spec(choice)
    assert spec is not None
    if not model_named or (pretext and as_chosen and not options_named):
        notes.append(choice.reasons[0])
    if not recipe_named and suits and spec.recipe.epochs == choice.recipe.epochs and not spec.recipe.steps:
        notes.append(choice.reasons[1])
    elif not recipe_named:
        notes.append(Note("recipe-chosen", {"recipe": choice.recipe_name, "epochs": spec.recipe.epochs}))
    seconds = choice.seconds(n_train, spec.recipe) if as_chosen and minutes is None else None
    advice = tuple(give_advice(spec, seconds, choice.recipe.epochs, n_train, pretext)) if advise else ()
    return Resolved(spec, data, tuple(notes), advice)


def read_images(partial: PartialRunSpec, device: str, progress: Progress | None) -> tuple[PartialRunSpec, Dataset, list[Note]]:
    """The set that the partial spec names, at a size that suits the device."""
    from softbias.data.sources import open_source

    assert partial.data is not None
    options, notes = dict(partial.data_options), []
    source = open_source(partial.data, options.get("group_by"))
    size = automatic.image_size(source, device) if "img_size" not in options and partial.model is None else None
    if size:
        options["img_size"] = size[0]
        notes.append(size[1])
    return replace(partial, data_options=options), source.read_with(options, progress), notes


def give_advice(spec: RunSpec, seconds: float | None, automatic_epochs: float, n_train: int, pretext: bool) -> list[Note]:
    """What to know before training. A longer one is named where it is sensible: the automatic choice, if the user asked for
    fewer epochs than that, and several times that, if the user asked for none."""
    found = []
    if seconds:
        values: dict[str, Any] = {"seconds": seconds}
        epochs, own = automatic_epochs, spec.recipe.epochs
        if own == automatic_epochs:
            epochs = automatic.LONGER * own
        if own < epochs <= automatic.MOST_EPOCHS and not spec.recipe.steps:
            chosen = epochs == automatic_epochs
            values |= {"longer_epochs": epochs, "longer_seconds": epochs / own * seconds, "automatic": chosen}
        found.append(Note("training-time", values))
    fresh = not (spec.pretrained or spec.weights or spec.source or spec.model.startswith("hf:"))
    if fresh and not pretext and n_train < automatic.FEW_IMAGES:
        found.append(Note("pretrained-weights", {"reachable": automatic.hub_reachable()}))
    return found


def check_model_name(name: str) -> None:
    """Refuse a name that no model has; folders are checked when they are read."""
    if name.startswith("timm:"):
        from softbias.models.foreign import require_timm

        require_timm(name.removeprefix("timm:"))
    elif ":" not in name:
        from softbias.models.presets import find_preset

        find_preset(name)


def describe_source(run: Path) -> tuple[str, int | None]:
    """Name and image side of the model in a run or a saved model, from its config.json alone."""
    folder = run / "model" if (run / "model").is_dir() else run
    file = folder / "config.json"
    try:
        config = read_json(file)
    except FileNotFoundError as error:
        raise SoftbiasError(f"{run} is neither a finished run nor a saved model: there is no {file}") from error
    if "model_type" in config:
        return f"hf:{folder}", config.get("image_size")
    size = (config.get("pretrained_cfg", {}).get("input_size") or [None, None, None])[1:]
    return config.get("softbias", {}).get("name") or "saved", size[0] if size[0] == size[1] else None
