"""Finished runs as a table: one row per run, whatever lies in a study's folder or in loose run directories."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.errors import SoftbiasError
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, non_default
from softbias.study.plan import PlannedRun, read_plan
from softbias.study.spec import StudySpec, read_study

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "run", "id", "arm", "model", "data", "train_fraction", "seed", "objective", "pretext", "n_train", "n_test", "accuracy",
    "top5", "balanced_accuracy", "macro_f1", "baseline_accuracy", "parameters", "macs", "steps", "epochs", "images_per_second",
    "seconds", "peak_memory", "hardware", "finished",
)  # fmt: skip


def runs_frame(places: str | Path | Iterable[str | Path], specs: Sequence[PlannedRun] | None = None) -> pandas.DataFrame:
    """One row per finished run of a study's folder, of a store, or of run directories.

    `accuracy` and what follows it are of the test pictures, `finished` is when the run was.

    specs   the runs wanted, with their arms; otherwise a study's own plan says which, and of loose runs all are taken and
            their arms are named by what differs between them
    """
    import pandas

    given = [Path(places)] if isinstance(places, str | Path) else [Path(place) for place in places]
    arms: dict[str, str] = {run.id: run.arm for run in specs or ()}
    rows: dict[str, dict[str, Any]] = {}
    loose: dict[str, RunSpec] = {}
    for place in given:
        planned = read_plan(place)
        wanted = arms if specs is not None else {id: row["arm"] for id, row in planned.items()} if planned is not None else None
        for folder in run_folders(place):
            row = read_row(folder)
            if row is None or (wanted is not None and row["id"] not in wanted):
                continue
            if wanted is None:
                loose[row["id"]] = Run(folder).spec
            else:
                row["arm"] = wanted[row["id"]]
            rows.setdefault(row["id"], row)
    for id, name in derived_arms(loose).items():
        rows[id]["arm"] = rows[id].get("arm") or name
    frame = pandas.DataFrame(list(rows.values()), columns=list(COLUMNS))
    order = {arm: place for place, arm in enumerate(dict.fromkeys(planned_arms(given, specs)))}
    frame["place"] = [order.get(arm, len(order)) for arm in frame["arm"]]
    frame = frame.sort_values(["data", "place", "arm", "train_fraction", "seed"], ignore_index=True)
    return frame.drop(columns="place")


def planned_arms(places: Sequence[Path], specs: Sequence[PlannedRun] | None) -> list[str]:
    """Arms in the order in which they were asked for."""
    if specs is not None:
        return [run.arm for run in specs]
    return [row["arm"] for place in places for row in (read_plan(place) or {}).values()]


def place_of_runs(study: StudySpec, place: Path) -> Path:
    """The folder of a study's runs, written without "..", which would need the study's folder to exist."""
    return Path(os.path.normpath(place / (study.store or "runs")))


def store_of(place: Path) -> Path:
    """Where the runs of a study lie."""
    if (place / "study.yaml").is_file():
        return place_of_runs(read_study(place), place)
    return place / "runs" if (place / "runs").is_dir() else place


def run_folders(place: Path) -> list[Path]:
    """The run directories of a study's folder, of a store, or the directory itself."""
    if not place.is_dir():
        raise SoftbiasError(f"there is no study and no run at {place}")
    if (place / "config.yaml").is_file():
        return [place]
    return sorted(file.parent for file in store_of(place).glob("*/config.yaml"))


def read_row(folder: Path) -> dict[str, Any] | None:
    """The row of a finished run; None where it is not finished."""
    import pandas

    try:
        summary = Run(folder).summary()
    except (OSError, SoftbiasError):
        return None
    test, baseline = summary.get("test") or {}, summary.get("baseline") or {}
    environment = read_json(folder / "environment.json")
    row = {name: summary.get(name) for name in COLUMNS}
    row |= {name: test.get(name) for name in ("accuracy", "top5", "balanced_accuracy", "macro_f1")}
    row |= {"run": str(folder), "n_train": summary["pictures"]["train"], "n_test": test.get("n"), "arm": None}
    row |= {"baseline_accuracy": baseline.get("accuracy"), "hardware": environment.get("hardware")}
    row["finished"] = pandas.Timestamp((folder / "summary.json").stat().st_mtime, unit="s", tz="UTC")
    return row


def read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}


def derived_arms(specs: Mapping[str, RunSpec]) -> dict[str, str]:
    """Names for arms of runs that no study planned: the model, and the settings that differ among runs of one model.

    How long a run takes follows from its fraction, so it tells arms apart only where it differs at one fraction.
    """
    found: dict[str, str] = {}
    by_model: dict[str, dict[str, RunSpec]] = {}
    for id, spec in specs.items():
        by_model.setdefault(spec.model, {})[id] = spec
    for model, group in by_model.items():
        settings = {id: flat_settings(spec) for id, spec in group.items()}
        names = sorted({name for inner in settings.values() for name in inner})
        differing = [name for name in names if tells_arms_apart(name, group, settings)]
        for id, inner in settings.items():
            found[id] = "@".join([model, *(f"{name}={inner.get(name, 'default')}" for name in differing)])
    return found


def tells_arms_apart(name: str, group: Mapping[str, RunSpec], settings: Mapping[str, dict[str, str]]) -> bool:
    """Whether runs on the same data and fraction differ in it."""
    seen: dict[tuple[str, float], set[str]] = {}
    for id, spec in group.items():
        seen.setdefault((spec.data, spec.train_fraction), set()).add(settings[id].get(name, "default"))
    return any(len(values) > 1 for values in seen.values())


def flat_settings(spec: RunSpec) -> dict[str, str]:
    """What an arm could differ in, by name: options of the model, fields of the recipe, where it starts from."""
    plain = non_default(spec.to_dict(), RunSpec("", "", type(spec.recipe)()).to_dict())
    flat: dict[str, str] = {name: str(value) for name, value in plain.get("model_options", {}).items()}
    recipe = plain.get("recipe", {})
    flat |= {name: str(value) for name, value in recipe.items() if name != "augmentation"}
    flat |= {name: str(value) for name, value in recipe.get("augmentation", {}).items()}
    flat |= {name: str(plain[name]) for name in ("source", "finetune", "pretrained", "weights") if name in plain}
    return flat
