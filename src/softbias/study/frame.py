"""Finished runs as a table: one row per run of a study's folder, of a store, or of loose run directories; and what is damaged.

A file that cannot be read costs a report one run, or a part of it, and never all the others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.errors import SoftbiasError
from softbias.files import escaped
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, amount_of, default_settings, non_default
from softbias.study.plan import read_plan
from softbias.study.scores import columns_of, read_scores
from softbias.study.spec import StudySpec, read_study

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "run", "id", "arm", "model", "data", "amount", "seed", "objective", "pretext", "n_train", "n_test", "accuracy",
    "top5", "balanced_accuracy", "macro_f1", "baseline_accuracy", "parameters", "macs", "steps", "epochs", "images_per_second",
    "seconds", "peak_memory", "hardware", "finished",
)  # fmt: skip
NAMES = ("id", "arm", "model", "data", "hardware")  # shown, and escaped where a path is no UTF-8: pandas takes no such text


@dataclass(frozen=True)
class Damage:
    """Something of a finished run that is missing or cannot be read.

    run        the folder of the run
    reason     what is wrong, with the file's name
    left_out   whether the run takes part in no comparison; else a part of it is not drawn
    """

    run: str
    reason: str
    left_out: bool

    @staticmethod
    def of(run: Run, reason: str, *, left_out: bool) -> Damage:
        """The damage with file names relative to the run: others read the report, too."""
        return Damage(str(run.path), reason.replace(f"{run.path}{os.sep}", ""), left_out)


def runs_frame(folders: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """The table of `read_runs` alone."""
    return read_runs(folders)[0]


def read_runs(folders: str | Path | Iterable[str | Path]) -> tuple[pandas.DataFrame, tuple[Damage, ...]]:
    """One row per finished run of a study's folder, of a store, or of run directories; and what is damaged.

    The plan of a study says which runs it has, and their arms. Loose runs are all taken, and their arms are named by the
    settings that differ between them. `amount` is the share of the training images, or above 1 the number of each class.
    `accuracy` and the scores after it are on the test images; `finished` is a time. What a named study has measured on its
    runs are columns after these (`study.scores`).
    """
    import pandas

    rows: dict[str, dict[str, Any]] = {}
    loose: dict[str, RunSpec] = {}
    order: dict[str, int] = {}  # arms as the study names them
    damaged: list[Damage] = []
    measured: dict[str, None] = {}  # columns
    for given in [Path(folders)] if isinstance(folders, str | Path) else map(Path, folders):
        plan, scores = read_plan(given), read_scores(given)
        for planned in (plan or {}).values():
            order.setdefault(planned["arm"], len(order))
        for folder in run_folders(given):
            run = Run(folder)
            if not run.finished:
                continue
            try:
                row, spec = row_of(run), run.spec
                found = check_parts(run, row)
            except (OSError, SoftbiasError) as error:
                if plan is None or folder.name.rpartition("-")[2] in plan:
                    damaged.append(Damage.of(run, str(error), left_out=True))
                continue
            if plan is not None and row["id"] not in plan:
                continue
            damaged += found
            if plan is None:
                loose[row["id"]] = spec
            else:
                row["arm"] = plan[row["id"]]["arm"]
            extra = columns_of(scores, row["id"]) if scores is not None else {}
            measured |= dict.fromkeys(extra)
            rows.setdefault(row["id"], {**row, **extra})
    for id, name in derived_arms(loose).items():
        rows[id]["arm"] = rows[id].get("arm") or name
    printable = [{**row, **{name: escaped(row[name]) for name in NAMES if row.get(name) is not None}} for row in rows.values()]
    frame = pandas.DataFrame(printable, columns=[name for name in (*COLUMNS, *measured) if name != "run"])
    frame.insert(COLUMNS.index("run"), "run", pandas.Series([row["run"] for row in printable], dtype=object))
    frame["rank"] = [order.get(arm, len(order)) for arm in frame["arm"]]
    frame = frame.sort_values(["data", "rank", "arm", "amount", "seed"], ignore_index=True).drop(columns="rank")
    return frame, tuple(damaged)


def check_parts(run: Run, row: Mapping[str, Any]) -> list[Damage]:
    """The parts of a run that a report can do without. Damaged predictions raise an error: the score may be as wrong."""
    answers = run.answers()
    found = []
    if answers is None and row["accuracy"] is not None and not row["pretext"]:
        found.append(f"{run.predictions_path.name} is missing: its test pictures are not compared one by one")
    if answers is not None and row["n_test"] not in (None, len(answers.index)):
        raise SoftbiasError(f"{run.predictions_path} has {len(answers.index)} pictures, but summary.json {row['n_test']}")
    if not run.metrics_path.is_file():
        found.append(f"{run.metrics_path.name} is missing: it has no learning curves")
    for read in (run.metrics, run.environment):
        try:
            read()
        except (OSError, SoftbiasError) as error:
            found.append(str(error))
    return [Damage.of(run, reason, left_out=False) for reason in found]


def store_path(study: StudySpec, folder: Path) -> Path:
    """The folder of a study's runs, written without "..", which would need the study's folder to exist."""
    return Path(os.path.normpath(folder / (study.store or "runs")))


def find_store(folder: Path) -> Path:
    """The folder of the runs of a study, or the folder itself."""
    if (folder / "study.yaml").is_file():
        return store_path(read_study(folder), folder)
    return folder / "runs" if (folder / "runs").is_dir() else folder


def run_folders(folder: Path) -> list[Path]:
    """The run directories of a study's folder or of a store, or the directory of a run itself."""
    if not folder.is_dir():
        raise SoftbiasError(f"there is no study and no run at {folder}")
    if Run(folder).begun:
        return [folder]
    store = find_store(folder)
    return sorted({file.parent for name in ("config.yaml", "summary.json") for file in store.glob(f"*/{name}")})


def finished_outside(folder: Path, ids: Collection[str]) -> int:
    """How many finished runs of a study's own folder have other ids: of arms, sets, amounts or seeds that it had before."""
    if find_store(folder) != Path(os.path.normpath(folder / "runs")):  # a store that others share
        return 0
    return sum(Run(path).finished and path.name.rpartition("-")[2] not in ids for path in run_folders(folder))


def read_row(folder: Path) -> dict[str, Any] | None:
    """The row of a finished run; None for one that is not finished, or damaged."""
    try:
        return row_of(Run(folder))
    except (OSError, SoftbiasError):
        return None


def row_of(run: Run) -> dict[str, Any]:
    """The row of a finished run; an error gives the reason if it cannot be read."""
    import pandas

    summary = run.summary()
    test, baseline = summary.get("test") or {}, summary.get("baseline") or {}
    row = {name: summary.get(name) for name in COLUMNS}
    row |= {name: test.get(name) for name in ("accuracy", "top5", "balanced_accuracy", "macro_f1")}
    row |= {"run": str(run.path), "n_train": summary["pictures"]["train"], "n_test": test.get("n"), "arm": None}
    row["amount"] = amount_of(summary["train_fraction"], summary.get("per_class"))
    row |= {"baseline_accuracy": baseline.get("accuracy")}
    with suppress(OSError, SoftbiasError):  # `check_parts` gives the reason
        row["hardware"] = run.environment().get("hardware")
    row["finished"] = pandas.Timestamp(run.summary_path.stat().st_mtime, unit="s", tz="UTC")
    return row


def derived_arms(specs: Mapping[str, RunSpec]) -> dict[str, str]:
    """Names for the arms of runs that no study planned: the model, and the settings that differ among runs of one model.

    The number of steps may follow from the amount of data, so a setting names arms only if runs on one amount differ in it.
    """
    found: dict[str, str] = {}
    by_model: dict[str, dict[str, RunSpec]] = {}
    for id, spec in specs.items():
        by_model.setdefault(spec.model, {})[id] = spec
    for model, group in by_model.items():
        settings = {id: flat_settings(spec) for id, spec in group.items()}
        names = sorted({name for inner in settings.values() for name in inner}, key=lambda name: (name != "start", name))
        differing = [name for name in names if differs(name, group, settings)]
        for id, inner in settings.items():
            found[id] = "@".join([model, *(f"{name}={inner.get(name, 'default')}" for name in differing)])
    return found


def differs(name: str, group: Mapping[str, RunSpec], settings: Mapping[str, dict[str, str]]) -> bool:
    """Whether runs on the same amount of the same data differ in a setting."""
    seen: dict[tuple[str, float], set[str]] = {}
    for id, spec in group.items():
        seen.setdefault((spec.data, spec.amount), set()).add(settings[id].get(name, "default"))
    return any(len(values) > 1 for values in seen.values())


def flat_settings(spec: RunSpec) -> dict[str, str]:
    """The settings in which arms may differ: options of the model, fields of the recipe, and the run to start from."""
    plain = non_default(spec.to_dict(), default_settings())
    flat: dict[str, str] = {name: str(value) for name, value in plain.get("model_options", {}).items()}
    recipe = plain.get("recipe", {})
    flat |= {name: str(value) for name, value in recipe.items() if name != "augmentation"}
    flat |= {name: str(value) for name, value in recipe.get("augmentation", {}).items()}
    flat |= {"start": spec.start.name or spec.start.kind} if spec.start.learned else {}
    flat |= {"convert": str(spec.convert)} if spec.convert else {}
    flat |= {"finetune": str(plain["finetune"])} if "finetune" in plain else {}
    return flat
