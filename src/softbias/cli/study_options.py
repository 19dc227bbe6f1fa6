"""Options of the commands that run a study: where it runs, and what is printed."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from softbias.bounds import Count, FilePath, LongText, ShortText, Side, Within, Workers
from softbias.cli.parsing import Score, flag, switch
from softbias.errors import SoftbiasError
from softbias.pages.format import count
from softbias.terminal import echo, make_console

if TYPE_CHECKING:
    from softbias.study.compare import Comparison
    from softbias.study.spec import StudySpec


@dataclass(frozen=True)
class ExecutionOptions:
    out: Annotated[FilePath | None, flag("FOLDER", "The study's folder; studies/<name> if not given.")] = None
    jobs: Annotated[
        Workers, flag("K", "Processes at a time, each with one torch thread on a CPU, sharing the GPUs; 0: in this process.")
    ] = 0
    on: Annotated[ShortText | None, flag("ray|ray://HOST:PORT", "Run on a Ray cluster that shares the study's folder.")] = None
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], flag("auto|cpu|cuda|mps", "Where to train.")] = "auto"
    dry_run: Annotated[bool, switch("Print how many runs are missing and how long they take, and stop.")] = False
    estimate: Annotated[bool, switch("Begin at once, without timing steps of every arm first.")] = True
    baseline: Annotated[bool, switch("Leave out the comparison with a logistic regression on pixels.")] = True
    keep: Annotated[
        ShortText | None, flag("WHICH", "Checkpoints of finished runs to keep: last, best, every=K; none if not given.")
    ] = None
    probe_every: Annotated[
        Count | None, flag("K", "Measure locality, gates and masks every K epochs; the report draws them over epochs.")
    ] = None
    report: Annotated[bool, switch("Write no report.html.")] = True
    quiet: Annotated[bool, switch("Print the report's path at the end, and nothing else.")] = False
    json: Annotated[bool, switch("Print a line of JSON per event.")] = False


@dataclass(frozen=True)
class CompareOptions(ExecutionOptions):
    data: Annotated[
        tuple[ShortText, ...], Positional, flag("DATA…", "Folders of pictures, CSV files, arrays (.npz), or names of sets.")
    ] = ()
    models: Annotated[
        LongText,
        flag(
            "ARMS", "Models, separated by commas, each with its own settings after @: deit_tiny,convit_tiny@strength=2@lr=1e-3."
        ),
    ] = ""
    fractions: Annotated[
        ShortText | None, flag("SHARES", "Shares of the training pictures, such as 0.1,0.3,1; 1 (all) if not given.")
    ] = None
    per_class: Annotated[
        ShortText | None,
        flag(
            "NUMBERS",
            "Instead of shares, numbers of training pictures of each class, such as 5,10 (all there are, where fewer).",
        ),
    ] = None
    seeds: Annotated[
        LongText | None,
        flag("N", "The number of seeds (3), or the seeds themselves (0,1,5); 3, or those that the study has, if not given."),
    ] = None
    recipe: Annotated[
        ShortText | None,
        flag("NAME", "A recipe of `softbias recipes`, for all arms; any field can be changed: --epochs 20 (--help-recipe)."),
    ] = None
    budget: Annotated[
        Literal["steps", "epochs", "flops"],
        flag("steps|epochs|flops", "What all runs have in common: steps (those of a run on all the data) if not given."),
    ] = "steps"
    tune: Annotated[
        Annotated[int, Within(0, 10_000)],
        flag("N", "Trials for every arm's learning rate and weight decay, on a validation part of the training data."),
    ] = 0
    metric: Annotated[
        Literal["accuracy", "balanced_accuracy", "macro_f1", "top5"] | None,
        flag(
            "accuracy|balanced_accuracy|macro_f1|top5",
            "What headline, tables and differences are about; accuracy, or the study's own, if not given.",
        ),
    ] = None
    name: Annotated[ShortText | None, flag("NAME", "Name of the study; that of the data if not given.")] = None
    store: Annotated[
        FilePath | None, flag("FOLDER", "Runs that several studies share; inside the study's folder if not given.")
    ] = None
    img_size: Annotated[Side | None, flag("PIXELS", "Side of the pictures; chosen from their sizes if not given.")] = None
    score: Score = None
    data_dir: Annotated[FilePath | None, flag("FOLDER", "The folder of named sets; $SOFTBIAS_DATA if not given.")] = None


def run(spec: StudySpec, options: ExecutionOptions, perform: Callable[..., Comparison] | None = None) -> int:
    """Run a study, and print its results. `perform` replaces `run_study`.

    The exit status is 1 if a run or the report failed.
    """
    from softbias.study.compare import run_study
    from softbias.study.execute import StudyStoppedError
    from softbias.study.progress import choose_display

    if options.on and options.jobs:
        raise SoftbiasError(f"--on {options.on} runs as many at a time as the cluster has room for; leave out --jobs")
    spec = replace(spec, keep=options.keep or spec.keep, probe_every=options.probe_every or spec.probe_every)
    display = choose_display(quiet=options.quiet, json=options.json)
    try:
        done = (perform or run_study)(
            spec, options.out, jobs=options.jobs, on=options.on, device=options.device, dry_run=options.dry_run,
            estimate=options.estimate, baseline=options.baseline,
            report=options.report, display=display,
        )  # fmt: skip
    except StudyStoppedError as stop:
        echo("softbias: stopped; the same command continues where it was", file=sys.stderr)
        return 128 + stop.signal
    show(done, options)
    for label, error in done.failed:
        echo(f"softbias: {label} failed: {error}", file=sys.stderr)
    if done.failed:
        echo(f"softbias: {count(len(done.failed), 'run')} failed; the same command tries them again", file=sys.stderr)
    wanted = options.report and not options.dry_run and len(done.runs)
    if wanted and done.report is None:
        echo(f"softbias: no report could be made; softbias report {done.path} says why", file=sys.stderr)
    return 1 if done.failed or (wanted and done.report is None) else 0


def show(done: Comparison, options: ExecutionOptions) -> None:
    if options.json:
        rows = json_module.loads(done.runs.to_json(orient="records", date_format="iso"))
        event = {"event": "study", "path": str(done.path), "runs": len(done.plan.runs), "missing": len(done.plan.missing)}
        event |= {"seconds": sum(done.plan.seconds.values()), "report": str(done.report) if done.report else None}
        echo(json_module.dumps({**event, "failed": [list(pair) for pair in done.failed], "rows": rows}), flush=True)
        return
    if options.dry_run:
        if not options.quiet:
            show_plan(done)
        return
    if options.quiet:
        echo(done.report or done.path)
        return
    from softbias.study.score_tables import print_scores

    print_scores(done.runs, done.metric, done.chance_level)
    echo(f"the report: {done.report}" if done.report else f"the runs: {done.path}")


def show_plan(done: Comparison) -> None:
    """A row per arm and set: its runs, the missing ones, and the time that they take one after another."""
    from rich.table import Table

    from softbias.pages.format import estimated_duration

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("arm", "data"):
        table.add_column(column)
    for column in ("runs", "to do", "steps", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    missing = {run.id for run in done.plan.missing}
    for arm, data in dict.fromkeys((run.arm, run.spec.data) for run in done.plan.runs):
        runs = [run for run in done.plan.runs if (run.arm, run.spec.data) == (arm, data)]
        steps = sorted({run.spec.recipe.steps for run in runs if run.spec.recipe.steps})
        todo = [run.id for run in runs if run.id in missing]
        seconds = sum(done.plan.seconds.get(id, 0.0) for id in todo)
        cells = len(runs), len(todo), "–".join(map(str, steps)) or "by epochs", estimated_duration(seconds) if seconds else ""
        table.add_row(arm, data, *map(str, cells))
    make_console().print(table)
