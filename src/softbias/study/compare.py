"""A study from start to end: plan, tune where asked, do the missing runs, report."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import pandas

from softbias import environment
from softbias.bounds import AnyPath, Count, Fraction, LongText, Seed, ShortText, Workers
from softbias.data.cache import writing_nothing
from softbias.errors import describe_error
from softbias.files import require_writable
from softbias.pages.format import count
from softbias.pages.wording import text
from softbias.runs.start import Start, start_note
from softbias.runs.store import Store
from softbias.schema import checked_arguments
from softbias.study.arms import Arm, arms_from
from softbias.study.comparison import accuracy_tables, compare_arms, summarize
from softbias.study.estimate import StudyPlan, plan_study
from softbias.study.execute import ExecutionSettings, Executor, ThisProcess, execute
from softbias.study.frame import runs_frame, store_path
from softbias.study.headline import headline
from softbias.study.plan import load_once, study_runs, write_plan
from softbias.study.progress import StudyDisplay, choose_display
from softbias.study.ray import RayCluster, address_of, import_ray
from softbias.study.report import write_report
from softbias.study.settings import check_models, study_for
from softbias.study.spec import (
    Budget,
    SeedCount,
    StudySpec,
    Trials,
    write_study,
)
from softbias.study.starts import with_starts
from softbias.study.tuning import import_optuna
from softbias.study.tuning import tune as search
from softbias.study.workers import WorkerPool
from softbias.training.recipe import Recipe


@dataclass(frozen=True)
class Comparison:
    """What became of a study. A notebook shows its accuracies with intervals, and its headline.

    path     the study's folder
    plan     its runs, and how long they were expected to take
    runs     a row per finished run (`study.frame.COLUMNS`)
    failed   (label, error) of every run that failed
    report   the page about it; None where none was asked for or it could not be made
    """

    path: Path
    plan: StudyPlan
    runs: pandas.DataFrame
    failed: tuple[tuple[str, str], ...] = ()
    report: Path | None = None

    @cached_property
    def summary(self) -> pandas.DataFrame:
        """A row per data set, fraction and arm: accuracy, intervals over seeds and over test images, cost."""
        return summarize(self.runs)

    @cached_property
    def differences(self) -> pandas.DataFrame:
        """A row per pair of arms: their paired difference, its intervals and its p value (`comparison.compare_arms`)."""
        return compare_arms(self.runs)

    @property
    def headline(self) -> str:
        """The first sentence of the report: a supported difference, or that there is none."""
        first = next((run.arm for run in self.plan.runs if run.spec.recipe.objective == "supervised"), None)
        return headline(self.differences, first).text

    def _repr_html_(self) -> str:
        tables, legend = accuracy_tables(self.runs)
        parts = [f"<p>{escape(self.headline)}</p>"] if tables else []
        for one in tables:
            head = "".join(f"<th>{escape(title)}</th>" for title in (f"{one.data}: accuracy with", *one.head))
            rows = [*one.rows, *([["raw pixels", *one.baseline]] if one.baseline else [])]
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts.append(f"<p>{escape(legend)}</p>")
        parts += [f"<p>{count(len(self.failed), 'run')} failed.</p>"] if self.failed else []
        parts += [f'<p>Report: <a href="{escape(str(self.report))}">{escape(str(self.report))}</a></p>'] if self.report else []
        return "".join(parts)


@checked_arguments
def run_study(
    spec: StudySpec,
    out: AnyPath | None = None,
    *,
    jobs: Workers = 0,
    on: ShortText | None = None,
    device: ShortText = "auto",
    dry_run: bool = False,
    estimate: bool = True,
    baseline: bool = True,
    checkpoints: bool = False,
    report: bool = True,
    display: StudyDisplay | None = None,
) -> Comparison:
    """Do the missing runs of a study, and write its report.

    out      the study's folder; studies/<name> if not given
    jobs     processes at a time; 0: in this process
    estimate whether to say how long it will take, for which steps of every arm are timed
    on       "ray" or "ray://HOST:PORT": on a Ray cluster that shares the study's folder
    """
    display = display or StudyDisplay()
    out = Path(out) if out else Path("studies") / spec.name
    store = Store(store_path(spec, out))
    settings = ExecutionSettings(store.path, device, baseline, checkpoints=checkpoints)
    check_models(spec.arms)
    spec = with_starts(spec, environment.find_device(device))
    for arm in spec.arms:
        if isinstance(arm.start, Start) and arm.start.learned:
            display.message(f"{arm.name}: {text(start_note(arm.start))}")
    if not dry_run:
        require_writable(out)
        require_writable(store.path)
    if on is not None:  # what is not installed is named before anything is written
        address_of(on)
        import_ray()
    if spec.tune:
        import_optuna()
    if dry_run:
        return dry_plan(spec, out, store, jobs if on is None else None, settings, display, estimate=estimate)
    for note in dict.fromkeys(text(note) for name in spec.data for note in load_once(name, spec.data_options).notes):
        display.message(note)
    with executor_for(settings, jobs, on) as executor:
        chosen = {}
        if spec.tune:
            write_study(spec, out)
            chosen = search(spec, out, executor, settings, display)
        runs = study_runs(spec, chosen)
        plan = plan_study(
            runs, store, executor.seconds_per_step if estimate else None, jobs=executor.jobs or 1, baseline=baseline,
            message=display.message,
        )  # fmt: skip
        display.message(plan.describe(executor.jobs))
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
            failed = [(labels[id], result.error or "") for id, result in results.items() if result.state == "failed"]
    frame = runs_frame(out)
    return Comparison(out, plan, frame, tuple(failed), make_report(out, display) if report and len(frame) else None)


def executor_for(settings: ExecutionSettings, jobs: int, on: str | None) -> Executor:
    """Ray where `on` names a cluster, else `jobs` worker processes, else this process."""
    if on is not None:
        return RayCluster(on, settings)
    return WorkerPool(settings, jobs) if jobs else ThisProcess(settings.device)


def make_report(out: Path, display: StudyDisplay) -> Path | None:
    """The page about the study. The runs took long, so an error here must not hide them."""
    try:
        return write_report(out, message=display.message)
    except Exception as error:
        if environment.variable("SOFTBIAS_DEBUG"):
            raise
        display.message(f"no report could be made ({describe_error(error)}); softbias report {out} tries it again")
        return None


def dry_plan(
    spec: StudySpec,
    out: Path,
    store: Store,
    jobs: int | None,
    settings: ExecutionSettings,
    display: StudyDisplay,
    *,
    estimate: bool = True,
) -> Comparison:
    """What a study would do. Nothing is written, and all of its sets are looked for first; steps are timed on noise.

    jobs   processes at a time; None where their number is not known
    """
    with writing_nothing(), ThisProcess(settings.device) as executor:
        before = [arm.pretrain.data for arm in spec.arms if arm.pretrain and arm.pretrain.data]
        for name in dict.fromkeys((*spec.data, *before)):
            load_once(name, spec.data_options)
        if spec.tune:
            display.message(f"the {spec.tune} trials of every arm come first, each as long as a run on all of its data")
        runs = study_runs(spec, {})
        at_once = max(1, jobs) if jobs is not None else None
        plan = plan_study(
            runs, store, executor.seconds_per_step if estimate else None, jobs=at_once or 1, baseline=settings.baseline,
            message=display.message,
        )  # fmt: skip
        display.message(plan.describe(at_once))
        return Comparison(out, plan, runs_frame(out if out.is_dir() else []))


@checked_arguments
def compare(
    data: AnyPath | Sequence[AnyPath],
    models: LongText | Arm | Sequence[ShortText | Arm],
    *,
    fractions: Fraction | Sequence[Fraction] = 1.0,
    per_class: Count | Sequence[Count] = (),
    seeds: SeedCount | Sequence[Seed] = 3,
    recipe: ShortText | Mapping[str, Any] | Recipe | None = None,
    budget: Budget = "steps",
    tune: Trials = 0,
    name: ShortText | None = None,
    out: AnyPath | None = None,
    store: AnyPath | None = None,
    data_options: Mapping[str, Any] | None = None,
    jobs: Workers = 0,
    on: ShortText | None = None,
    device: ShortText = "auto",
    report: bool = True,
    quiet: bool = True,
    **overrides: Any,
) -> Comparison:
    """Compare models on data sets: train the runs that are missing, and report.

    models      arms: "deit_nano,convit_nano@strength=2", or a sequence of such
    fractions   shares of the training images, such as 0.1 or [0.1, 1]
    per_class   instead of shares, numbers of training images of each class, such as 5 or [5, 10]
    recipe      a preset's name, fields on top of one ({"preset": "quick", "lr": 1e-3}), or a Recipe; chosen if not given
    overrides   fields of the recipe and of its augmentation

    The result has the finished runs (`.runs`), a summary with intervals (`.summary`), the differences between arms
    (`.differences`) and the path of the report (`.report`). A warning names the runs that failed.
    """
    spec = study_for(
        data, arms_from(models), fractions=fractions, per_class=per_class, seeds=seeds, recipe=recipe,
        budget=budget, tune=tune, name=name, out=out, store=store, data_options=data_options, device=device,
        overrides=overrides,
    )  # fmt: skip
    done = run_study(spec, out, jobs=jobs, on=on, device=device, report=report, display=choose_display(quiet=quiet))
    if done.failed:
        lines = "; ".join(f"{label}: {error}" for label, error in done.failed)
        warnings.warn(f"{count(len(done.failed), 'run')} failed: {lines}", stacklevel=2)
    return done
