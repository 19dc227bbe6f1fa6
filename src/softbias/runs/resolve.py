"""What defines a run that was asked for on the command line.

What the user says wins; then the config (`--config`, or that of the run to resume); then what suits the pictures.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softbias.cli.options import PretrainOptions, TrainingOptions, data_options, model_options
from softbias.cli.parsing import Given, changed
from softbias.errors import SoftbiasError
from softbias.runs import automatic
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, read_config
from softbias.training.objectives import find_objective
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.training.display import Display


@dataclass(frozen=True)
class Wish:
    """A run as far as it is settled before the pictures are read; model and recipe may be left to choose."""

    settled: dict[str, Any]  # fields of RunSpec
    model: str | None
    model_options: dict[str, Any]
    recipe: Recipe | None
    objective: str
    rotations: Literal["all", "one"] | None
    regularize: tuple[str, ...] = ()

    def spec(self, model: str, options: dict[str, Any], recipe: Recipe) -> RunSpec:
        if find_objective(self.objective).pretext:
            recipe = dataclasses.replace(recipe, objective=self.objective, rotations=self.rotations or recipe.rotations)
        if self.regularize:
            recipe = dataclasses.replace(recipe, regularize=self.regularize)
        return RunSpec(**self.settled, model=model, model_options=options, recipe=recipe)


def settle(options: TrainingOptions, command: str) -> Wish:
    """What the options and the config say together; contradictions are refused here."""
    base = base_config(options)
    given = base.to_dict() if base else {}
    data = options.data if options.data is not None else given.get("data")
    if data is None:
        raise SoftbiasError(f"which pictures? softbias {command} DATA, with a folder, a CSV file, arrays or a named set")
    if Path(data).exists():
        data = str(Path(data))  # "pictures/" and "pictures" are the same set
    source = str(options.source) if options.source else given.get("source")
    model = options.model or given.get("model")
    asked = data_options(options)
    if options.source:
        name, side = about_model(options.source)
        if options.model and options.model != name:
            raise SoftbiasError(f"--from {options.source} brings its own model, {name}; leave out --model {options.model}")
        model = name
        asked.setdefault("img_size", side)
    kept = given.get("model_options", {}) if not options.model or options.model == given.get("model") else {}
    pretrained = options.pretrained or given.get("pretrained", False)
    weights = str(options.weights) if options.weights else given.get("weights")
    if pretrained and not (model or "").startswith("timm:"):
        raise SoftbiasError(f"--pretrained is for timm's models (--model timm:NAME), but the model is {model or 'not given'}")
    finetune = options.finetune or given.get("finetune") or ("full" if source else None)
    if finetune == "linear" and not (source or pretrained or weights or (model or "").startswith("hf:")):
        raise SoftbiasError("--finetune linear needs a model that has learned something: --from, --pretrained or --weights")
    recipe = find_recipe(options.recipe) if options.recipe else base.recipe if base else None
    if options.regularize:
        from softbias.regularizers import parse_requests

        parse_requests(options.regularize)  # a mistake is said before the pictures are read
    rotations = options.rotations if isinstance(options, PretrainOptions) else None
    if command == "pretrain" and recipe is None:
        rotations = rotations or "all"
    return Wish(
        settled={
            "data": str(data),
            "seed": options.seed if options.seed is not None else given.get("seed", 0),
            "train_fraction": options.fraction if options.fraction is not None else given.get("train_fraction", 1.0),
            "data_options": {**given.get("data_options", {}), **asked},
            "pretrained": pretrained,
            "weights": weights,
            "source": source,
            "finetune": finetune,
        },
        model=model,
        model_options={**kept, **model_options(options.model_option)},
        recipe=recipe,
        objective="rotation" if command == "pretrain" else recipe.objective if recipe else "supervised",
        rotations=rotations,
        regularize=options.regularize,
    )


def base_config(options: TrainingOptions) -> RunSpec | None:
    """The config that the options start from, if there is one."""
    if options.config is not None:
        return read_config(options.config / "config.yaml" if options.config.is_dir() else options.config)
    if options.resume and options.out is not None and Run(options.out).begun:
        return Run(options.out).spec
    return None


def about_model(run: Path) -> tuple[str, int | None]:
    """Name and image side of a run's model, from its config alone."""
    folder = run / "model" if (run / "model").is_dir() else run
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError as error:
        raise SoftbiasError(
            f"{run} is neither a finished run nor a saved model: there is no {folder / 'config.json'}"
        ) from error
    if "model_type" in config:
        return f"hf:{folder}", config.get("image_size")
    size = (config.get("pretrained_cfg", {}).get("input_size") or [None, None, None])[1:]
    return config.get("softbias", {}).get("name") or "saved", size[0] if size[0] == size[1] else None


def complete(
    wish: Wish, data: Dataset, device: str, given: Given, prog: str, display: Display, limit: float | None = None
) -> tuple[RunSpec, list[str]]:
    """Choose what is not settled, say what and why, and return the reasons, too; with a limit in minutes the time needs no
    estimate."""
    import torch

    pretext = find_objective(wish.objective).pretext
    n_train = max(1, round(len(data.splits["train"]) * wish.settled["train_fraction"]))
    choice = automatic.choose(n_train, data.img_size, device, torch.get_num_threads(), objective=wish.objective)
    model, options = wish.model or choice.model, wish.model_options
    if wish.model is None or (wish.model == choice.model and pretext and not wish.settled["source"]):
        options = {**choice.model_options, **options}
    known = model == choice.model and options == dict(choice.model_options)  # so that its speed is, too
    recipe = wish.recipe or (choice.recipe if known or device != "cpu" else find_recipe(choice.recipe_name))
    spec = wish.spec(model, options, changed(recipe, given.changes, prog))
    reasons = []
    if wish.model is None or (pretext and known and not wish.model_options):
        reasons.append(f"model {choice.reasons[0]}")
    if wish.recipe is None and spec.recipe.epochs == choice.recipe.epochs and not spec.recipe.steps:
        reasons.append(choice.reasons[1])
    elif wish.recipe is None:
        reasons.append(f"recipe {choice.recipe_name} with {automatic.count(spec.recipe.epochs, 'epoch')}")
    for reason in reasons:
        display.message(reason)
    seconds = choice.seconds(n_train, spec.recipe) if known and limit is None else None
    if seconds:
        longer = automatic.LONGER * spec.recipe.epochs
        more = f"; longer, and usually better: --epochs {longer:g}, about {minutes(automatic.LONGER * seconds)}"
        display.message(f"training will take about {minutes(seconds)}{more if longer <= automatic.MOST_EPOCHS else ''}")
    if not (pretext or spec.pretrained or spec.weights or spec.source or model.startswith("hf:")):
        few = n_train < automatic.FEW_PICTURES
        line = automatic.about_pretrained(n_train, automatic.hub_reachable()) if few else None
        if line:
            display.message(line)
    return spec, reasons


def minutes(seconds: float) -> str:
    """
    >>> minutes(0.2), minutes(40), minutes(150), minutes(7300)
    ('1 second', '40 seconds', '2.5 minutes', '2 hours')
    """
    if seconds < 90:
        return automatic.count(max(1, round(seconds)), "second")
    if seconds < 5400:
        return automatic.count(float(f"{seconds / 60:.2g}"), "minute")
    return automatic.count(float(f"{seconds / 3600:.2g}"), "hour")
