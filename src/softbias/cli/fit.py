"""`softbias fit` and `softbias pretrain`: parse, call `softbias.fit`, and print the scores.

An option has no default where a config (`--config`, or that of the run to resume) may name it: None means that the user did
not.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from softbias import environment
from softbias.bounds import Count, FilePath, Fraction, Minutes, Seed, ShortText, Side
from softbias.cli.parsing import NO_LINE, CommandLine, Device, Line, Score, flag, parse_options, switch
from softbias.errors import SoftbiasError
from softbias.terminal import echo

if TYPE_CHECKING:
    from softbias.runs.fit import Result


@dataclass(frozen=True)
class TrainingOptions:
    data: Annotated[
        ShortText | None,
        Positional,
        flag("DATA", "A folder of pictures, a CSV file (path, label), arrays (.npz), or a set's name."),
    ] = None
    model: Annotated[
        ShortText | None,
        flag("NAME", "A name from `softbias models`, timm:NAME or hf:FOLDER; chosen to suit the pictures if not given."),
    ] = None
    recipe: Annotated[
        ShortText | None,
        flag(
            "NAME",
            "A name from `softbias recipes`; chosen to suit the pictures if not given. Any field can be changed: "
            "--epochs 20 --flip 0 (--help-recipe shows all of them).",
        ),
    ] = None
    seed: Annotated[Seed | None, flag("N", "Seed of weights, order and augmentation; 0 if not given.")] = None
    fraction: Annotated[
        Fraction | None, flag("SHARE", "Share of the training pictures, such as 0.1; the same of each class, and nested.")
    ] = None
    per_class: Annotated[
        Count | None,
        flag(
            "N",
            "Number of training pictures of each class (all there are, where fewer); a smaller one is part of a larger one.",
        ),
    ] = None
    out: Annotated[FilePath | None, flag("FOLDER", "Where the run goes; runs/<data>-<model>-<id> if not given.")] = None
    resume: Annotated[
        bool, switch("Continue a run that was stopped; starts one where there is none, and leaves a finished one alone.")
    ] = False
    config: Annotated[FilePath | None, flag("FILE", "A run's config.yaml; other options given here override it.")] = None
    start: Annotated[
        ShortText,
        flag(
            "auto|pretrained|scratch|RUN",
            "What the model begins with: pretrained weights, fresh ones, or the model of another run with a new head; auto "
            "takes pretrained ones where they are at hand or a small download.",
        ),
    ] = "auto"
    weights: Annotated[
        FilePath | None, flag("FILE|FOLDER", "Pretrained weights (safetensors); $SOFTBIAS_WEIGHTS is a folder of them.")
    ] = None
    finetune: Annotated[
        Literal["linear", "full"] | None,
        flag("linear|full", "Of a model that has learned something: train the head only, or all weights."),
    ] = None
    convert: Annotated[
        ShortText | None,
        flag(
            "KIND:blocks=N-M,…",
            "Of a model that has learned something: replace its attention, by gated or masked, say. It computes the same at "
            "the start, and its bias can learn. All blocks whose bias can learn if none are named.",
        ),
    ] = None
    img_size: Annotated[Side | None, flag("PIXELS", "Side of the pictures; chosen from their sizes if not given.")] = None
    resize_mode: Annotated[
        Literal["crop", "pad", "stretch"] | None,
        flag("crop|pad|stretch", "What happens to the aspect ratio; crop if not given."),
    ] = None
    crop_from: Annotated[
        Side | None, flag("PIXELS", "Keep whole pictures at this side, too, and cut the crops of training from them.")
    ] = None
    value_range: Annotated[
        ShortText | None,
        flag("BLACK,WHITE", "What is black and white in pictures of more than eight bits; the pictures decide if not given."),
    ] = None
    group_by: Annotated[
        ShortText | None, flag("REGEX|COLUMN", "Keep pictures with the same match, or the same value, in one split.")
    ] = None
    skip_broken: Annotated[bool, switch("Leave out pictures that cannot be read, and say how many.")] = False
    score: Score = None
    data_dir: Annotated[FilePath | None, flag("FOLDER", "The folder of named sets; $SOFTBIAS_DATA if not given.")] = None
    model_option: Annotated[
        tuple[ShortText, ...],
        UseAppendAction,
        flag("NAME=VALUE", "An option of the model, such as patch_size=8; repeatable."),
    ] = ()
    regularize: Annotated[
        tuple[ShortText, ...],
        UseAppendAction,
        flag("KIND:layer=N,…", "A loss on attention maps, such as distance:layer=2,weight=0.01; repeatable."),
    ] = ()
    minutes: Annotated[
        Minutes | None, flag("M", "Time for training in minutes: the schedule is fitted to it, and to the load of the machine.")
    ] = None
    keep: Annotated[ShortText, flag("WHICH", "Checkpoints to keep: last, best, every=K; last,best if not given.")] = "last,best"
    probe_every: Annotated[
        Count | None, flag("K", "Measure locality, gates and masks every K epochs, into probes/ of the run.")
    ] = None
    device: Annotated[Device, flag("auto|cpu|cuda|mps", "Where to train.")] = "auto"
    trackers: Annotated[
        ShortText, flag("NAMES", "tensorboard, wandb, mlflow, separated by commas, or none; tensorboard if not given.")
    ] = "tensorboard"
    quiet: Annotated[bool, switch("Print the run's folder at the end, and nothing else.")] = False
    json: Annotated[bool, switch("Print a line of JSON per event.")] = False
    baseline: Annotated[bool, switch("Leave out the comparison with a logistic regression on pixels.")] = True


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    objective: Annotated[
        ShortText | None,
        flag("NAME", "What is learned without labels, such as views; that of the recipe, or rotation, if not given."),
    ] = None
    rotations: Annotated[
        Literal["all", "one"] | None, flag("all|one", "Every picture in all four rotations, or in one at random.")
    ] = None


def fit(
    options: Annotated[TrainingOptions, arg(name="")],
    *,
    line: Line = NO_LINE,
) -> int:
    """Train a classifier on your pictures.

    With DATA alone, model, recipe, epochs and image size are chosen to suit the pictures and the device; each choice is
    printed with its reason. DATA is root/CLASS/*.jpg, or root/{train,val,test}/CLASS/*.jpg; a missing split is made.

      softbias fit my_pictures
      softbias fit cifar10 --model convit_tiny --recipe small --epochs 100 --seed 1
      softbias fit my_pictures --start runs/pretrained --finetune linear
    """
    return train(options, line, "fit")


def pretrain(
    options: Annotated[PretrainOptions, arg(name="")],
    *,
    line: Line = NO_LINE,
) -> int:
    """Train without labels, on a folder of pictures with or without classes.

    The objective rotation learns by which of four rotations a picture was turned (ARViT's pretext task), views which two
    changed copies belong to the same picture, instances which picture a changed copy was made from.

      softbias pretrain my_pictures --objective views --out runs/pretrained
      softbias fit my_pictures --start runs/pretrained
      softbias fit my_pictures --start runs/pretrained --finetune linear
    """
    return train(options, line, "pretrain")


def train(options: TrainingOptions, line: CommandLine, command: str) -> int:
    if options.data is None and options.config is None and not (options.resume and options.out):
        raise SoftbiasError(f"which pictures? softbias {command} DATA, with a folder, a CSV file, arrays or a named set")
    overrides = dict(line.overrides)
    if isinstance(options, PretrainOptions):
        overrides["objective"] = pretext_objective(options)
        require_pretext(str(overrides["objective"]))
        overrides |= {} if options.rotations is None else {"rotations": options.rotations}
    if options.regularize:
        overrides["regularize"] = options.regularize
    named = parse_options(options.model_option)
    from softbias.runs.fit import fit
    from softbias.training.display import choose
    from softbias.training.loop import StoppedError

    main = int(environment.variable("RANK") or 0) == 0  # of the processes that torchrun started
    try:
        result = fit(
            options.data, options.model, options.recipe, seed=options.seed, train_fraction=options.fraction,
            per_class=options.per_class, out=options.out, resume=options.resume, config=options.config,
            data_options=data_options(options), model_options=named,
            start=options.start, weights=options.weights, finetune=options.finetune, convert=options.convert,
            minutes=options.minutes, keep=options.keep, probe_every=options.probe_every, device=options.device,
            trackers=[name for name in options.trackers.split(",") if name not in ("", "none")], baseline=options.baseline,
            display=choose(quiet=options.quiet, json=options.json, main=main), **overrides,
        )  # fmt: skip
    except StoppedError as stop:
        if main:
            echo(f"softbias: stopped at step {stop.step}; continue with: {again(line, stop.path)}", file=sys.stderr)
        return 128 + stop.signal
    if main:
        show(result, options)
    return 0


def pretext_objective(options: PretrainOptions) -> str:
    """The objective that is named, or that of the recipe or the config, or rotation."""
    from softbias.runs.fit import base_config
    from softbias.training.recipe import find_recipe

    if options.objective is not None:
        return options.objective
    if options.recipe is not None and (found := find_recipe(options.recipe).objective) != "supervised":
        return found
    config = base_config(options.config, options.out, options.resume)
    return "rotation" if config is None or options.recipe is not None else config.recipe.objective


def require_pretext(objective: str) -> None:
    from softbias.training.objectives import find_objective, list_objectives

    if not find_objective(objective).pretext:
        tasks = [name for name in list_objectives() if find_objective(name).pretext]
        raise SoftbiasError(
            f"softbias pretrain learns without labels, but --objective {objective} needs them: take {' or '.join(tasks)}, or "
            "softbias fit"
        )


def again(line: CommandLine, path: Path | None) -> str:
    """The command that continues the run."""
    has_out = path is None or any(word == "--out" or word.startswith("--out=") for word in line.arguments)
    more = [] if has_out else ["--out", str(path)]
    more += [] if "--resume" in line.arguments else ["--resume"]
    return shlex.join(["softbias", *line.arguments, *more])


def show(result: Result, options: TrainingOptions) -> None:
    if options.quiet:
        echo(result.path)
    elif options.json:
        echo(json.dumps({"event": "summary", "path": str(result.path), **result.summary}), flush=True)
    else:
        from softbias.runs.printed import print_summary

        print_summary(result.summary, result.path)


def data_options(options: TrainingOptions) -> dict[str, Any]:
    """What was asked of the reader of the pictures."""
    from softbias.data.value_range import parse_range

    asked = {
        "img_size": options.img_size,
        "resize_mode": options.resize_mode,
        "crop_from": options.crop_from,
        "value_range": None if options.value_range is None else parse_range(options.value_range),
        "group_by": options.group_by,
        "skip_broken": options.skip_broken or None,
        "score": options.score,
        "data_dir": None if options.data_dir is None else str(options.data_dir),
    }
    return {name: value for name, value in asked.items() if value is not None}
