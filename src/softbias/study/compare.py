"""A study from start to end: plan, tune where asked, do what is missing, report."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softbias import environment
from softbias.errors import SoftbiasError
from softbias.pages.wording import text
from softbias.runs import automatic
from softbias.runs.store import Store
from softbias.study.arms import Arm, arms_from, read_recipe
from softbias.study.estimate import StudyPlan, make_plan
from softbias.study.execute import ExecutionSettings, Executor, StudyStoppedError, ThisProcess, execute
from softbias.study.frame import runs_frame, store_path
from softbias.study.plan import load_once, study_runs, write_plan
from softbias.study.progress import StudyDisplay, choose_display
from softbias.study.ray import RayCluster, address_of, import_ray
from softbias.study.spec import StudySpec, extended, parse_seeds, read_study, write_study
from softbias.study.tuning import import_optuna
from softbias.study.tuning import tune as search
from softbias.study.workers import WorkerPool
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Outcome:
    """What became of a study: its folder, its table, what failed (label, reason), and the page about it."""

    path: Path
    plan: StudyPlan
    frame: pandas.DataFrame
    failed: tuple[tuple[str, str], ...] = ()
    report: Path | None = None


def run_study(
    spec: StudySpec,
    out: str | Path | None = None,
    *,
    jobs: int = 0,
    on: str | None = None,
    device: str = "auto",
    dry_run: bool = False,
    baseline: bool = True,
    checkpoints: bool = False,
    report: bool = True,
    display: StudyDisplay | None = None,
) -> Outcome:
    """Do what is missing of a study, and write its report.

    out      the study's folder; studies/<name> if not given
    jobs     processes at a time; 0: in this process
    on       "ray" or "ray://HOST:PORT": on a Ray cluster that shares the study's folder
    """
    display = display or StudyDisplay()
    out = Path(out) if out else Path("studies") / spec.name
    store = Store(store_path(spec, out))
    settings = ExecutionSettings(store.path, device, baseline, checkpoints=checkpoints)
    if on is not None:  # what is missing is said before anything is written
        address_of(on)
        import_ray()
    if spec.tune:
        import_optuna()
    for sentence in dict.fromkeys(text(note) for name in spec.data for note in load_once(name, spec.data_options).notes):
        display.message(sentence)
    if spec.tune and dry_run:
        display.message(f"the {spec.tune} trials of every arm come first, each as long as a run on all of its data")
    with executor_for(settings, jobs, on) as executor:
        chosen = {}
        if spec.tune and not dry_run:
            write_study(spec, out)
            chosen = search(spec, out, executor, settings, display)
        runs = study_runs(spec, chosen)
        plan = make_plan(
            runs, store, executor.seconds_per_step, jobs=executor.jobs or 1, baseline=baseline, message=display.message
        )
        display.message(plan.describe(executor.jobs))
        if dry_run:
            return Outcome(out, plan, runs_frame(out) if out.is_dir() else runs_frame([]))
        write_study(spec, out)
        write_plan(runs, out)
        failed: list[tuple[str, str]] = []
        if plan.missing:
            display.begin(plan.runs, plan.missing, plan.seconds)
            try:
                results = execute(plan.missing, executor, settings, display)
            finally:
                display.stop()
            labels = {run.id: run.label for run in runs}
            failed = [(labels[id], done.error or "") for id, done in results.items() if done.state == "failed"]
    frame = runs_frame(out)
    page = make_report(out, display) if report and len(frame) else None
    return Outcome(out, plan, frame, tuple(failed), page)


def executor_for(settings: ExecutionSettings, jobs: int, on: str | None) -> Executor:
    """Ray where `on` names a cluster, else `jobs` worker processes, else this process."""
    if on is not None:
        return RayCluster(on, settings)
    return WorkerPool(settings, jobs) if jobs else ThisProcess(settings.device)


def make_report(out: Path, display: StudyDisplay) -> Path | None:
    """The page about the study; the runs are what took long, so an error here must not hide them."""
    try:
        from softbias.study.report import write_report

        return write_report(out)
    except Exception as error:
        if environment.variable("SOFTBIAS_DEBUG"):
            raise
        display.message(f"no report could be made ({type(error).__name__}: {error}); softbias report {out} tries it again")
        return None


def compare(
    data: str | Path | Sequence[str | Path],
    models: str | Arm | Sequence[str | Arm],
    *,
    fractions: float | Sequence[float] = 1.0,
    seeds: int | Sequence[int] = 3,
    recipe: str | Mapping[str, Any] | Recipe | None = None,
    budget: Literal["steps", "epochs", "flops"] = "steps",
    tune: int = 0,
    name: str | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    data_options: Mapping[str, Any] | None = None,
    jobs: int = 0,
    on: str | None = None,
    device: str = "auto",
    report: bool = True,
    quiet: bool = True,
    **overrides: Any,
) -> pandas.DataFrame:
    """Compare models on data sets and return a row per finished run (see `softbias.study.frame.COLUMNS`).

    models      arms: "deit_nano,convit_nano@strength=2", or a sequence of such
    recipe      a preset's name, fields on top of one ({"preset": "quick", "lr": 1e-3}), or a Recipe; chosen if not given
    overrides   fields of the recipe and of its augmentation

    The study's folder and its report are `frame.attrs["study"]` and `frame.attrs["report"]`; what failed is in
    `frame.attrs["failed"]`, and a warning says so.
    """
    spec = study_for(
        data, arms_from(models), fractions=fractions, seeds=seeds, recipe=recipe, budget=budget, tune=tune, name=name,
        out=out, store=store, data_options=data_options, device=device, overrides=overrides,
    )  # fmt: skip
    display = choose_display(quiet=quiet)
    done = run_study(spec, out, jobs=jobs, on=on, device=device, report=report, display=display)
    if done.failed:
        lines = "; ".join(f"{label}: {error}" for label, error in done.failed)
        warnings.warn(f"{len(done.failed)} runs failed and are not in the table: {lines}", stacklevel=2)
    done.frame.attrs.update({"study": str(done.path), "report": str(done.report) if done.report else None})
    done.frame.attrs["failed"] = [list(pair) for pair in done.failed]
    return done.frame


def study_for(
    data: str | Path | Sequence[str | Path],
    arms: tuple[Arm, ...],
    *,
    fractions: float | Sequence[float] = 1.0,
    seeds: int | Sequence[int] = 3,
    recipe: str | Mapping[str, Any] | Recipe | None = None,
    budget: Literal["steps", "epochs", "flops"] = "steps",
    tune: int = 0,
    name: str | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    data_options: Mapping[str, Any] | None = None,
    device: str = "auto",
    overrides: Mapping[str, Any] | None = None,
) -> StudySpec:
    """The study that was asked for, together with what its folder has already: a model, a seed, a set can be added later."""
    sets = tuple(str(Path(d)) if Path(d).exists() else str(d) for d in ([data] if isinstance(data, str | Path) else data))
    name = name or default_name(sets)
    folder = Path(out) if out else Path("studies") / name
    old = read_study(folder) if (folder / "study.yaml").is_file() else None
    chosen = base_recipe(sets, recipe, name, folder, data_options or {}, device)
    new = StudySpec(
        name=name,
        data=sets,
        arms=arms,
        fractions=(float(fractions),) if isinstance(fractions, int | float) else tuple(fractions),
        seeds=parse_seeds(seeds) if isinstance(seeds, int) else tuple(seeds),
        recipe=chosen.with_overrides(overrides or {}),
        budget=budget,
        tune=tune,
        data_options=dict(data_options or {}),
        store=None if store is None else os.path.relpath(store, folder),
    )
    if old is None:
        return new
    try:
        kept = {name: getattr(old, name) for name in ("title", "question", "source", "published", "notes")}
        return replace(extended(old, new), **kept)
    except ValueError as error:
        raise SoftbiasError(
            f"{folder} holds a study already, and {error}; give what it had, or choose another --out"
        ) from error


def base_recipe(
    data: Sequence[str | Path],
    recipe: str | Mapping[str, Any] | Recipe | None,
    name: str | None,
    out: str | Path | None,
    data_options: Mapping[str, Any],
    device: str,
) -> Recipe:
    """The recipe that was named, else that of the study that is continued, else one that suits the pictures."""
    if recipe is not None:
        return read_recipe(recipe)
    folder = Path(out) if out else Path("studies") / (name or default_name(data))
    if (folder / "study.yaml").is_file():
        return read_study(folder).recipe
    return suitable(str(data[0]), data_options, device)


def default_name(data: Sequence[str | Path]) -> str:
    """
    >>> default_name(["pictures/birds", "fashion"])
    'birds+fashion'
    """
    return "+".join(re.sub(r"[^\w.-]+", "_", Path(d).stem or Path(d).absolute().name) for d in data)


def suitable(data: str, options: Mapping[str, Any], device: str) -> Recipe:
    """The recipe for somebody who names none: that of `softbias fit`, for this number of pictures and this device."""
    import torch

    pictures = load_once(data, options)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    kind = next(name for name, available in there.items() if available) if device == "auto" else device
    return automatic.choose(len(pictures.splits["train"]), pictures.img_size, kind, 1).recipe


__all__ = ["Outcome", "StudyStoppedError", "compare", "run_study", "study_for"]
