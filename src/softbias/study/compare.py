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
from softbias.runs.run import Run
from softbias.runs.start import Start, start_note
from softbias.runs.store import Store
from softbias.schema import checked_arguments
from softbias.study.arms import Arm, arms_from
from softbias.study.comparison import compare_arms, metric_of, summarize
from softbias.study.estimate import StudyPlan, plan_study
from softbias.study.execute import ExecutionSettings, Executor, ThisProcess, execute
from softbias.study.frame import finished_outside, runs_frame, store_path
from softbias.study.headline import headline, timed_headline
from softbias.study.metric import ACCURACY, Metric
from softbias.study.plan import load_once, study_runs, write_plan
from softbias.study.progress import StudyDisplay, choose_display
from softbias.study.ray import RayCluster, address_of, import_ray
from softbias.study.report import write_report
from softbias.study.score_tables import score_tables
from softbias.study.scores import read_scores
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
from softbias.training.checkpoint import Keep
from softbias.training.recipe import Recipe


@dataclass(frozen=True)
class Comparison:
    """What became of a study. A notebook shows its accuracies with intervals, and its headline.

    path     the study's folder
    plan     its runs, and how long they were expected to take
    runs     a row per finished run (`study.frame.COLUMNS`)
    failed   (label, error) of every run that failed
    metric   the score that summary, differences and headline are about
    report   the page about it; None where none was asked for or it could not be made
    """

    path: Path
    plan: StudyPlan
    runs: pandas.DataFrame
    failed: tuple[tuple[str, str], ...] = ()
    report: Path | None = None
    metric: Metric = ACCURACY

    @cached_property
    def summary(self) -> pandas.DataFrame:
        """A row per data set, fraction and arm: the metric (`value`), intervals over seeds and over test images, cost."""
        return summarize(self.runs, self.metric)

    @cached_property
    def differences(self) -> pandas.DataFrame:
        """A row per pair of arms: their paired difference, its intervals and its p value (`comparison.compare_arms`)."""
        return compare_arms(self.runs, self.metric)

    @property
    def headline(self) -> str:
        """The first sentence of the report: a supported difference, or that there is none."""
        first = next((run.arm for run in self.plan.runs if run.spec.recipe.objective == "supervised"), None)
        if self.metric.repeated == "rounds":
            return timed_headline(self.summary, self.metric).text
        return headline(self.differences, self.summary, first, self.metric).text

    @property
    def chance_level(self) -> float | None:
        """The metric of random answers, where it was measured."""
        scores = read_scores(self.path)
        return scores.chance_level if scores is not None and scores.metric == self.metric.name else None

    def _repr_html_(self) -> str:
        tables, legend = score_tables(self.runs, self.metric, self.chance_level)
        parts = [f"<p>{escape(self.headline)}</p>"] if tables else []
        for one in tables:
            head = "".join(f"<th>{escape(title)}</th>" for title in (one.title, *one.head))
            rows = [*one.rows, *([one.below] if one.below else [])]
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
    watched: dict[str, Any] = {"keep": spec.keep, "probe_every": spec.probe_every, "test_curve": spec.test_curve}
    settings = ExecutionSettings(store.path, device, baseline, **watched)
    if spec.keep is not None:
        Keep.parse(spec.keep)  # refused before anything is written
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
        for sentence in unwatched(spec, plan, store):
            display.message(sentence)
        write_study(spec, out)
        write_plan(runs, out)
        if outside := finished_outside(out, {run.id for run in runs}):
            display.message(
                f"left out of the report, and kept: {count(outside, 'finished run')} in {out}, of arms, sets, amounts or seeds "
                "that the study had before"
            )
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
    made = make_report(out, display) if report and len(frame) else None
    return Comparison(out, plan, frame, tuple(failed), made, metric_of(frame, spec))


def unwatched(spec: StudySpec, plan: StudyPlan, store: Store) -> list[str]:
    """What is asked of every run while it trains, and how many finished runs were trained without it."""
    missing = {run.id for run in plan.missing}
    finished = [Run(store.folder(run.spec)) for run in plan.runs if run.id not in missing]
    kinds = (
        ("were not probed while they trained", spec.probe_every, [run for run in finished if not run.probe_folder.is_dir()]),
        ("kept no checkpoints", spec.keep, [run for run in finished if not run.checkpoint_folder.is_dir()]),
    )
    return [
        f"{len(without)} of {count(len(finished), 'finished run')} {what}, and stay as they are; another --out trains them anew"
        for what, wanted, without in kinds
        if wanted is not None and without
    ]


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
    fractions: Fraction | Sequence[Fraction] | None = None,
    per_class: Count | Sequence[Count] | None = None,
    seeds: SeedCount | Sequence[Seed] | None = None,
    recipe: ShortText | Mapping[str, Any] | Recipe | None = None,
    budget: Budget = "steps",
    tune: Trials = 0,
    metric: ShortText | None = None,
    probe_every: Count | None = None,
    keep: ShortText | None = None,
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
    fractions   shares of the training images, such as 0.1 or [0.1, 1]; all of them if not given
    per_class   instead of shares, numbers of training images of each class, such as 5 or [5, 10]
    seeds       their number, or the seeds themselves; 3 if not given. A study that continues has its own
    recipe      a preset's name, fields on top of one ({"preset": "quick", "lr": 1e-3}), or a Recipe; chosen if not given
    metric      what headline, tables and differences are about: accuracy, balanced_accuracy, macro_f1, top5
    probe_every measure locality, gates and masks every K epochs; the report draws them over epochs
    keep        which checkpoints of finished runs stay: last, best, every=K; none if not given
    overrides   fields of the recipe and of its augmentation

    The result has the finished runs (`.runs`), a summary with intervals (`.summary`), the differences between arms
    (`.differences`) and the path of the report (`.report`). A warning names the runs that failed.
    """
    spec = study_for(
        data, arms_from(models), fractions=fractions, per_class=per_class, seeds=seeds, recipe=recipe,
        budget=budget, tune=tune, name=name, out=out, store=store, data_options=data_options, device=device,
        overrides=overrides, metric=metric, probe_every=probe_every, keep=keep,
    )  # fmt: skip
    done = run_study(spec, out, jobs=jobs, on=on, device=device, report=report, display=choose_display(quiet=quiet))
    if done.failed:
        lines = "; ".join(f"{label}: {error}" for label, error in done.failed)
        warnings.warn(f"{count(len(done.failed), 'run')} failed: {lines}", stacklevel=2)
    return done
