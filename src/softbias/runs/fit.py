"""From what a user named to a finished run directory.

    result = softbias.fit("my_pictures")                # `softbias fit my_pictures` is the same call
    result.summary["test"]["accuracy"], result.path

`fit` resolves the settings; `run_fit` trains what a complete spec defines. A study calls `run_fit` for each of its runs.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from softbias import environment
from softbias.bounds import AnyPath, Count, Fraction, Minutes, Seed, ShortText
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.listing import some
from softbias.data.sources import DataOptions, source_name
from softbias.data.tables import write_manifest
from softbias.errors import SoftbiasError
from softbias.files import remove_empty, remove_stale, require_writable
from softbias.models.inspect import unwrap
from softbias.models.storage import load
from softbias.notes import Note
from softbias.pages.wording import text
from softbias.runs.artifacts import find_lost, only_page
from softbias.runs.galleries import AFTER, BEFORE, record_maps
from softbias.runs.live import LiveProbes
from softbias.runs.outcome import finish, idle_regularizers, load_selected
from softbias.runs.page import result_html, write_page
from softbias.runs.partial import PartialRunSpec
from softbias.runs.prepare import check_start, make_plan, make_split
from softbias.runs.resolve import resolve
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, read_config
from softbias.runs.start import Start
from softbias.schema import checked_arguments
from softbias.training import checkpoint
from softbias.training.acceleration import agreed, make_accelerator, start_trackers
from softbias.training.batches import SplitImages
from softbias.training.display import Display, decoding_progress
from softbias.training.loop import OnEpoch, StoppedError, train
from softbias.training.plan import LoopSettings
from softbias.training.recipe import Recipe

RUNS = Path("runs")  # the folder of runs, if the user names none
OF_IMAGES = (  # options of the images that `softbias fit` has, too
    "img_size", "resize_mode", "crop_from", "value_range", "group_by", "skip_broken", "score", "data_dir",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A finished run with its scores and its model. A notebook shows the scores."""

    run: Run
    summary: dict[str, Any]
    model: nn.Module

    @property
    def path(self) -> Path:
        return self.run.path

    def _repr_html_(self) -> str:
        return result_html(self.summary, self.run)


@checked_arguments
def fit(
    data: AnyPath | Dataset | None = None,
    model: ShortText | None = None,
    recipe: ShortText | Recipe | None = None,
    *,
    seed: Seed | None = None,
    train_fraction: Fraction | None = None,
    per_class: Count | None = None,
    out: AnyPath | None = None,
    resume: bool = False,
    config: AnyPath | None = None,
    data_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    start: AnyPath = "auto",
    weights: AnyPath | None = None,
    finetune: Literal["linear", "full"] | None = None,
    convert: ShortText | None = None,
    minutes: Minutes | None = None,
    keep: ShortText = "last,best",
    probe_every: Count | None = None,
    device: ShortText = "auto",
    trackers: Sequence[ShortText] = ("tensorboard",),
    baseline: bool = True,
    page: bool = True,
    display: Display | None = None,
    settings: LoopSettings | None = None,
    **overrides: Any,
) -> Result:
    """Train a model on a set of images and return the finished run.

    Settings that are not given are chosen to suit the images and the device.

    data           a folder, a CSV file, arrays, a named set, or a Dataset
    out            the run's folder; runs/<data>-<model>-<id> if not given
    resume         continue a run that was stopped; of a finished one, make again what is lost or damaged
    config         a run's folder or its config.yaml, for the settings that are not given here
    start          what the model begins with: "pretrained" weights, fresh ones ("scratch"), the model of another run (its
                   folder), or "auto": pretrained weights where they can be had
    weights        a file or folder of pretrained weights
    finetune       of a model that has learned something: "full", or "linear" for the head alone
    convert        other attention for such a model, which computes the same at the start: "gated", "masked:blocks=0-9,rank=4"
    per_class      train on that many pictures of each class (all there are, where fewer), instead of on a share
    data_options   options of the images (`data.sources.DataOptions`); those that `softbias fit` has, too, can be given plainly
    minutes        time for training: the schedule is fitted to it
    keep           which checkpoints stay: last, best, every=K
    probe_every    measure locality, gates and masks every K epochs
    baseline       whether to score a logistic regression on pixels, too
    page           whether to write report.html
    settings       when the loop looks, evaluates and saves
    overrides      fields of the recipe and of its augmentation, and options of the images:
                   `softbias.fit("fashion", lr=1e-3, flip=0, img_size=64)`
    """
    data_options = {**(data_options or {}), **{name: overrides.pop(name) for name in OF_IMAGES if name in overrides}}
    advise, display = display is not None, display or Display()
    images = data if isinstance(data, Dataset) else None
    named = data.name if isinstance(data, Dataset) else data
    partial = PartialRunSpec(
        data=source_name(named) if isinstance(named, Path) else named,
        model=model,
        recipe=recipe,
        seed=seed,
        train_fraction=train_fraction,
        per_class=per_class,
        data_options=data_options,
        model_options=dict(model_options or {}),
        start=str(start),
        weights=None if weights is None else str(weights),
        finetune=finetune,
        convert=convert,
        overrides=overrides,
    ).completed(base_config(config, out, resume))
    DataOptions.check(partial.data_options)
    checkpoint.Keep.parse(keep)
    main = int(environment.variable("RANK") or 0) == 0  # torchrun's other processes leave the folder to this one
    if main and out is not None and not resume:
        Run(out).refuse_if_begun()
    known = partial.spec()
    if known is not None and main:  # before the images are read
        Run(folder_of(known, out)).check(known, resume=resume)
    options: dict[str, Any] = {
        "resume": resume, "display": display, "keep": keep, "minutes": minutes, "device": device, "trackers": trackers,
        "baseline": baseline, "probe_every": probe_every, "page": page, "settings": settings,
    }  # fmt: skip
    if known is not None and resume and is_complete(Run(folder_of(known, out)), page=page):
        return run_fit(known, out, **options)
    if main:
        require_writable(Path(out or RUNS) if known is None else folder_of(known, out))
    if isinstance(partial.start, Start) and not (known is not None and Run(folder_of(known, out)).finished):
        check_start(partial.start, Run(out or RUNS / "new").source_of(partial.start))  # before the images are read
    kind = environment.find_device(device)
    resolved = resolve(partial, kind, images, minutes=minutes, advise=advise, progress=decoding_progress(display))
    folder = folder_of(resolved.spec, out)
    if resume and main and not Run(folder).begun:
        if out is None:
            refuse_if_others_were_stopped(resolved.spec)
        display.message(f"there is no run to resume in {folder}, so a new one begins")
    for note in (*resolved.notes, *resolved.advice):
        display.message(text(note))
    return run_fit(resolved.spec, out, data=resolved.data, notes=resolved.notes, **options | {"minutes": resolved.minutes})


def is_complete(run: Run, *, page: bool) -> bool:
    """Whether a run is finished, and nothing of it is lost."""
    return run.begun and run.finished and not find_lost(run, page=page)


def base_config(config: str | Path | None, out: str | Path | None, resume: bool) -> RunSpec | None:
    """The config that settings come from if the user does not give them: `config`, or that of the run to resume."""
    if config is not None:
        path = Path(config)
        return read_config(path / "config.yaml" if path.is_dir() else path)
    return Run(out).spec if resume and out is not None and Run(out).begun else None


def folder_of(spec: RunSpec, out: str | Path | None) -> Path:
    return Path(out) if out is not None else RUNS / spec.title


def refuse_if_others_were_stopped(spec: RunSpec) -> None:
    """Where there is no run with these settings, but stopped ones of the same images, the user must name the one to resume."""
    runs = [Run(path.parent) for path in sorted(RUNS.glob("*/config.yaml"))]
    stopped = [str(run.path) for run in runs if not run.finished and run.spec.data == spec.data]
    if stopped:
        raise SoftbiasError(
            f"no run of {spec.data} with these settings was stopped, but {some(stopped)}; "
            f"continue one with --resume --out {shlex.quote(stopped[-1])}, or leave out --resume for a new run"
        )


def run_fit(
    spec: RunSpec,
    out: str | Path | None = None,
    *,
    data: Dataset | None = None,
    notes: Sequence[Note] = (),
    resume: bool = False,
    display: Display | None = None,
    keep: str = "last,best",
    minutes: float | None = None,
    device: str = "auto",
    trackers: Sequence[str] = ("tensorboard",),
    baseline: bool = True,
    probe_every: int | None = None,
    page: bool = False,
    settings: LoopSettings | None = None,
    test_curve: bool = False,
) -> Result:
    """Train the run that a spec defines; the options are those of `fit`.

    data         the images, where they are in memory already
    notes        why the settings are as they are; the run keeps them
    settings     when the loop looks, evaluates and saves
    test_curve   whether the rows of epochs have the accuracy on test images, too; it decides nothing
    """
    display = display or Display()
    accelerator = make_accelerator(spec.recipe, device)
    main = accelerator.is_main_process
    run = Run(folder_of(spec, out))
    lost, redraw = tuple[str, ...](), False
    if resume and main:
        remove_stale(run.path)
    if resume and run.begun and run.finished and run.spec.identity() == spec.identity():
        lost = find_lost(run, page=page)
        complete, redraw = (bool(agreed(accelerator, each)) for each in (not lost, only_page(lost)))  # as the main process saw
        if complete:
            display.message(f"{run.path} is finished already")
            return Result(run, run.summary(), load(run.model_folder))
        display.message(f"{run.path} is finished, but {', '.join(lost)} is lost or damaged, and made again")
    fresh = not run.begun
    absent = [path for path in (run.path, *run.path.parents) if not path.exists()]
    if main:
        run.open(spec, resume=resume)
    accelerator.wait_for_everyone()
    try:
        if redraw:
            if main:
                run.page(data)
            return Result(run, run.summary(), load(run.model_folder))
        check_start(spec.start, run.source_of(spec.start))
        data = data or load_dataset(spec.data, **spec.data_options)
        split = make_split(data, spec)
        for note in (*data.notes, *split.notes):
            display.message(text(note))
        plan = make_plan(spec, data, split, accelerator, run, checkpoint.Keep.parse(keep), settings)
        if test_curve and split.test is not None and not plan.batches.objective.pretext:
            plan = replace(plan, watched=SplitImages(data, split.test, accelerator.device))
        if main and data.files is not None:
            write_manifest(run.path / "split.csv", data, split.as_dict())  # `softbias fit` can read it again
        if main:
            run.begin(spec, notes)
        logged = start_trackers(accelerator, run.path, tuple(trackers), display)
        watchers: list[OnEpoch] = [] if logged is None else [logged]
        if probe_every is not None:
            watchers.append(LiveProbes.start(plan, data, split, run, probe_every))

        def on_epoch(row: dict[str, Any]) -> None:
            for watch in watchers:
                watch(row)

        if main and spec.recipe.regularize and (BEFORE in lost or not (run.path / BEFORE).is_file()):
            record_maps(plan, data, split, run.path / BEFORE)
        started = time.perf_counter()
        state = train(plan, display, minutes=minutes, on_epoch=on_epoch)
        accelerator.wait_for_everyone()
        accelerator.end_training()
        fallback = load_selected(plan, state)
        for note in (*(() if fallback is None else (fallback,)), *idle_regularizers(run)):
            display.message(text(note))
        plan = replace(plan, model=plan.in_use(), img_size=None)
        if main and spec.recipe.regularize:
            record_maps(plan, data, split, run.path / AFTER)
        summary = finish(spec, data, split, plan, state, run, started, baseline, fallback, lost)
        if main and page:
            write_page(run, summary, data)
        return Result(run, summary, unwrap(plan.model).eval())
    except SoftbiasError:  # settings that cannot be trained do not occupy the folder
        if fresh and main and not run.metrics_path.exists() and not run.checkpoint_folder.exists():
            run.config_path.unlink(missing_ok=True)
            run.close()
            remove_empty(absent, but=".lock")
        raise
    except StoppedError as stop:
        stop.path = run.path
        raise
    except torch.OutOfMemoryError as error:
        batch = spec.recipe.batch_size
        raise SoftbiasError(
            f"the device has too little memory for batches of {batch}: try --batch-size {max(1, batch // 2)}, or "
            "--accumulate 2, which gives the same result"
        ) from error
    finally:
        run.close()
