"""Tables of a study: what every arm reached, how arms differ, and what may be said about it.

A frame has one row per finished run (`softbias.study.frame.runs_frame`). A cell is one arm on one data set at one fraction;
its runs differ in their seed. Differences are taken between runs of the same seed. See `chance` for the two sources of
chance; columns are named after theirs: seeds_low, seeds_high and images_low, images_high, all 95 %.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
from softbias.study.headline import ALPHA, LEAST_SEEDS, Headline, each, headline
from softbias.study.learning_curve import data_to_match, fit_curve

__all__ = ["Headline", "compare_arms", "curve_fits", "headline", "matching_data", "prepare", "summarize"]

CELL = ["data", "train_fraction", "arm"]
MEANS = ["top5", "balanced_accuracy", "macro_f1", "baseline_accuracy", "images_per_second", "seconds", "peak_memory"]
SAME = ["model", "n_train", "n_test", "parameters", "macs", "steps", "epochs"]
ALL_PAIRS_UP_TO = 6  # arms; with more of them each is compared with the first only, or the correction leaves nothing
Correct = Callable[[str], "tuple[NDArray[np.int64], NDArray[np.bool_]] | None"]


def prepare(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs that can be compared: trained on classes, with a test score, one per cell and seed (the last finished).

    Arms keep the order in which they first appear; the first is the reference where one is needed.
    """
    rows = frame[~frame["pretext"].astype(bool) & frame["accuracy"].notna()]
    if "finished" in rows:
        rows = rows.sort_values("finished", kind="stable", na_position="first")
    rows = rows.drop_duplicates([*CELL, "seed"], keep="last")
    rank = {arm: place for place, arm in enumerate(frame["arm"].unique())}
    sets = {name: place for place, name in enumerate(frame["data"].unique())}
    order = rows.assign(_arm=rows["arm"].map(rank), _data=rows["data"].map(sets))
    order = order.sort_values(["_data", "train_fraction", "_arm", "seed"], kind="stable")
    return order.drop(columns=["_arm", "_data"]).reset_index(drop=True)


def summarize(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: mean accuracy, number of seeds, and an interval for each source of chance.

    seeds_low, seeds_high     t interval of the mean over seeds; nan with one seed
    boot_low, boot_high       bootstrap over seeds, from ten of them; nan otherwise
    images_low, images_high   Wilson's interval of the mean accuracy for n_test pictures. Seeds share the test pictures, so
                              they do not make them more; for a mean over seeds this is a little wider than needed
    """
    made: list[dict[str, Any]] = []
    for (data, fraction, arm), cell in prepare(frame).groupby(CELL, sort=False):
        scores = cell["accuracy"].to_numpy(float)
        n_test = int(cell["n_test"].iloc[0]) if pd.notna(cell["n_test"].iloc[0]) else 0
        row: dict[str, Any] = {"data": data, "train_fraction": fraction, "arm": arm, "n": len(cell), "accuracy": scores.mean()}
        row["sd"] = scores.std(ddof=1) if len(scores) > 1 else np.nan
        row["seeds_low"], row["seeds_high"] = t_interval(scores)
        row["boot_low"], row["boot_high"] = bootstrap_interval(scores) if len(scores) >= BOOTSTRAP_FROM else NONE
        row["images_low"], row["images_high"] = images_interval(float(scores.mean()), n_test) if n_test else NONE
        row |= {name: cell[name].iloc[0] for name in SAME if name in cell}
        row |= {name: pd.to_numeric(cell[name]).mean() for name in MEANS if name in cell}
        made.append(row)
    return pd.DataFrame(made)


def images_interval(share: float, n: int) -> Interval:
    """Wilson's interval for a mean over seeds, which may lie between two counts.

    >>> [round(edge, 4) for edge in images_interval(0.6845, 1000)]
    [0.655, 0.7126]
    """
    return wilson(round(share * n, 6), n)


def read_correct(run: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
    """Which test pictures a run was tested on, and which it got right, in the order of the pictures; None without a file."""
    found = Run(run).predictions()
    if found is None:
        return None
    found = found.by_index()
    return found.index, found.correct


def compare_arms(
    frame: pd.DataFrame, *, reference: str | None = None, metric: str = "accuracy", correct: Correct = read_correct
) -> pd.DataFrame:
    """One row per pair of arms, data set and fraction: arm minus other, over the seeds they share.

    reference      compare every other arm with this one; otherwise all pairs, or with more than six arms all with the first
    metric         the column that is compared
    correct        how to get a run's right and wrong test pictures, by its path

    Columns: n seeds; arm_accuracy, other_accuracy over these; difference; seeds_low, seeds_high and p of the paired t test;
    p_holm, corrected over all rows of this table; images_low, images_high of the paired bootstrap over test pictures;
    detectable and detectable_family, the smallest difference found with a power of 80 % by a single test and at the
    strictest step of the correction; relative, the difference as a share of the other's score (the gap of ConViT's table);
    shown, whether the difference counts as shown (see `headline`).
    """
    rows = prepare(frame)
    made: list[dict[str, Any]] = []
    there = set(rows["arm"])
    arms = [arm for arm in dict.fromkeys(frame["arm"]) if arm in there]  # a pre-training is nobody's reference
    if reference is not None and reference not in arms:
        from softbias.errors import unknown_name

        raise unknown_name("arm", reference, arms)
    if reference is None and len(arms) > ALL_PAIRS_UP_TO:
        reference = arms[0]
    tests: list[Paired] = []
    for (data, fraction), cell in rows.groupby(["data", "train_fraction"], sort=False):
        here = [arm for arm in arms if arm in set(cell["arm"])]
        for other, arm in combinations(here, 2):
            if reference not in (None, arm, other):
                continue
            if arm == reference:
                arm, other = other, arm
            one, two = (cell[cell["arm"] == name].set_index("seed") for name in (arm, other))
            seeds = one.index.intersection(two.index)
            a, b = one.loc[seeds, metric].to_numpy(float), two.loc[seeds, metric].to_numpy(float)
            n_test = float(pd.to_numeric(one["n_test"]).min())
            test = paired_t(a, b, grain=1 / (n_test * 6**0.5) if n_test > 0 else 0.0)
            tests.append(test)
            images, n_images = NONE, 0
            if metric == "accuracy" and len(seeds):
                images, n_images = over_images(list(one.loc[seeds, "run"]), list(two.loc[seeds, "run"]), correct)
            means = (a.mean(), b.mean()) if len(seeds) else (np.nan, np.nan)
            made.append(
                {"data": data, "train_fraction": fraction, "arm": arm, "other": other, "n": len(seeds)}
                | {"arm_accuracy": means[0], "other_accuracy": means[1], "difference": test.difference}
                | {"seeds_low": test.low, "seeds_high": test.high, "sd": test.sd, "p": test.p}
                | {"images_low": images[0], "images_high": images[1], "n_images": n_images}
                | {"relative": test.difference / means[1] if means[1] else np.nan}
            )
    columns = [
        "data",
        "train_fraction",
        "arm",
        "other",
        "n",
        "arm_accuracy",
        "other_accuracy",
        "difference",
        "seeds_low",
        "seeds_high",
    ]
    columns += ["sd", "p", "images_low", "images_high", "n_images", "relative"]
    table = pd.DataFrame(made, columns=columns)
    table["p_holm"] = holm(table["p"].to_numpy(float))
    family = max(1, int(table["p"].notna().sum()))
    table["family"] = family
    table["detectable"] = [smallest_detectable(test.sd, test.n) for test in tests]
    table["detectable_family"] = [smallest_detectable(test.sd, test.n, alpha=ALPHA / family) for test in tests]
    beyond = (table["images_low"] > 0) | (table["images_high"] < 0) | table["images_low"].isna()
    table["shown"] = (table["n"] >= LEAST_SEEDS) & (table["p_holm"] < ALPHA) & beyond
    return table


def over_images(ones: list[str], others: list[str], correct: Correct) -> tuple[Interval, int]:
    """Interval over test pictures of the difference, averaged over seeds; none where the runs saw different pictures."""
    total: Any = 0.0
    places: NDArray[np.int64] | None = None
    for one, other in zip(ones, others, strict=True):
        pair = [correct(run) for run in (one, other)]
        if pair[0] is None or pair[1] is None:
            return NONE, 0
        (here, right), (there, its) = pair[0], pair[1]
        places = here if places is None else places
        if not np.array_equal(here, there) or not np.array_equal(here, places):
            return NONE, 0
        total = total + right.astype(float) - its  # (n,)
    assert places is not None
    differences = np.round(np.asarray(total) / len(ones), 12)  # equal values stay equal
    return image_bootstrap(differences), len(places)


def matching_data(frame: pd.DataFrame, comparisons: pd.DataFrame) -> pd.DataFrame:
    """How much data the weaker arm of each pair needs to match the stronger, as a share of the training pictures.

    A row for every comparison whose data set has at least two fractions, in which the weaker arm reaches further than the
    fraction itself; needed is inf where the weaker arm does not get there with all the data that was tried.
    """
    rows = prepare(frame)
    made = []
    for row in each(comparisons):
        same = rows[rows["data"] == row.data]
        better, weaker = (row.arm, row.other) if row.difference >= 0 else (row.other, row.arm)
        curve: dict[Any, list[float]] = {
            fraction: cell["accuracy"].tolist() for fraction, cell in same[same["arm"] == weaker].groupby("train_fraction")
        }
        if len(curve) < 2 or not row.difference or row.train_fraction == max(curve):
            continue
        target = same[(same["arm"] == better) & (same["train_fraction"] == row.train_fraction)]["accuracy"].tolist()
        found = data_to_match(list(curve), list(curve.values()), target)
        made.append(
            {"data": row.data, "train_fraction": row.train_fraction, "arm": better, "other": weaker, "n": row.n}
            | {"target": float(np.mean(target)), "needed": found.amount, "low": found.low, "high": found.high}
            | {"smallest": min(curve), "largest": max(curve), "shown": row.shown}
        )
    columns = ["data", "train_fraction", "arm", "other", "n", "target", "needed", "low", "high", "smallest", "largest", "shown"]
    return pd.DataFrame(made, columns=columns)


def curve_fits(frame: pd.DataFrame) -> dict[tuple[str, str], Any]:
    """(data, arm) -> fitted learning curve over the number of training pictures, where there is enough to fit."""
    fits = {}
    for (data, arm), runs in prepare(frame).groupby(["data", "arm"], sort=False):
        found = fit_curve(runs["n_train"].to_numpy(float), runs["accuracy"].to_numpy(float))
        if found is not None:
            fits[str(data), str(arm)] = found
    return fits
