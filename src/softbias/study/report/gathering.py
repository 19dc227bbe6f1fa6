"""What a report is made from: the runs, and what their study says about itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from softbias.errors import SoftbiasError
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.study.comparison import prepare
from softbias.study.frame import runs_frame

Predicted = NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """frame: all finished runs; runs: those that are compared; arms and sets in the order in which they are shown."""

    frame: pd.DataFrame
    runs: pd.DataFrame
    study: dict[str, Any]
    places: tuple[Path, ...]
    folder: Path | None  # of the study, if it is one
    arms: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)

    def number(self, arm: str) -> int:
        return self.arms.index(arm)

    def cell(self, data: str, fraction: float, arm: str) -> pd.DataFrame:
        runs = self.runs
        return runs[(runs["data"] == data) & (runs["train_fraction"] == fraction) & (runs["arm"] == arm)]

    def fractions(self, data: str) -> list[float]:
        return sorted(float(value) for value in self.runs[self.runs["data"] == data]["train_fraction"].unique())


def gather(places: Sequence[Path]) -> Material:
    """Read the runs; an error says what is missing."""
    frame = runs_frame(list(places))
    if not len(frame):
        named = ", ".join(map(str, places))
        raise SoftbiasError(f"there is no finished run in {named}; a report is made of finished runs")
    runs = prepare(frame)
    if not len(runs):
        raise SoftbiasError(
            f"none of the {len(frame)} finished runs has a test score of classes, so there is nothing to compare; "
            "runs need test pictures, and pre-training counts only through the runs that start from it"
        )
    folder = places[0] if len(places) == 1 and is_study(places[0]) else None
    found = [read_study_file(place) for place in places]
    arms = [arm for arm in dict.fromkeys(frame["arm"]) if arm in set(runs["arm"])]
    study = next((one for one in found if one), {})
    return Material(frame, runs, study, tuple(places), folder, arms, list(dict.fromkeys(runs["data"])))


def is_study(place: Path) -> bool:
    return (place / "study.yaml").is_file() or ((place / "runs").is_dir() and not (place / "config.yaml").is_file())


def read_study_file(place: Path) -> dict[str, Any]:
    """study.yaml as it stands; the report needs its words, not its meaning, so a strange one does not stop it."""
    try:
        plain = yaml.safe_load((place / "study.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return plain if isinstance(plain, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return plain if isinstance(plain, dict) else {}


def epochs_of(run: str) -> pd.DataFrame:
    """The epochs of a run: step, loss, accuracy, and where it had validation pictures val_loss, val_accuracy."""
    return pd.DataFrame(Run(run).metrics())


def classes_of(run: str) -> pd.DataFrame:
    """Name, n, recall, precision and f1 of every class of a run."""
    return pd.DataFrame((read_json(Path(run) / "summary.json").get("test") or {}).get("classes", []))


def tested_of(run: str) -> Predictions | None:
    """What a run says about its test images, in the order of the set."""
    found = Run(run).predictions()
    return None if found is None else found.by_index()
