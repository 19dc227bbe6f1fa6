"""The runs of a report with the spec of their study, all that is computed about them before anything is drawn, and the block: a
piece of a section of the report.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from softbias.errors import SoftbiasError
from softbias.files import escaped
from softbias.pages.charts import Chart, Table
from softbias.runs.answers import Answers
from softbias.runs.run import Run
from softbias.study.comparison import compare_arms, metric_of, prepare, summarize
from softbias.study.frame import Damage, read_runs
from softbias.study.headline import each
from softbias.study.learning_curve import Fitted, curve_fits, matching_data
from softbias.study.metric import ACCURACY, ALIASES, METRICS, Metric
from softbias.study.scores import Scores, read_scores
from softbias.study.spec import PublishedNumber, StudySpec, read_study


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
    damage   what cannot be read of the finished runs
    metric   the score that the report is about
    scores   what was measured on the finished runs
    """

    frame: pd.DataFrame
    runs: pd.DataFrame
    study: StudySpec | None
    given: tuple[Path, ...]
    folder: Path | None
    arms: list[str]
    sets: list[str]
    damage: tuple[Damage, ...] = ()
    metric: Metric = ACCURACY
    scores: Scores | None = None

    @property
    def left_out(self) -> list[Damage]:
        """The runs that are damaged so that they are not compared."""
        return [one for one in self.damage if one.left_out]

    @property
    def chance_level(self) -> float | None:
        """The metric of random answers, where it was measured."""
        return self.scores.chance_level if self.scores is not None and self.scores.metric == self.metric.name else None

    def number(self, arm: str) -> int:
        return self.arms.index(arm)

    def cell(self, data: str, amount: float, arm: str) -> pd.DataFrame:
        runs = self.runs
        return runs[(runs["data"] == data) & (runs["amount"] == amount) & (runs["arm"] == arm)]

    def amounts(self, data: str) -> list[float]:
        return sorted(float(value) for value in self.runs[self.runs["data"] == data]["amount"].unique())


def gather(folders: Sequence[Path]) -> Material:
    """Read the runs; an error names what is missing."""
    frame, damage = read_runs(folders)
    if not len(frame) and damage:
        raise SoftbiasError(f"each finished run in {', '.join(map(str, folders))} is damaged, the first so: {damage[0].reason}")
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
    metric = metric_of(frame, study) if study else ACCURACY
    runs = prepare(frame, metric)
    arms = [arm for arm in dict.fromkeys(frame["arm"]) if arm in set(runs["arm"])]
    sets, scores = list(dict.fromkeys(runs["data"])), read_scores(folder) if folder else None
    return Material(frame, runs, study, tuple(folders), folder, arms, sets, damage, metric, scores)


def is_study(folder: Path) -> bool:
    return (folder / "study.yaml").is_file() or ((folder / "runs").is_dir() and not Run(folder).begun)


def epochs_of(run: str) -> pd.DataFrame:
    """The epochs of a run: step, loss, accuracy, and with validation images val_loss, val_accuracy; none if damaged."""
    with suppress(OSError, SoftbiasError):  # `Material.damage` has the reason
        return pd.DataFrame(Run(run).metrics())
    return pd.DataFrame()


def classes_of(run: str) -> pd.DataFrame:
    """Name, n, recall, precision and f1 of every class of a run."""
    rows = (Run(run).summary().get("test") or {}).get("classes", [])
    return pd.DataFrame([{**row, "name": escaped(row["name"])} for row in rows])


def tested_of(run: str) -> Answers | None:
    """The answers of a run on its test images, in the order of the set."""
    found = Run(run).answers()
    return None if found is None else found.by_index()


PUBLISHED = ["data", "arm", "amount", "metric", "value", "note"]


@dataclass(frozen=True)
class ReportBlock:
    """A piece of a section: charts, a text below them, tables.

    columns   a class of the style sheet, which puts several charts side by side
    folded    what the rows of the tables are ("classes"); if given, a table is hidden until a reader clicks on its title
    """

    charts: Sequence[Chart] = ()
    text: str = ""
    tables: Sequence[Table] = ()
    heading: str = ""
    columns: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Results:
    """The statistics of a study. A row of `summary` is an arm at one amount of a set, one of `comparisons` a pair of arms."""

    material: Material
    summary: pd.DataFrame
    comparisons: pd.DataFrame
    published: pd.DataFrame
    matching: pd.DataFrame
    fits: dict[tuple[str, str], Fitted]

    @staticmethod
    def of(material: Material) -> Results:
        frame, metric = material.frame, material.metric
        comparisons = compare_arms(frame, metric)
        return Results(
            material,
            summarize(frame, metric),
            comparisons,
            read_published(material.study.published if material.study else ()),
            matching_data(frame, comparisons, metric),
            curve_fits(frame, metric),
        )

    @property
    def metric(self) -> Metric:
        return self.material.metric

    @cached_property
    def seeds(self) -> int:
        """The largest number of seeds that an arm has."""
        return int(self.summary["n"].max())

    @cached_property
    def tests(self) -> int:
        """How many comparisons Holm's correction covers."""
        return int(self.comparisons["family"].max()) if len(self.comparisons) else 0

    def cells(self, data: str, amount: float | None = None) -> pd.DataFrame:
        rows = self.summary[self.summary["data"] == data]
        return rows if amount is None else rows[rows["amount"] == amount]

    def number(self, arm: str) -> int | None:
        """The number of an arm, which decides its color; None for an arm that occurs only among the published numbers."""
        return self.material.number(arm) if arm in self.material.arms else None

    def published_beside(self, data: str) -> pd.DataFrame:
        """Published values of the metric on a set: with a single amount of data, those with the same amount. Times that are
        relative to an arm have nothing to do with the set."""
        if self.metric.repeated == "rounds":
            return self.published[self.published["metric"] == self.metric.name]
        same = self.published[(self.published["metric"] == self.metric.name) & (self.published["data"] == data)]
        amounts = self.material.amounts(data)
        return same if len(amounts) > 1 else same[same["amount"].isin(amounts)]

    @property
    def in_one_table(self) -> bool:
        """Whether all sets stand in one table: there are several, ours or published, and one amount of each."""
        published = self.published[self.published["metric"] == self.metric.name]
        whole = published["data"].nunique() > 1 or (self.material.sets[1:] and not len(published))
        return bool(whole) and all(len(self.material.amounts(data)) == 1 for data in self.material.sets)

    def published_elsewhere(self) -> pd.DataFrame:
        """Published values of the metric that no axis of ours can hold: on another set, or with another amount of data."""
        here = [index for data in self.material.sets for index in self.published_beside(data).index]
        own = self.published[self.published["metric"] == self.metric.name]
        return own[~own.index.isin(here)]


def read_published(numbers: Sequence[PublishedNumber]) -> pd.DataFrame:
    """A row per published number, its value in percent; printed: the value with all of its digits."""
    rows = []
    for number in numbers:
        value, metric = number["value"], number.get("metric", "accuracy")
        metric = ALIASES.get(metric, metric)
        value = 100 * value if metric in METRICS and METRICS[metric].share and value <= 1 else value
        cell = [number["data"], number["arm"], number.get("train_fraction", 1.0)]
        rows.append([*cell, metric, value, number.get("note", "")])
    table = pd.DataFrame(rows, columns=PUBLISHED)
    digits = {metric: max(map(decimals, cell["value"])) for metric, cell in table.groupby("metric")}
    return table.assign(printed=[f"{row.value:.{digits[row.metric]}f}" for row in each(table)])


def decimals(value: float) -> int:
    """How many digits a number has after the point, four at most; all numbers of a table get as many as the longest.

    >>> decimals(83.13), decimals(70.0), decimals(100 * 0.123)
    (2, 0, 1)
    """
    return len(f"{value:.4f}".rstrip("0").split(".")[1])


def amount_key(amount: float) -> str:
    """An amount of data as a part of a file name.

    >>> amount_key(0.1), amount_key(5.0)
    ('10', '5-per-class')
    """
    return f"{100 * amount:g}" if amount <= 1 else f"{amount:.0f}-per-class"


def slug(text: str) -> str:
    """A name as a part of a file name.

    >>> slug("my/pictures set")
    'my-pictures-set'
    """
    short = re.sub(r"[^\w.]+", "-", str(text)).strip("-.")
    if len(short.encode(errors="replace")) <= 100:
        return short
    return f"{short[:20]}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"  # file systems allow 255 bytes
