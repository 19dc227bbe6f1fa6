"""What `softbias fit` and `softbias pretrain` do: settle what defines the run, train it, and show what came of it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softbias import environment
from softbias.cli.options import TrainingOptions
from softbias.cli.parsing import Given, changed
from softbias.errors import SoftbiasError
from softbias.runs import automatic
from softbias.runs.resolve import complete, settle
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, differences
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.training.display import Display


def run_training(options: TrainingOptions, given: Given, command: str) -> int:
    from softbias.environment import find_device
    from softbias.training.display import choose as choose_display

    first = int(environment.variable("RANK") or 0) == 0  # of the processes that torchrun started
    display = choose_display(quiet=options.quiet, json=options.json, main=first)
    wish = settle(options, command)
    prog = f"softbias {command}"
    changed(wish.recipe or Recipe(), given.changes, prog)  # what cannot be is said before any picture is read
    refuse_early(options, first)
    if wish.model is not None and wish.recipe is not None:
        spec = wish.spec(wish.model, wish.model_options, changed(wish.recipe, given.changes, prog))
        if is_finished(spec, options, display, first):
            return show(spec, options, first)
    device = find_device(options.device)
    from softbias.data.sources import open_source

    asked, size = wish.settled["data_options"], None
    source = open_source(wish.settled["data"], asked.get("group_by"))
    if "img_size" not in asked and wish.model is None:
        size = automatic.image_size(source, device)
        if size:
            asked["img_size"] = size[0]
    reading = {name: value for name, value in asked.items() if name != "group_by" and value is not None}
    data = source.read(**reading, progress=progress(display))
    if size:
        display.message(size[1])
    spec, reasons = complete(wish, data, device, given, prog, display, options.minutes)
    if not is_finished(spec, options, display, first):
        status = train(spec, data, display, options, given, first, [size[1], *reasons] if size else reasons)
        if status:
            return status
    return show(spec, options, first)


def place(spec: RunSpec, options: TrainingOptions) -> Path:
    return options.out or Path("runs") / spec.title


def refuse_early(options: TrainingOptions, first: bool) -> None:
    """A model that there is not, and a folder that is taken."""
    if options.model is not None and options.model.startswith("timm:"):
        from softbias.models.foreign import require_timm

        require_timm(options.model.removeprefix("timm:"))
    elif options.model is not None and ":" not in options.model:
        from softbias.models.presets import find_preset

        find_preset(options.model)
    if first and options.out is not None and not options.resume:
        refuse_taken(Run(options.out))


def refuse_taken(directory: Run) -> None:
    if directory.begun:
        shown = shlex.quote(str(directory.path))
        if directory.finished:
            raise SoftbiasError(f"{directory.path} holds a finished run: choose another --out, or softbias runs delete {shown}")
        raise SoftbiasError(f"{directory.path} holds a run that was stopped; --resume continues it, or choose another --out")


def is_finished(spec: RunSpec, options: TrainingOptions, display: Display, first: bool) -> bool:
    """Whether there is nothing left to do; a folder that cannot take the run is refused, before the pictures are read."""
    directory = Run(place(spec, options))
    if not directory.begun:
        return False
    if not first:  # the first process may have opened the folder already, and refuses for all
        return options.resume and directory.finished
    if not options.resume:
        refuse_taken(directory)
    different = differences(directory.spec.to_dict(), spec.to_dict())
    if different:
        raise SoftbiasError(f"{directory.path} was started with other settings: {'; '.join(different)}; choose another --out")
    if directory.finished:
        display.message(f"{directory.path} is finished already")
    return directory.finished


def train(
    spec: RunSpec,
    data: Dataset,
    display: Display,
    options: TrainingOptions,
    given: Given,
    first: bool,
    reasons: Sequence[str] = (),
) -> int:
    """Train, and write the page; the exit status is not 0 where training was asked to stop."""
    import torch

    from softbias.runs.fit import run_fit
    from softbias.training.loop import StoppedError

    path = place(spec, options)
    watch = None
    if options.probe_every is not None:
        from softbias.runs.live import watching

        watch = watching(options.probe_every)
    named = tuple(name for name in options.trackers.split(",") if name not in ("", "none"))
    try:
        run_fit(
            spec, path, resume=options.resume, data=data, display=display, keep=options.keep, minutes=options.minutes,
            device=options.device, trackers=named, baseline=options.baseline, watch=watch,
            reasons=reasons,
        )  # fmt: skip
    except StoppedError as stop:
        if first:
            print(f"softbias: stopped at step {stop.step}; continue with: {again(given, path)}", file=sys.stderr)
        return 128 + stop.signal
    except torch.OutOfMemoryError as error:
        raise SoftbiasError(
            f"the device has too little memory for batches of {spec.recipe.batch_size}: try --batch-size "
            f"{max(1, spec.recipe.batch_size // 2)}, or --accumulate 2, which gives the same result"
        ) from error
    if first:
        from softbias.runs.page import write_page

        write_page(path, data)
    return 0


def again(given: Given, path: Path) -> str:
    """The command that continues the run."""
    more = [] if any(word == "--out" or word.startswith("--out=") for word in given.arguments) else ["--out", str(path)]
    more += [] if "--resume" in given.arguments else ["--resume"]
    return shlex.join(["softbias", *given.arguments, *more])


def show(spec: RunSpec, options: TrainingOptions, first: bool) -> int:
    """The scores of the finished run, as they were asked for."""
    directory = Run(place(spec, options))
    if not first:
        return 0
    if options.quiet:
        print(directory.path)
    elif options.json:
        print(json.dumps({"event": "summary", "path": str(directory.path), **directory.summary()}), flush=True)
    else:
        from softbias.runs.printed import print_summary

        print_summary(directory.summary(), directory.path)
    return 0


def progress(display: Display, every: float = 10.0) -> Callable[[int, int], None]:
    """A line now and then while pictures are decoded."""
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > every:
            last = time.monotonic()
            display.message(f"decoding pictures: {done:,} of {total:,}")

    return tell
