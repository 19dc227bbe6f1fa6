"""The same small search for every arm: learning rate and weight decay, on a validation part of the training data.

Every arm of every set has N trials at the largest fraction, with the first seed. A trial is a run like any other, but the
test pictures are taken away from it, and its score is that of a fifth of the training pictures, which it does not train on.
The first trial is the recipe as it is; optuna proposes the others from what the arm's own earlier trials reached. Trials
are kept in <study>/trials as runs, and optuna is told of them again when a study continues, so nothing is tried twice. What
trials start from, such as a pre-training, is done once, among the runs of the study.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.pages.format import share
from softbias.runs.run import Run
from softbias.study.execute import Settings, execute
from softbias.study.plan import study_runs
from softbias.study.progress import Quiet
from softbias.study.spec import PlannedRun, StudySpec
from softbias.study.store import Store

if TYPE_CHECKING:
    from optuna import Study, Trial

    from softbias.study.processes import WorkerPool

VALIDATION = 0.2  # of the training pictures, for trials
LR, WEIGHT_DECAY = 10.0, (1e-4, 0.5)  # the rate goes from a tenth to ten times the recipe's
RECORD = "tuning.json"


def tune(
    spec: StudySpec, out: Path, settings: Settings, display: Quiet, crew: WorkerPool | None = None
) -> dict[tuple[str, str], dict[str, float]]:
    """(data, arm) -> the settings that were best on validation; recorded in tuning.json with all trials."""
    optuna = import_optuna()
    store = Store(out / "trials")
    own = replace(settings, store=store.path, baseline=False, test=False)
    whole = study_runs(replace(spec, fractions=(max(spec.fractions),), seeds=spec.seeds[:1], tune=0))
    needed = {run.needs for run in whole}
    before = [run for run in whole if run.id in needed]
    share_pretrainings(before, store, settings, display, crew)
    bases = {(run.spec.data, run.arm): run for run in whole if run not in before}
    searches = {key: new_search(optuna, run) for key, run in bases.items()}
    display.message(
        f"{spec.tune} trials for each of {len(bases)} arm{'s' * (len(bases) != 1)}: learning rate and weight decay, scored on "
        f"{VALIDATION:.0%} of the training pictures at {share(max(spec.fractions))}, seed {spec.seeds[0]}; "
        "the test pictures take no part"
    )
    records: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in bases}
    for number in range(spec.tune):
        trials = {key: search.ask() for key, search in searches.items()}
        runs = {key: trial_run(bases[key], trial, number) for key, trial in trials.items()}
        run_missing(list(runs.values()), store, own, display, crew)
        for key, run in runs.items():
            score = validation_accuracy(store, run)
            searches[key].tell(trials[key], score, state=None if score is not None else optuna.trial.TrialState.FAIL)
            records[key].append({**trials[key].params, "validation_accuracy": score, "run": run.id})
    chosen = {}
    for key, rows in records.items():
        scored = [row for row in rows if row["validation_accuracy"] is not None]
        if not scored:
            raise SoftbiasError(
                f"none of the {spec.tune} trials of {key[1]} on {key[0]} finished; softbias runs {store.path} says why"
            )
        best = max(scored, key=lambda row: row["validation_accuracy"])  # the first of equal ones
        chosen[key] = {"lr": best["lr"], "weight_decay": best["weight_decay"]}
    write_record(out, spec, records, chosen)
    return chosen


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise SoftbiasError("--tune needs optuna: pip install 'softbias[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def new_search(optuna: Any, run: PlannedRun) -> Study:
    """A search that proposes the same trials again when it is told of the same results."""
    search = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    recipe = run.spec.recipe
    least, most = WEIGHT_DECAY
    search.enqueue_trial({"lr": recipe.lr, "weight_decay": min(max(recipe.weight_decay, least), most)})
    return search


def trial_run(base: PlannedRun, trial: Trial, number: int) -> PlannedRun:
    recipe = base.spec.recipe
    lr = trial.suggest_float("lr", recipe.lr / LR, recipe.lr * LR, log=True)
    decay = trial.suggest_float("weight_decay", *WEIGHT_DECAY, log=True)
    own = replace(recipe, lr=lr, weight_decay=decay, val_fraction=max(VALIDATION, recipe.val_fraction))
    return PlannedRun(f"{base.arm}, trial {number}", replace(base.spec, recipe=own), base.needs)


def share_pretrainings(
    runs: Sequence[PlannedRun], trials: Store, settings: Settings, display: Quiet, crew: WorkerPool | None
) -> None:
    """Do what the trials start from, once for them and for the study: among its runs, with links beside the trials."""
    store = Store(settings.store)
    run_missing(runs, store, settings, display, crew)
    trials.path.mkdir(parents=True, exist_ok=True)
    for run in runs:
        if not store.finished(run.spec):
            raise SoftbiasError(
                f"{run.label} failed, and there is nothing to tune without it; softbias runs {store.path} says why"
            )
        if not trials.finished(run.spec):
            place = trials.place(run.spec)
            trials.clear(run.spec)  # what was begun here
            place.unlink(missing_ok=True)  # a link to where the runs were before
            place.symlink_to(os.path.relpath(store.place(run.spec), trials.path), target_is_directory=True)


def run_missing(runs: Sequence[PlannedRun], store: Store, settings: Settings, display: Quiet, crew: WorkerPool | None) -> None:
    missing = [run for run in runs if not store.finished(run.spec)]
    if missing:
        display.begin(runs, missing, {})
        try:
            execute(missing, settings, display, crew)
        finally:
            display.stop()


def validation_accuracy(store: Store, run: PlannedRun) -> float | None:
    """What a trial reached at its end, or at its best epoch where the recipe selects that; None if it failed."""
    if not store.finished(run.spec):
        return None
    directory = Run(store.place(run.spec))
    if run.spec.recipe.select == "best":
        return directory.summary()["validation_accuracy"]
    rows = [json.loads(line) for line in directory.metrics_path.read_text().splitlines()]
    return [row["val_accuracy"] for row in rows if row.get("val_accuracy") is not None][-1]


def write_record(
    out: Path, spec: StudySpec, records: dict[tuple[str, str], list[dict[str, Any]]], chosen: dict[tuple[str, str], Any]
) -> None:
    rows = [
        {"data": data, "arm": arm, "chosen": chosen[data, arm], "trials": trials} for (data, arm), trials in records.items()
    ]
    about = {"trials": spec.tune, "train_fraction": max(spec.fractions), "seed": spec.seeds[0], "validation": VALIDATION}
    write_text(out / RECORD, json.dumps({**about, "arms": rows}, indent=1) + "\n")
