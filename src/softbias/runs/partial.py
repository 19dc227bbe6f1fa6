"""What a user named of a run, with what a config, another run and named weights bring; checked before any image is read.

    partial = PartialRunSpec(data="my_pictures", overrides={"epochs": 20}).completed()

A setting comes from the user first, then from a config (`--config`, or that of the run to resume), then from the automatic
choices (`resolve`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from softbias.bounds import Count, Fraction, Seed, ShortText
from softbias.errors import SoftbiasError
from softbias.runs import finetuning
from softbias.runs.automatic import Choice
from softbias.runs.spec import RunSpec, check_amount, check_model_options
from softbias.runs.start import WORDS, Start, StartChoice
from softbias.schema import Checked
from softbias.training.recipe import Recipe, find_recipe


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
    convert: ShortText | None = None
    per_class: Count | None = None
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
        found = self.with_run(config).with_config(config).with_weights()
        if found.data is None:
            raise SoftbiasError("which pictures? Name a folder, a CSV file, arrays or a named set")
        from softbias.data.sources import source_name

        found = replace(found, data=source_name(found.data))
        found.check()
        return found

    def with_run(self, config: RunSpec | None) -> PartialRunSpec:
        """With the model of the run to start from, and the size of its images; one that began with pretrained weights is
        fine-tuned as they are, unless a recipe is named."""
        if isinstance(self.start, Start) or self.start in WORDS:
            return self
        if self.weights is not None:
            raise SoftbiasError(f"--start {self.start} brings its own weights; leave out --weights {self.weights}")
        from softbias.runs.named_starts import run_start

        found = run_start(self.start)
        if self.model not in (None, found.model):
            raise SoftbiasError(f"--start {self.start} brings its own model, {found.model}; leave out --model {self.model}")
        tunes = found.tuned and self.recipe is None and config is None and not self.is_pretext and self.finetune != "linear"
        return replace(self.with_start(found), recipe=finetuning.RECIPE if tunes else self.recipe)

    def with_weights(self) -> PartialRunSpec:
        """With the model that named weights are for."""
        if self.weights is None or isinstance(self.start, Start):
            return self
        if self.start == "scratch":
            raise SoftbiasError(f"--start scratch takes fresh weights; leave it out, or leave out --weights {self.weights}")
        from softbias.runs.named_starts import weights_start

        size = self.data_options.get("img_size")
        return self.with_start(weights_start(self.weights, self.model, self.model_options, size))

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
        return self.start == "pretrained" or (self.start == "auto" and bool(self.finetune == "linear" or self.convert))

    @property
    def is_pretext(self) -> bool:
        from softbias.training.objectives import find_objective

        return find_objective(self.objective).pretext

    def with_config(self, config: RunSpec | None) -> PartialRunSpec:
        if config is None:
            return self
        same_model = self.model in (None, config.model)
        amount_is_open = self.train_fraction is None and self.per_class is None
        kept = config.model_options if same_model else {}
        start = self.start
        if isinstance(start, str) and same_model and config.start.answers(start, self.weights):
            start = config.start
        return PartialRunSpec(
            data=self.data or config.data,
            model=self.model or config.model,
            recipe=self.recipe or config.recipe,
            seed=config.seed if self.seed is None else self.seed,
            train_fraction=config.train_fraction if amount_is_open else self.train_fraction,
            per_class=config.per_class if amount_is_open else self.per_class,
            data_options={**config.data_options, **self.data_options},
            model_options={**kept, **self.model_options},
            start=start,
            weights=self.weights,
            finetune=self.finetune or (config.finetune if start == config.start else None),
            convert=self.convert or (config.convert if start == config.start else None),
            overrides=self.overrides,
        )

    def check(self) -> None:
        check_model_options(self.model_options)
        check_amount(self.train_fraction, self.per_class)
        if self.model is not None and not (isinstance(self.start, Start) and self.start.kind == "run"):
            check_model_name(self.model)
        if self.finetune == "linear" and self.settled_start is not None and not self.settled_start.learned:
            raise SoftbiasError("--finetune linear needs a model that has learned something: --start pretrained or --start RUN")
        if self.convert is not None:
            from softbias.models.conversion import parse_conversion

            parse_conversion(self.convert)
            check_conversion(self.convert, self.settled_start, self.finetune)
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
            convert=self.convert,
            per_class=self.per_class,
        )


def check_conversion(convert: str | None, start: Start | None, finetune: str | None) -> None:
    """Refuse a conversion of a model that has learned nothing, or of one of which the head alone learns."""
    if convert is not None and start is not None and not start.learned:
        raise SoftbiasError(
            f"--convert {convert} is for a model that has learned something: --start pretrained or --start RUN; a fresh model "
            "gets its attention by its name, such as --model convit_tiny"
        )
    if convert is not None and finetune == "linear":
        raise SoftbiasError(f"--finetune linear trains the head alone, so --convert {convert} would change nothing")


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
