"""Finished runs as a table: one row per run of a study's folder, of a store, or of loose run directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.errors import SoftbiasError
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, default_settings, non_default
from softbias.study.plan import read_plan
from softbias.study.spec import StudySpec, read_study

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "run", "id", "arm", "model", "data", "train_fraction", "seed", "objective", "pretext", "n_train", "n_test", "accuracy",
    "top5", "balanced_accuracy", "macro_f1", "baseline_accuracy", "parameters", "macs", "steps", "epochs", "images_per_second",
    "seconds", "peak_memory", "hardware", "finished",
)  # fmt: skip


def runs_frame(folders: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """One row per finished run of a study's folder, of a store, or of run directories.

    The plan of a study says which runs it has, and their arms. Loose runs are all taken, and their arms are named by the
    settings that differ between them. `accuracy` and the scores after it are on the test images; `finished` is a time.
    """
    import pandas

    rows: dict[str, dict[str, Any]] = {}
    loose: dict[str, RunSpec] = {}
    order: dict[str, int] = {}  # arms as the study names them
    for given in [Path(folders)] if isinstance(folders, str | Path) else map(Path, folders):
        plan = read_plan(given)
        for planned in (plan or {}).values():
            order.setdefault(planned["arm"], len(order))
        for folder in run_folders(given):
            row = read_row(folder)
            if row is None or (plan is not None and row["id"] not in plan):
                continue
            if plan is None:
                loose[row["id"]] = Run(folder).spec
            else:
                row["arm"] = plan[row["id"]]["arm"]
            rows.setdefault(row["id"], row)
    for id, name in derived_arms(loose).items():
        rows[id]["arm"] = rows[id].get("arm") or name
    frame = pandas.DataFrame(list(rows.values()), columns=list(COLUMNS))
    frame["rank"] = [order.get(arm, len(order)) for arm in frame["arm"]]
    return frame.sort_values(["data", "rank", "arm", "train_fraction", "seed"], ignore_index=True).drop(columns="rank")


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
    return sorted(file.parent for file in find_store(folder).glob("*/config.yaml"))


def read_row(folder: Path) -> dict[str, Any] | None:
    """The row of a finished run; None for a run that is not finished."""
    import pandas

    run = Run(folder)
    try:
        summary = run.summary()
    except (OSError, SoftbiasError):
        return None
    test, baseline = summary.get("test") or {}, summary.get("baseline") or {}
    row = {name: summary.get(name) for name in COLUMNS}
    row |= {name: test.get(name) for name in ("accuracy", "top5", "balanced_accuracy", "macro_f1")}
    row |= {"run": str(folder), "n_train": summary["pictures"]["train"], "n_test": test.get("n"), "arm": None}
    row |= {"baseline_accuracy": baseline.get("accuracy"), "hardware": run.environment().get("hardware")}
    row["finished"] = pandas.Timestamp(run.summary_path.stat().st_mtime, unit="s", tz="UTC")
    return row


def derived_arms(specs: Mapping[str, RunSpec]) -> dict[str, str]:
    """Names for the arms of runs that no study planned: the model, and the settings that differ among runs of one model.

    The number of steps may follow from the fraction, so a setting names arms only if runs at one fraction differ in it.
    """
    found: dict[str, str] = {}
    by_model: dict[str, dict[str, RunSpec]] = {}
    for id, spec in specs.items():
        by_model.setdefault(spec.model, {})[id] = spec
    for model, group in by_model.items():
        settings = {id: flat_settings(spec) for id, spec in group.items()}
        names = sorted({name for inner in settings.values() for name in inner})
        differing = [name for name in names if differs(name, group, settings)]
        for id, inner in settings.items():
            found[id] = "@".join([model, *(f"{name}={inner.get(name, 'default')}" for name in differing)])
    return found


def differs(name: str, group: Mapping[str, RunSpec], settings: Mapping[str, dict[str, str]]) -> bool:
    """Whether runs on the same data and fraction differ in a setting."""
    seen: dict[tuple[str, float], set[str]] = {}
    for id, spec in group.items():
        seen.setdefault((spec.data, spec.train_fraction), set()).add(settings[id].get(name, "default"))
    return any(len(values) > 1 for values in seen.values())


def flat_settings(spec: RunSpec) -> dict[str, str]:
    """The settings in which arms may differ: options of the model, fields of the recipe, and the run to start from."""
    plain = non_default(spec.to_dict(), default_settings())
    flat: dict[str, str] = {name: str(value) for name, value in plain.get("model_options", {}).items()}
    recipe = plain.get("recipe", {})
    flat |= {name: str(value) for name, value in recipe.items() if name != "augmentation"}
    flat |= {name: str(value) for name, value in recipe.get("augmentation", {}).items()}
    flat |= {name: str(plain[name]) for name in ("source", "finetune", "pretrained", "weights") if name in plain}
    return flat
