"""The tables of a study: what every arm reached, and how the arms differ.

A frame has one row per finished run (`study.frame.runs_frame`). A cell is one arm on one data set at one amount; its runs
differ in their seed. Differences are taken between runs of the same seed. `softbias.stats` explains the two sources of
variation. The columns are named after them: seeds_low, seeds_high and images_low, images_high are 95 % intervals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from softbias.errors import unknown_name
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
from softbias.study.metric import ACCURACY, OWN, Metric, find_metric
from softbias.study.spec import StudySpec

CELL = ["data", "amount", "arm"]
MEANS = [*OWN, "baseline_accuracy", "images_per_second", "seconds", "peak_memory"]
SAME = ["model", "n_train", "n_test", "parameters", "macs", "steps", "epochs"]
ALL_PAIRS_UP_TO = 6  # arms; with more, each is compared with the first alone, because Holm's correction would leave nothing
COMPARED = [
    "data", "amount", "arm", "other", "n", "arm_value", "other_value", "difference", "seeds_low", "seeds_high",
    "sd", "p", "images_low", "images_high", "n_images", "relative",
]  # fmt: skip
COUNTED = {"accuracy": 1, "top5": 5}  # metrics that count test images: the right class is among so many
Correct = Callable[[str], "tuple[NDArray[np.int64], NDArray[np.bool_]] | None"]


def prepare(frame: pd.DataFrame, metric: Metric = ACCURACY) -> pd.DataFrame:
    """The runs that can be compared: trained on classes, with a score, one per cell and seed (the last finished).

    The column `value` is the metric. Arms keep the order in which they first appear; the first is the reference where one is
    needed.
    """
    values = pd.to_numeric(frame[metric.name] if metric.name in frame else pd.Series(np.nan, frame.index))
    rows = frame.assign(value=values)[~frame["pretext"].astype(bool) & values.notna()]
    if "finished" in rows:
        rows = rows.sort_values("finished", kind="stable", na_position="first")
    rows = rows.drop_duplicates([*CELL, "seed"], keep="last")
    arms = {arm: rank for rank, arm in enumerate(frame["arm"].unique())}
    sets = {name: rank for rank, name in enumerate(frame["data"].unique())}
    order = rows.assign(_arm=rows["arm"].map(arms), _data=rows["data"].map(sets))
    order = order.sort_values(["_data", "amount", "_arm", "seed"], kind="stable")
    return order.drop(columns=["_arm", "_data"]).reset_index(drop=True)


def usable_metric(frame: pd.DataFrame, name: str) -> Metric:
    """The metric of a study, or accuracy where no run has it: a measurement may have failed, and a set has fewer classes."""
    wanted = find_metric(name)
    return ACCURACY if prepare(frame, wanted).empty else wanted


def metric_of(frame: pd.DataFrame, study: StudySpec) -> Metric:
    """What a study is about, as far as its runs have it; of one for choosing, on validation images."""
    metric = usable_metric(frame, study.metric)
    return metric.for_choosing() if study.data_options.get("score") == "val" else metric


def summarize(frame: pd.DataFrame, metric: Metric = ACCURACY) -> pd.DataFrame:
    """One row per cell: the mean of the metric (`value`), the number of seeds, and an interval for each source of variation.

    seeds_low, seeds_high     t interval of the mean over seeds; nan with one seed
    boot_low, boot_high       bootstrap over seeds, with ten or more of them; nan otherwise
    images_low, images_high   Wilson's interval of the mean accuracy for n_test images. All seeds share the test images, so
                              they do not make them more; for a mean over seeds this is a little wider than needed. Of a
                              measured metric, the mean of the runs' own intervals; nan where a metric has none
    """
    made: list[dict[str, Any]] = []
    for (data, amount, arm), cell in prepare(frame, metric).groupby(CELL, sort=False):
        scores = cell["value"].to_numpy(float)
        n_test = int(cell["n_test"].iloc[0]) if pd.notna(cell["n_test"].iloc[0]) else 0
        row: dict[str, Any] = {"data": data, "amount": amount, "arm": arm, "n": len(cell), "value": scores.mean()}
        row["sd"] = scores.std(ddof=1) if len(scores) > 1 else np.nan
        row["seeds_low"], row["seeds_high"] = t_interval(scores)
        row["boot_low"], row["boot_high"] = bootstrap_interval(scores) if len(scores) >= BOOTSTRAP_FROM else NONE
        row["images_low"], row["images_high"] = own_interval(cell, metric, n_test)
        row |= {name: cell[name].iloc[0] for name in SAME if name in cell}
        row |= {name: pd.to_numeric(cell[name]).mean() for name in MEANS if name in cell}
        made.append(row)
    return pd.DataFrame(made)


def own_interval(cell: pd.DataFrame, metric: Metric, n_test: int) -> Interval:
    """The interval that a run's own images, scenes or rounds allow, for the mean over seeds."""
    if metric.name in COUNTED:
        return images_interval(float(cell["value"].mean()), n_test) if n_test else NONE
    edges = [f"{metric.name}_low", f"{metric.name}_high"]
    low, high = (float(pd.to_numeric(cell[name]).mean()) if name in cell else np.nan for name in edges)
    return low, high


def images_interval(accuracy: float, n: int) -> Interval:
    """Wilson's interval for a mean over seeds, which may lie between two counts.

    >>> [round(edge, 4) for edge in images_interval(0.6845, 1000)]
    [0.655, 0.7126]
    """
    return wilson(round(accuracy * n, 6), n)


def read_correct(run: str, top: int = 1) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
    """The test images of a run in the order of the set, and which of them it got right; None without answers.

    top   the right class is among that many most likely ones
    """
    found = Run(run).answers()
    if found is None:
        return None
    found = found.by_index()
    return found.index, found.correct if top == 1 else found.rank < top


def reader_of(metric: Metric) -> Correct:
    """How a metric is counted image by image; a metric that is no count of images has no interval over them."""
    top = COUNTED.get(metric.name)
    return (lambda run: None) if top is None else functools.partial(read_correct, top=top)


def compare_arms(
    frame: pd.DataFrame, metric: Metric = ACCURACY, *, reference: str | None = None, correct: Correct | None = None
) -> pd.DataFrame:
    """One row per pair of arms, data set and amount: arm minus other, over the seeds that both have.

    reference      compare every other arm with this one; otherwise all pairs, or with more than six arms all with the first
    correct        the path of a run -> its test images, and which of them it got right; read from the runs if not given

    Columns: n seeds; arm_value, other_value over these; difference; seeds_low, seeds_high and p of the paired t test;
    p_holm, corrected over all rows of this table; images_low, images_high of the paired bootstrap over test images;
    detectable and detectable_family, the smallest difference found with a power of 80 % by a single test and at the
    strictest step of the correction; relative, the difference as a share of the other's score (the gap of ConViT's table);
    supported, whether seeds and test images both support the difference (see `headline`).
    """
    rows = prepare(frame, metric)
    read = correct or reader_of(metric)
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
            row, test = compare_pair(cell, pair, read, counted=metric.name in COUNTED)
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


def compare_pair(
    cell: pd.DataFrame, pair: tuple[str, str], correct: Correct, *, counted: bool
) -> tuple[dict[str, Any], Paired]:
    """The row of two arms at one amount of one data set, and its test; counted: the scores are counts of test images."""
    one, two = (cell[cell["arm"] == name].set_index("seed") for name in pair)
    seeds = one.index.intersection(two.index)
    a, b = (runs.loc[seeds, "value"].to_numpy(float) for runs in (one, two))
    n_test = float(pd.to_numeric(one["n_test"]).min())
    test = paired_t(a, b, grain=1 / (n_test * 6**0.5) if counted and n_test > 0 else 0.0)
    images, n_images = NONE, 0
    if len(seeds):
        images, n_images = over_images(list(one.loc[seeds, "run"]), list(two.loc[seeds, "run"]), correct)
    means = (a.mean(), b.mean()) if len(seeds) else (np.nan, np.nan)
    row = (
        {"arm": pair[0], "other": pair[1], "n": len(seeds), "arm_value": means[0], "other_value": means[1]}
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
