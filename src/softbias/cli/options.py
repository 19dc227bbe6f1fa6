"""The options of `softbias fit` and `softbias pretrain`.

Nothing has a default here where a config (`--config`, or the run that `--resume` continues) may have something to say:
None means that the user did not say it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from softbias.cli.parsing import flag, switch
from softbias.errors import SoftbiasError


@dataclass(frozen=True)
class TrainingOptions:
    data: Annotated[
        str | None,
        Positional,
        flag("DATA", "A folder of pictures, a CSV file (path, label), arrays (.npz), or a set's name."),
    ] = None
    model: Annotated[
        str | None,
        flag("NAME", "Of `softbias models`, timm:NAME or hf:FOLDER; chosen to suit the pictures if not given."),
    ] = None
    recipe: Annotated[
        str | None,
        flag(
            "NAME",
            "A name from `softbias recipes`; chosen to suit the pictures if not given. Any field can be changed: "
            "--epochs 20 --flip 0 (--help-recipe shows all of them).",
        ),
    ] = None
    seed: Annotated[int | None, flag("N", "Of weights, order and augmentation; 0 if not given.")] = None
    fraction: Annotated[
        float | None, flag("SHARE", "Of the training pictures, such as 0.1; nested, the same of each class.")
    ] = None
    out: Annotated[Path | None, flag("FOLDER", "Where the run goes; runs/<data>-<model>-<id> if not given.")] = None
    resume: Annotated[
        bool, switch("Continue a run that was stopped; starts one where there is none, and leaves a finished one alone.")
    ] = False
    config: Annotated[Path | None, flag("FILE", "A run's config.yaml; what is given beside it wins.")] = None
    source: Annotated[Path | None, flag("RUN", "Start from the model of another run, with a new head.", "from")] = None
    finetune: Annotated[
        Literal["linear", "full"] | None,
        flag("probe|full", "With --from, --pretrained or --weights: the head only, or all."),
    ] = None
    pretrained: Annotated[bool, switch("timm's pretrained weights, over the network; for timm: models.")] = False
    weights: Annotated[Path | None, flag("FILE|FOLDER", "Weights to start from (safetensors).")] = None
    img_size: Annotated[int | None, flag("PIXELS", "Side of the pictures; chosen from their sizes if not given.")] = None
    resize_mode: Annotated[
        Literal["crop", "pad", "stretch"] | None,
        flag("crop|pad|stretch", "What becomes of the aspect ratio; crop if not given."),
    ] = None
    group_by: Annotated[
        str | None, flag("REGEX|COLUMN", "Keep pictures with the same match, or the same value, in one split.")
    ] = None
    skip_broken: Annotated[bool, switch("Leave out pictures that cannot be read, and say how many.")] = False
    data_dir: Annotated[Path | None, flag("FOLDER", "Where named sets lie; $SOFTBIAS_DATA if not given.")] = None
    model_option: Annotated[
        tuple[str, ...],
        UseAppendAction,
        flag("NAME=VALUE", "An option of the model, such as patch_size=8; repeatable."),
    ] = ()
    regularize: Annotated[
        tuple[str, ...],
        UseAppendAction,
        flag("KIND:layer=N,…", "A loss on attention maps, such as distance:layer=2,weight=0.01; repeatable."),
    ] = ()
    minutes: Annotated[float | None, flag("M", "Time for training: the schedule is fitted to it.")] = None
    keep: Annotated[str, flag("WHICH", "Checkpoints to keep: last, best, every=K; last,best if not given.")] = "last,best"
    probe_every: Annotated[
        int | None, flag("K", "Measure locality, gates and masks every K epochs, into probes/ of the run.")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], flag("auto|cpu|cuda|mps", "Where to train.")] = "auto"
    trackers: Annotated[
        str, flag("NAMES", "tensorboard, wandb, mlflow, separated by commas, or none; tensorboard if not given.")
    ] = "tensorboard"
    quiet: Annotated[bool, switch("Print the run's folder at the end, and nothing else.")] = False
    json: Annotated[bool, switch("Print a line of JSON per event.")] = False
    baseline: Annotated[bool, switch("Do without the comparison with a logistic regression on pixels.")] = True


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    rotations: Annotated[
        Literal["all", "one"] | None, flag("all|one", "Every picture in all four rotations, or in one at random.")
    ] = None


def model_options(given: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that is no Python literal is text.

    >>> model_options(("patch_size=8", "strength=1.5", "pool=average", "released=true"))
    {'patch_size': 8, 'strength': 1.5, 'pool': 'average', 'released': True}
    """
    found: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise SoftbiasError(f"--model-option takes NAME=VALUE, such as patch_size=8, but got {pair!r}")
        words = {"true": True, "false": False, "none": None}
        try:
            found[name.replace("-", "_")] = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name.replace("-", "_")] = text
    return found


def data_options(options: TrainingOptions) -> dict[str, Any]:
    """What was asked of the reader of the pictures."""
    asked = {
        "img_size": options.img_size,
        "resize_mode": options.resize_mode,
        "group_by": options.group_by,
        "skip_broken": options.skip_broken or None,
        "data_dir": None if options.data_dir is None else str(options.data_dir),
    }
    return {name: value for name, value in asked.items() if value is not None}
