"""The tables of a study: what every arm reached, and how the arms differ.

A frame has one row per finished run (`study.frame.runs_frame`). A cell is one arm on one data set at one amount; its runs
differ in their seed. Differences are taken between runs of the same seed. `softbias.stats` explains the two sources of
variation. The columns are named after them: seeds_low, seeds_high and images_low, images_high are 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softbias.errors import unknown_name
from softbias.pages.format import amount_text
from softbias.runs.run import Run
from softbias.stats import (
    BOOTSTRAP_FROM,
    NONE,
    Interval,
    Paired,
    bootstrap_interval,
    holm,
    image_bootstrap,
    paired_t,
    smallest_detectable,
    t_interval,
    wilson,
)
from softbias.study.headline import ALPHA, LEAST_SEEDS
from softbias.terminal import make_console

CELL = ["data", "amount", "arm"]
MEANS = ["top5", "balanced_accuracy", "macro_f1", "baseline_accuracy", "images_per_second", "seconds", "peak_memory"]
SAME = ["model", "n_train", "n_test", "parameters", "macs", "steps", "epochs"]
ALL_PAIRS_UP_TO = 6  # arms; with more, each is compared with the first alone, because Holm's correction would leave nothing
COMPARED = [
    "data", "amount", "arm", "other", "n", "arm_accuracy", "other_accuracy", "difference", "seeds_low", "seeds_high",
    "sd", "p", "images_low", "images_high", "n_images", "relative",
]  # fmt: skip
Correct = Callable[[str], "tuple[NDArray[np.int64], NDArray[np.bool_]] | None"]


def prepare(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs that can be compared: trained on classes, with a test score, one per cell and seed (the last finished).

    Arms keep the order in which they first appear; the first is the reference where one is needed.
    """
    rows = frame[~frame["pretext"].astype(bool) & frame["accuracy"].notna()]
    if "finished" in rows:
        rows = rows.sort_values("finished", kind="stable", na_position="first")
    rows = rows.drop_duplicates([*CELL, "seed"], keep="last")
    arms = {arm: rank for rank, arm in enumerate(frame["arm"].unique())}
    sets = {name: rank for rank, name in enumerate(frame["data"].unique())}
    order = rows.assign(_arm=rows["arm"].map(arms), _data=rows["data"].map(sets))
    order = order.sort_values(["_data", "amount", "_arm", "seed"], kind="stable")
    return order.drop(columns=["_arm", "_data"]).reset_index(drop=True)


def summarize(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: the mean accuracy, the number of seeds, and an interval for each source of variation.

    seeds_low, seeds_high     t interval of the mean over seeds; nan with one seed
    boot_low, boot_high       bootstrap over seeds, with ten or more of them; nan otherwise
    images_low, images_high   Wilson's interval of the mean accuracy for n_test images. All seeds share the test images, so
                              they do not make them more; for a mean over seeds this is a little wider than needed
    """
    made: list[dict[str, Any]] = []
    for (data, amount, arm), cell in prepare(frame).groupby(CELL, sort=False):
        scores = cell["accuracy"].to_numpy(float)
        n_test = int(cell["n_test"].iloc[0]) if pd.notna(cell["n_test"].iloc[0]) else 0
        row: dict[str, Any] = {"data": data, "amount": amount, "arm": arm, "n": len(cell), "accuracy": scores.mean()}
        row["sd"] = scores.std(ddof=1) if len(scores) > 1 else np.nan
        row["seeds_low"], row["seeds_high"] = t_interval(scores)
        row["boot_low"], row["boot_high"] = bootstrap_interval(scores) if len(scores) >= BOOTSTRAP_FROM else NONE
        row["images_low"], row["images_high"] = images_interval(float(scores.mean()), n_test) if n_test else NONE
        row |= {name: cell[name].iloc[0] for name in SAME if name in cell}
        row |= {name: pd.to_numeric(cell[name]).mean() for name in MEANS if name in cell}
        made.append(row)
    return pd.DataFrame(made)


def images_interval(accuracy: float, n: int) -> Interval:
    """Wilson's interval for a mean over seeds, which may lie between two counts.

    >>> [round(edge, 4) for edge in images_interval(0.6845, 1000)]
    [0.655, 0.7126]
    """
    return wilson(round(accuracy * n, 6), n)


def read_correct(run: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
    """The test images of a run in the order of the set, and which of them it got right; None without predictions."""
    found = Run(run).predictions()
    if found is None:
        return None
    found = found.by_index()
    return found.index, found.correct


def compare_arms(frame: pd.DataFrame, *, reference: str | None = None, correct: Correct = read_correct) -> pd.DataFrame:
    """One row per pair of arms, data set and amount: arm minus other, over the seeds that both have.

    reference      compare every other arm with this one; otherwise all pairs, or with more than six arms all with the first
    correct        the path of a run -> its test images, and which of them it got right

    Columns: n seeds; arm_accuracy, other_accuracy over these; difference; seeds_low, seeds_high and p of the paired t test;
    p_holm, corrected over all rows of this table; images_low, images_high of the paired bootstrap over test images;
    detectable and detectable_family, the smallest difference found with a power of 80 % by a single test and at the
    strictest step of the correction; relative, the difference as a share of the other's score (the gap of ConViT's table);
    supported, whether seeds and test images both support the difference (see `headline`).
    """
    rows = prepare(frame)
    compared = set(rows["arm"])
    arms = [arm for arm in dict.fromkeys(frame["arm"]) if arm in compared]  # without pre-trainings
    if reference is not None and reference not in arms:
        raise unknown_name("arm", reference, arms)
    if reference is None and len(arms) > ALL_PAIRS_UP_TO:
        reference = arms[0]
    made: list[dict[str, Any]] = []
    tests: list[Paired] = []
    for (data, amount), cell in rows.groupby(["data", "amount"], sort=False):
        here = [arm for arm in arms if arm in set(cell["arm"])]
        for other, arm in combinations(here, 2):
            if reference not in (None, arm, other):
                continue
            pair = (other, arm) if arm == reference else (arm, other)
            row, test = compare_pair(cell, pair, correct)
            made.append({"data": data, "amount": amount, **row})
            tests.append(test)
    table = pd.DataFrame(made, columns=COMPARED)
    table["p_holm"] = holm(table["p"].to_numpy(float))
    family = max(1, int(table["p"].notna().sum()))
    table["family"] = family
    table["detectable"] = [smallest_detectable(test.sd, test.n) for test in tests]
    table["detectable_family"] = [smallest_detectable(test.sd, test.n, alpha=ALPHA / family) for test in tests]
    beyond = (table["images_low"] > 0) | (table["images_high"] < 0) | table["images_low"].isna()
    table["supported"] = (table["n"] >= LEAST_SEEDS) & (table["p_holm"] < ALPHA) & beyond
    return table


def compare_pair(cell: pd.DataFrame, pair: tuple[str, str], correct: Correct) -> tuple[dict[str, Any], Paired]:
    """The row of two arms at one amount of one data set, and its test."""
    one, two = (cell[cell["arm"] == name].set_index("seed") for name in pair)
    seeds = one.index.intersection(two.index)
    a, b = (runs.loc[seeds, "accuracy"].to_numpy(float) for runs in (one, two))
    n_test = float(pd.to_numeric(one["n_test"]).min())
    test = paired_t(a, b, grain=1 / (n_test * 6**0.5) if n_test > 0 else 0.0)
    images, n_images = NONE, 0
    if len(seeds):
        images, n_images = over_images(list(one.loc[seeds, "run"]), list(two.loc[seeds, "run"]), correct)
    means = (a.mean(), b.mean()) if len(seeds) else (np.nan, np.nan)
    row = (
        {"arm": pair[0], "other": pair[1], "n": len(seeds), "arm_accuracy": means[0], "other_accuracy": means[1]}
        | {"difference": test.difference, "seeds_low": test.low, "seeds_high": test.high, "sd": test.sd, "p": test.p}
        | {"images_low": images[0], "images_high": images[1], "n_images": n_images}
        | {"relative": test.difference / means[1] if means[1] else np.nan}
    )
    return row, test


def over_images(ones: list[str], others: list[str], correct: Correct) -> tuple[Interval, int]:
    """Interval over test images of the difference, averaged over seeds; none where runs had different test images."""
    total: Any = 0.0
    index: NDArray[np.int64] | None = None
    for one, other in zip(ones, others, strict=True):
        pair = [correct(run) for run in (one, other)]
        if pair[0] is None or pair[1] is None:
            return NONE, 0
        (first, right), (second, other_right) = pair[0], pair[1]
        index = first if index is None else index
        if not np.array_equal(first, second) or not np.array_equal(first, index):
            return NONE, 0
        total = total + right.astype(float) - other_right  # (n,)
    assert index is not None
    differences = np.round(np.asarray(total) / len(ones), 12)  # equal values stay equal
    return image_bootstrap(differences), len(index)


@dataclass(frozen=True)
class AccuracyTable:
    """Accuracies of one data set as text, for a terminal and for a notebook: a row per arm, a column per amount."""

    data: str
    head: list[str]
    rows: list[list[str]]
    baseline: list[str] | None


def accuracy_tables(frame: pd.DataFrame) -> tuple[list[AccuracyTable], str]:
    """A table per data set, and the meaning of its intervals; no table where no run has a test score."""
    if prepare(frame).empty:
        return [], "no run has a test score"
    cells = summarize(frame)
    tables = []
    for data in dict.fromkeys(cells["data"]):
        part = cells[cells["data"] == data]
        amounts = sorted(set(part["amount"]))
        by_amount = {amount: part[part["amount"] == amount] for amount in amounts}
        head = [f"{amount_text(amount)} ({rows['n_train'].iloc[0]:,} pictures)" for amount, rows in by_amount.items()]
        rows = []
        for arm in dict.fromkeys(part["arm"]):
            found = {row["amount"]: row for _, row in part[part["arm"] == arm].iterrows()}
            rows.append([arm, *(cell_text(found[amount]) if amount in found else "–" for amount in amounts)])
        by_pixel_regression = [rows["baseline_accuracy"].dropna() for rows in by_amount.values()]
        baseline = [f"{values.mean():.1%}" if len(values) else "–" for values in by_pixel_regression]
        tables.append(AccuracyTable(data, head, rows, baseline if any(map(len, by_pixel_regression)) else None))
    kinds = []
    if (cells["n"] > 1).any():
        kinds.append("95 % t interval of the mean over n seeds")
    if (cells["n"] == 1).any():
        kinds.append("n = 1: 95 % interval over test pictures only, which says nothing about another seed")
    return tables, "±: " + "; ".join(kinds)


def cell_text(row: Any) -> str:
    """ "81.2% ± 1.3%, n = 3": half the interval over seeds, or with one seed half of Wilson's interval over test images."""
    low, high = (row["seeds_low"], row["seeds_high"]) if row["n"] > 1 else (row["images_low"], row["images_high"])
    return f"{row['accuracy']:.1%} ± {(high - low) / 2:.1%}, n = {row['n']}"


def print_accuracies(frame: pd.DataFrame) -> None:
    """Accuracy of every arm at every amount with its interval, and the raw-pixel baseline below, in a terminal."""
    from rich.table import Table

    console = make_console()
    tables, legend = accuracy_tables(frame)
    for one in tables:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(f"{one.data}: accuracy with")
        for title in one.head:
            table.add_column(title, justify="right", no_wrap=True)
        for row in one.rows:
            table.add_row(*row)
        if one.baseline is not None:
            table.add_row("raw pixels", *one.baseline, style="dim")
        console.print(table)
    console.print(legend, style="dim" if tables else None)
