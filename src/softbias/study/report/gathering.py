"""What a report is made from: the runs, and the spec of their study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from softbias.errors import SoftbiasError
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.study.comparison import prepare
from softbias.study.frame import runs_frame
from softbias.study.spec import StudySpec, read_study


@dataclass(frozen=True)
class Material:
    """The runs of a report.

    frame    all finished runs
    runs     those that are compared
    study    the spec of their study; None for loose runs
    given    the folders that the user named
    folder   the folder of the study; None for loose runs and for several studies
    arms     names of the arms, in the order of the page
    sets     names of the data sets, in the order of the page
    """

    frame: pd.DataFrame
    runs: pd.DataFrame
    study: StudySpec | None
    given: tuple[Path, ...]
    folder: Path | None
    arms: list[str]
    sets: list[str]

    def number(self, arm: str) -> int:
        return self.arms.index(arm)

    def cell(self, data: str, fraction: float, arm: str) -> pd.DataFrame:
        runs = self.runs
        return runs[(runs["data"] == data) & (runs["train_fraction"] == fraction) & (runs["arm"] == arm)]

    def fractions(self, data: str) -> list[float]:
        return sorted(float(value) for value in self.runs[self.runs["data"] == data]["train_fraction"].unique())


def gather(folders: Sequence[Path]) -> Material:
    """Read the runs; an error names what is missing."""
    frame = runs_frame(folders)
    if not len(frame):
        raise SoftbiasError(f"there is no finished run in {', '.join(map(str, folders))}; a report is made of finished runs")
    runs = prepare(frame)
    if not len(runs):
        raise SoftbiasError(
            f"none of the {len(frame)} finished runs has a test score of classes, so there is nothing to compare; "
            "runs need test pictures, and pre-training counts only through the runs that start from it"
        )
    folder = folders[0] if len(folders) == 1 and is_study(folders[0]) else None
    study = next((read_study(given) for given in folders if (given / "study.yaml").is_file()), None)
    arms = [arm for arm in dict.fromkeys(frame["arm"]) if arm in set(runs["arm"])]
    return Material(frame, runs, study, tuple(folders), folder, arms, list(dict.fromkeys(runs["data"])))


def is_study(folder: Path) -> bool:
    return (folder / "study.yaml").is_file() or ((folder / "runs").is_dir() and not Run(folder).begun)


def epochs_of(run: str) -> pd.DataFrame:
    """The epochs of a run: step, loss, accuracy, and with validation images val_loss, val_accuracy."""
    return pd.DataFrame(Run(run).metrics())


def classes_of(run: str) -> pd.DataFrame:
    """Name, n, recall, precision and f1 of every class of a run."""
    return pd.DataFrame((Run(run).summary().get("test") or {}).get("classes", []))


def tested_of(run: str) -> Predictions | None:
    """The predictions of a run on its test images, in the order of the set."""
    found = Run(run).predictions()
    return None if found is None else found.by_index()
