"""The same small search for every arm: learning rate and weight decay, on a validation part of the training data.

Every arm has N trials on every set, at the largest fraction and with the first seed. A trial is a run that does not see the
test images; its score is the accuracy on a fifth of the training images, which it does not train on. The first trial is the
recipe as it is. optuna proposes the others from the results of the arm's earlier trials. Trials are kept as runs in
<study>/trials, and a study that continues gives their results to optuna again, so that nothing is tried twice. A run that
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
from softbias.pages.format import amount_text
from softbias.runs.run import Run
from softbias.runs.spec import amount_of
from softbias.runs.store import Store
from softbias.study.execute import ExecutionSettings, Executor, execute
from softbias.study.plan import PlannedRun, study_runs
from softbias.study.progress import StudyDisplay
from softbias.study.spec import StudySpec

if TYPE_CHECKING:
    from optuna import Study, Trial

VALIDATION = 0.2  # of the training images, for trials
LR, WEIGHT_DECAY = 10.0, (1e-4, 0.5)  # the rate goes from a tenth to ten times that of the recipe
RECORD = "tuning.json"
Key = tuple[str, str]  # data, arm


def tune(
    spec: StudySpec, out: Path, executor: Executor, settings: ExecutionSettings, display: StudyDisplay
) -> dict[Key, dict[str, float]]:
    """(data, arm) -> the settings that were best on validation; tuning.json records them with all trials."""
    optuna = import_optuna()
    store = Store(out / "trials")
    own = replace(settings, store=store.path, baseline=False, test=False, keep=None, probe_every=None)
    whole = study_runs(replace(spec.with_most_data(), seeds=spec.seeds[:1], tune=0))
    needed = {run.needs for run in whole}
    before = [run for run in whole if run.id in needed]
    share_pretrainings(before, store, executor, settings, display)
    bases = {(run.spec.data, run.arm): run for run in whole if run not in before}
    searches = {key: new_search(optuna, run) for key, run in bases.items()}
    display.message(
        f"{spec.tune} trials for each of {len(bases)} arm{'s' * (len(bases) != 1)}: learning rate and weight decay, scored on "
        f"{VALIDATION:.0%} of the training pictures at {amount_text(most_data(spec))}, seed {spec.seeds[0]}; "
        "the test pictures are not used"
    )
    records: dict[Key, list[dict[str, Any]]] = {key: [] for key in bases}
    for number in range(spec.tune):
        trials = {key: search.ask() for key, search in searches.items()}
        runs = {key: trial_run(bases[key], trial, number) for key, trial in trials.items()}
        run_missing(list(runs.values()), store, executor, own, display)
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


def most_data(spec: StudySpec) -> float:
    """The largest amount of data of a study, see `runs.spec.amount_of`."""
    return amount_of(max(spec.fractions), max(spec.per_class, default=None))


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise SoftbiasError("--tune needs optuna: pip install 'softbias[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def new_search(optuna: Any, run: PlannedRun) -> Study:
    """A search that proposes the same trials again when it is given the same results."""
    search: Study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
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
    runs: Sequence[PlannedRun], trials: Store, executor: Executor, settings: ExecutionSettings, display: StudyDisplay
) -> None:
    """Do the runs that trials start from, once for them and for the study: among its runs, with links beside the trials."""
    store = Store(settings.store)
    run_missing(runs, store, executor, settings, display)
    trials.path.mkdir(parents=True, exist_ok=True)
    for run in runs:
        if not store.finished(run.spec):
            raise SoftbiasError(
                f"{run.label} failed, and there is nothing to tune without it; softbias runs {store.path} says why"
            )
        if not trials.finished(run.spec):
            link = trials.folder(run.spec)
            trials.clear(run.spec)  # a run that was begun here
            link.unlink(missing_ok=True)  # a link to an earlier store
            link.symlink_to(os.path.relpath(store.folder(run.spec), trials.path), target_is_directory=True)


def run_missing(
    runs: Sequence[PlannedRun], store: Store, executor: Executor, settings: ExecutionSettings, display: StudyDisplay
) -> None:
    missing = [run for run in runs if not store.finished(run.spec)]
    if missing:
        display.begin(runs, missing, {})
        try:
            execute(missing, executor, settings, display)
        finally:
            display.stop()


def validation_accuracy(store: Store, run: PlannedRun) -> float | None:
    """The accuracy of a trial at its end, or at its best epoch where the model is that one; None if there is none."""
    if not store.finished(run.spec):
        return None
    directory = Run(store.folder(run.spec))
    summary = directory.summary()
    if summary.get("selected") == "best":
        return float(summary["validation_accuracy"])
    measured = [float(row["val_accuracy"]) for row in directory.metrics() if row.get("val_accuracy") is not None]
    return measured[-1] if measured else None


def write_record(
    out: Path, spec: StudySpec, records: dict[Key, list[dict[str, Any]]], chosen: dict[Key, dict[str, float]]
) -> None:
    rows = [
        {"data": data, "arm": arm, "chosen": chosen[data, arm], "trials": trials} for (data, arm), trials in records.items()
    ]
    settings = {"trials": spec.tune, "amount": most_data(spec), "seed": spec.seeds[0], "validation": VALIDATION}
    write_text(out / RECORD, json.dumps({**settings, "arms": rows}, indent=1) + "\n")
