"""`softbias fit` and `softbias pretrain`: parse, call `softbias.fit`, and print what came of it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from softbias import environment
from softbias.cli.options import PretrainOptions, TrainingOptions, data_options, model_options
from softbias.cli.parsing import NO_LINE, CommandLine, Line
from softbias.errors import SoftbiasError

if TYPE_CHECKING:
    from softbias.runs.fit import Result


def fit(
    options: Annotated[TrainingOptions, arg(name="")],
    *,
    line: Line = NO_LINE,
) -> int:
    """Train a classifier on your pictures.

    With nothing but DATA, model, recipe, epochs and image size are chosen to suit the pictures and the device, and said.
    DATA is root/CLASS/*.jpg, or root/{train,val,test}/CLASS/*.jpg; a split is made where there is none.

      softbias fit my_pictures
      softbias fit cifar10 --model convit_tiny --recipe small --epochs 100 --seed 1
      softbias fit my_pictures --from runs/pretrained --finetune linear
    """
    return train(options, line, "fit")


def pretrain(
    options: Annotated[PretrainOptions, arg(name="")],
    *,
    line: Line = NO_LINE,
) -> int:
    """Train without labels: which of four rotations a picture stands in (ARViT's pretext task).

    `softbias fit DATA --from RUN` then trains a classifier from it.
    """
    return train(options, line, "pretrain")


def train(options: TrainingOptions, line: CommandLine, command: str) -> int:
    if options.data is None and options.config is None and not (options.resume and options.out):
        raise SoftbiasError(f"which pictures? softbias {command} DATA, with a folder, a CSV file, arrays or a named set")
    overrides = dict(line.overrides)
    if isinstance(options, PretrainOptions):
        overrides |= {"objective": "rotation"} | ({} if options.rotations is None else {"rotations": options.rotations})
    if options.regularize:
        overrides["regularize"] = options.regularize
    named = model_options(options.model_option)
    from softbias.runs.fit import fit
    from softbias.training.display import choose
    from softbias.training.loop import StoppedError

    main = int(environment.variable("RANK") or 0) == 0  # of the processes that torchrun started
    try:
        result = fit(
            options.data, options.model, options.recipe, seed=options.seed, train_fraction=options.fraction, out=options.out,
            resume=options.resume, config=options.config, data_options=data_options(options), model_options=named,
            source=options.source, finetune=options.finetune, pretrained=options.pretrained, weights=options.weights,
            minutes=options.minutes, keep=options.keep, probe_every=options.probe_every, device=options.device,
            trackers=[name for name in options.trackers.split(",") if name not in ("", "none")], baseline=options.baseline,
            display=choose(quiet=options.quiet, json=options.json, main=main), **overrides,
        )  # fmt: skip
    except StoppedError as stop:
        if main:
            print(f"softbias: stopped at step {stop.step}; continue with: {again(line, stop.path)}", file=sys.stderr)
        return 128 + stop.signal
    if main:
        show(result, options)
    return 0


def again(line: CommandLine, path: Path | None) -> str:
    """The command that continues the run."""
    has_out = path is None or any(word == "--out" or word.startswith("--out=") for word in line.arguments)
    more = [] if has_out else ["--out", str(path)]
    more += [] if "--resume" in line.arguments else ["--resume"]
    return shlex.join(["softbias", *line.arguments, *more])


def show(result: Result, options: TrainingOptions) -> None:
    if options.quiet:
        print(result.path)
    elif options.json:
        print(json.dumps({"event": "summary", "path": str(result.path), **result.summary}), flush=True)
    else:
        from softbias.runs.printed import print_summary

        print_summary(result.summary, result.path)
