"""Accuracy against the number of training images: interpolated, and fitted.

**How much data does the other arm need to match?** The mean accuracies of the other arm are joined by straight lines over
log(images); the answer is where that line first reaches the target. Its interval is over seeds: every mean is drawn from its
t distribution (mean + t · s/√n, n − 1 degrees of freedom), and the answer is found again for each draw.

**Fitted curve**: the error falls as a power of the amount of data,

    e(n) = c + a n^−b,     a > 0, c ≥ 0,

fitted to log e of all single runs by least squares. With fewer than four amounts of data c = 0: a straight line of log e over
log n, with the exact bands of linear regression, and b may come out negative. Otherwise b ≥ 0, and bands come from the
linearized fit (delta method, t quantiles). The residual spread contains the misfit of the formula as well as the seeds. Below
three amounts of data or five runs there is no fit: two points lie on every curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import curve_fit

from softbias.stats import LEVEL, NONE, Interval
from softbias.study.comparison import prepare
from softbias.study.headline import each
from softbias.study.metric import ACCURACY, Metric

Floats = NDArray[np.float64]
LEAST_SIZES = 3
MATCHING = [
    "data", "amount", "arm", "other", "n", "target", "needed", "low", "high", "smallest", "largest", "supported",
]  # fmt: skip
LEAST_DF = 3  # residual degrees of freedom; with fewer a band is wider than the chart
DRAWS = 40_000  # with three seeds the tails are heavy: with 4,000 draws an edge still depends on the generator's seed


@dataclass(frozen=True)
class Needed:
    """Amount of data at which a curve reaches a target; −inf: below the smallest measured amount, inf: beyond the largest.

    low, high   95 % interval over seeds; nan with a single seed
    """

    amount: float
    low: float
    high: float


def crossing(amounts: Floats, accuracies: Floats, target: float | Floats) -> Floats:
    """Where curves (draws, sizes) first reach their targets (draws,); −inf if at once, inf if never."""
    curves = np.atleast_2d(np.asarray(accuracies, float))  # (draws, sizes)
    goal = np.broadcast_to(np.asarray(target, float), len(curves))
    logs = np.log(np.asarray(amounts, float))
    reached = curves >= goal[:, None]
    first = np.where(reached.any(1), reached.argmax(1), -1)
    result = np.where(first < 0, np.inf, -np.inf)
    inner = np.flatnonzero(first > 0)
    right, left = first[inner], first[inner] - 1
    below, above = curves[inner, left], curves[inner, right]
    share = (goal[inner] - below) / (above - below)  # above ≥ goal > below
    result[inner] = np.exp(logs[left] + share * (logs[right] - logs[left]))
    return result


def data_to_match(
    amounts: Sequence[float],
    seeds: Sequence[Sequence[float]],
    target: Sequence[float],
    *,
    draws: int = DRAWS,
) -> Needed:
    """How much data the curve needs to reach the mean of the target.

    amounts   of training data, in any unit
    seeds     for every amount the accuracies of the curve's runs
    target    the accuracies of the runs to be matched
    """
    order = np.argsort(amounts)
    x = np.asarray(amounts, float)[order]
    cells = [np.asarray(seeds[position], float) for position in order]
    goal = np.asarray(target, float)
    amount = float(crossing(x, np.array([cell.mean() for cell in cells]), goal.mean())[0])
    if min(len(goal), *(len(cell) for cell in cells)) < 2:
        return Needed(amount, *NONE)
    rng = np.random.default_rng(0)

    def means(cell: Floats) -> Floats:
        spread = float(cell.std(ddof=1) / np.sqrt(len(cell)))
        drawn: Floats = cell.mean() + spread * rng.standard_t(len(cell) - 1, draws)
        return drawn

    found = crossing(x, np.stack([means(cell) for cell in cells], 1), means(goal))
    return Needed(amount, *quantiles(found))


def quantiles(found: Floats) -> Interval:
    """Quantiles of values that may be infinite, so that none is interpolated between two of them."""
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return float(low), float(high)


@dataclass(frozen=True)
class Fitted:
    """log e(n) = log(c + a n^−b), with the gradient and the covariance of its parameters for bands."""

    a: float
    b: float
    c: float
    b_interval: Interval
    sd: float  # of log e
    df: int
    gradient: Callable[[Floats], Floats]
    covariance: Floats

    def error(self, n: ArrayLike) -> Floats:
        return self.c + self.a * np.asarray(n, float) ** -self.b

    def band(self, n: ArrayLike) -> tuple[Floats, Floats]:
        """Interval of the accuracy of the mean curve at n."""
        x = np.atleast_1d(np.asarray(n, float))
        slope = self.gradient(x)  # (points, parameters)
        spread = np.sqrt(np.einsum("pi,ij,pj->p", slope, self.covariance, slope))
        half = float(stats.t.ppf(0.5 + LEVEL / 2, self.df)) * spread
        logs = np.log(self.error(x))
        return 1 - np.minimum(np.exp(logs + half), 1.0), 1 - np.exp(logs - half)


def fit_curve(amounts: ArrayLike, accuracies: ArrayLike) -> Fitted | None:
    """The fitted curve through single runs, or None where there are too few of them or a run without any error."""
    x, errors = np.asarray(amounts, float), 1 - np.asarray(accuracies, float)
    good = np.isfinite(errors)
    x, errors = x[good], errors[good]
    sizes = len(np.unique(x))
    if sizes < LEAST_SIZES or len(x) - 2 < LEAST_DF or (errors <= 0).any():
        return None
    straight = fit_straight(x, np.log(errors))
    enough = sizes > LEAST_SIZES and len(x) - 3 >= LEAST_DF
    return (fit_floor(x, np.log(errors), straight) if enough else None) or straight


def fit_straight(x: Floats, logs: Floats) -> Fitted:
    """log e = log a − b log n: ordinary least squares."""
    design = np.stack([np.ones_like(x), -np.log(x)], 1)
    (level, b), *_ = np.linalg.lstsq(design, logs)
    df = len(x) - 2
    variance = float(((logs - design @ [level, b]) ** 2).sum() / df)
    covariance = variance * np.linalg.inv(design.T @ design)

    def gradient(n: Floats) -> Floats:
        return np.stack([np.ones_like(n), -np.log(n)], 1)

    half = float(stats.t.ppf(0.5 + LEVEL / 2, df) * np.sqrt(covariance[1, 1]))
    return Fitted(float(np.exp(level)), float(b), 0.0, (b - half, b + half), variance**0.5, df, gradient, covariance)


def fit_floor(x: Floats, logs: Floats, start: Fitted) -> Fitted | None:
    """The same with a floor c; None where the data show no floor, or cannot tell."""

    def model(n: Floats, level: float, b: float, c: float) -> Any:
        return np.log(c + np.exp(level) * n**-b)

    least = float(np.exp(logs).min())
    guess = [np.log(start.a), max(start.b, 0.05), 0.3 * least]
    try:
        found, covariance = curve_fit(model, x, logs, guess, bounds=([-np.inf, 0, 0], [np.inf, 10, least]))
    except (RuntimeError, ValueError):
        return None
    level, b, c = (float(value) for value in found)
    if not np.isfinite(covariance).all() or c < 1e-6 or c > least * (1 - 1e-6):
        return None
    df = len(x) - 3

    def gradient(n: Floats) -> Floats:
        power = np.exp(level) * n**-b
        slope: Floats = np.stack([power, -power * np.log(n), np.ones_like(n)], 1) / (c + power)[:, None]
        return slope

    sd = float(np.sqrt(((logs - model(x, level, b, c)) ** 2).sum() / df))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, df) * np.sqrt(covariance[1, 1]))
    return Fitted(float(np.exp(level)), b, c, (b - half, b + half), sd, df, gradient, np.asarray(covariance))


def matching_data(frame: pd.DataFrame, comparisons: pd.DataFrame, metric: Metric = ACCURACY) -> pd.DataFrame:
    """How much data the weaker arm of each pair needs to match the stronger, as a share of the training images or as a
    number of each class.

    A row for every comparison on a data set with at least two amounts, below the largest amount of the weaker arm.
    `needed` is inf where the weaker arm does not reach the target with all the data that was tried. A metric of which less is
    better has no rows.
    """
    rows = prepare(frame, metric)
    made = []
    for row in each(comparisons) if metric.higher else ():
        same = rows[(rows["data"] == row.data) & ((rows["amount"] > 1) == (row.amount > 1))]  # in the same unit
        better, weaker = (row.arm, row.other) if row.difference >= 0 else (row.other, row.arm)
        curve: dict[Any, list[float]] = {
            amount: cell["value"].tolist() for amount, cell in same[same["arm"] == weaker].groupby("amount")
        }
        if len(curve) < 2 or not row.difference or row.amount == max(curve):
            continue
        target = same[(same["arm"] == better) & (same["amount"] == row.amount)]["value"].tolist()
        found = data_to_match(list(curve), list(curve.values()), target)
        made.append(
            {"data": row.data, "amount": row.amount, "arm": better, "other": weaker, "n": row.n}
            | {"target": float(np.mean(target)), "needed": found.amount, "low": found.low, "high": found.high}
            | {"smallest": min(curve), "largest": max(curve), "supported": row.supported}
        )
    return pd.DataFrame(made, columns=MATCHING)


def curve_fits(frame: pd.DataFrame, metric: Metric = ACCURACY) -> dict[tuple[str, str], Fitted]:
    """(data, arm) -> the fitted learning curve over the number of training images, where there are enough runs for one.

    Only a share of right answers has an error that can fall to zero.
    """
    fits: dict[tuple[str, str], Fitted] = {}
    if not metric.share:
        return fits
    for (data, arm), runs in prepare(frame, metric).groupby(["data", "arm"], sort=False):
        found = fit_curve(runs["n_train"].to_numpy(float), runs["value"].to_numpy(float))
        if found is not None:
            fits[str(data), str(arm)] = found
    return fits
