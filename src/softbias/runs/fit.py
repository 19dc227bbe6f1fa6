"""From a run's spec to a finished run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.models.inspect import unwrap
from softbias.models.storage import load
from softbias.pages.wording import text
from softbias.runs.maps import AFTER, BEFORE, record_maps
from softbias.runs.outcome import finish, load_selected, write_split
from softbias.runs.prepare import make_plan, split_up
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.training import checkpoint
from softbias.training.acceleration import make_accelerator, start_trackers
from softbias.training.display import Display, Quiet
from softbias.training.loop import OnEpoch, train
from softbias.training.plan import LoopSettings, TrainingPlan
from softbias.training.recipe import Recipe, find_recipe

Watch = Callable[[TrainingPlan, Dataset, Split, Run], OnEpoch]


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its scores, its model."""

    path: Path
    summary: dict[str, Any]
    model: nn.Module


def run_fit(
    spec: RunSpec,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data: Dataset | None = None,
    display: Display | None = None,
    keep: str = "last,best",
    minutes: float | None = None,
    device: str = "auto",
    trackers: tuple[str, ...] = ("tensorboard",),
    baseline: bool = True,
    watch: Watch | None = None,
    reasons: Sequence[str] = (),
    settings: LoopSettings | None = None,
) -> Result:
    """Train the run that the spec defines, into a directory; `data` spares reading the set again.

    reasons    why settings were chosen as they are, in sentences that the run keeps
    watch      is called with the plan before the first step, and its result with the row of every epoch (`runs.live.watching`)
    settings   when the loop looks, evaluates and saves
    """
    display = display or Quiet()
    accelerator = make_accelerator(spec.recipe, device)
    directory = Run(Path(out) if out else Path("runs") / spec.title)
    if resume and directory.finished and directory.spec.to_dict() == spec.to_dict():
        display.message(f"{directory.path} is finished already")
        return Result(directory.path, directory.summary(), load(directory.model_folder))
    fresh = not directory.config_path.is_file()
    if accelerator.is_main_process:
        directory.open(spec, resume=resume)
    accelerator.wait_for_everyone()
    try:
        data = data or load_dataset(spec.data, **spec.data_options)
        split = split_up(data, spec)
        for note in (*data.notes, *split.notes):
            display.message(text(note))
        plan = make_plan(spec, data, split, accelerator, directory, checkpoint.Keep.parse(keep), settings)
        if data.files is not None and accelerator.is_main_process:
            write_split(directory.path / "split.csv", data, split)
        if accelerator.is_main_process:
            directory.begin(spec, reasons)
        on_epoch = start_trackers(accelerator, directory.path, trackers, display)
        watchers = [each for each in (on_epoch, watch and watch(plan, data, split, directory)) if each]

        def tell(row: dict[str, Any]) -> None:
            for each in watchers:
                each(row)

        if spec.recipe.regularize and accelerator.is_main_process and not (directory.path / BEFORE).is_file():
            record_maps(plan, data, split, directory.path / BEFORE)
        started = time.perf_counter()
        state = train(plan, display, minutes=minutes, on_epoch=tell)
        accelerator.wait_for_everyone()
        accelerator.end_training()
        load_selected(plan, state)
        if spec.recipe.regularize and accelerator.is_main_process:
            record_maps(plan, data, split, directory.path / AFTER)
        summary = finish(spec, data, split, plan, state, directory, started, baseline)
        return Result(directory.path, summary, unwrap(plan.model).eval())
    except ValueError:  # settings that cannot be trained do not occupy the folder
        if (
            fresh
            and accelerator.is_main_process
            and not directory.metrics_path.exists()
            and not directory.checkpoint_folder.exists()
        ):
            directory.config_path.unlink(missing_ok=True)
        raise
    finally:
        directory.close()


def fit(
    data: str | Path | Dataset,
    model: str = "convit_nano",
    recipe: str | Recipe = "quick",
    *,
    seed: int = 0,
    train_fraction: float = 1.0,
    out: str | Path | None = None,
    resume: bool = False,
    data_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    source: str | Path | None = None,
    finetune: str | None = None,
    device: str = "auto",
    display: Display | None = None,
    settings: LoopSettings | None = None,
    **overrides: Any,
) -> Result:
    """Train a model on a set and return the finished run.

    overrides   fields of the recipe and of its augmentation: `softbias.fit("fashion", lr=1e-3, flip=0)`
    """
    base = find_recipe(recipe) if isinstance(recipe, str) else recipe
    spec = RunSpec(
        data=data.name if isinstance(data, Dataset) else str(data),
        model=model,
        recipe=base.with_overrides(overrides),
        seed=seed,
        train_fraction=train_fraction,
        data_options=dict(data_options or {}),
        model_options=dict(model_options or {}),
        source=None if source is None else str(source),
        finetune=finetune or ("full" if source else None),
    )
    given = data if isinstance(data, Dataset) else None
    return run_fit(spec, out, resume=resume, data=given, display=display, device=device, settings=settings)
