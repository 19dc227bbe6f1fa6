"""Intervals and tests for two sources of variation, which are kept apart.

    over seeds         another seed would give another model          t interval, paired t test (n seeds)
    over test images   other test images would give another score     Wilson, paired bootstrap over images (n images)

Neither contains the other: the first is about the training, with the test images held fixed, the second about the test
images, with the trained models held fixed.

The distributions, the bootstrap over seeds and the root finder are scipy's. Three functions are our own, because scipy's are
for other cases: `wilson` takes means of counts, `paired_t` has a least spread, and `image_bootstrap` draws counts of the few
distinct values, which is hundreds of times as fast as drawing images. Holm's correction is not in scipy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import brentq

from softbias.errors import SoftbiasError

Interval = tuple[float, float]
NONE: Interval = (float("nan"), float("nan"))
BOOTSTRAP_FROM = 10  # a bootstrap over fewer seeds is too narrow: with 3 values it reaches 95 % in about 75 % of cases
LEVEL = 0.95  # of all intervals
RESAMPLES = 10_000
POWER = 0.8


def t_interval(values: ArrayLike) -> Interval:
    """mean ± t · s / √n, for the mean over seeds; (nan, nan) of a single value.

    >>> [round(edge, 3) for edge in t_interval([0.70, 0.72, 0.74])]
    [0.67, 0.77]
    """
    x = np.asarray(values, float)
    if len(x) < 2:
        return NONE
    half = stats.t.ppf(0.5 + LEVEL / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return float(x.mean() - half), float(x.mean() + half)


def bootstrap_interval(values: ArrayLike) -> Interval:
    """Percentile bootstrap of the mean over seeds; refused below ten of them, where it would be too narrow."""
    x = np.asarray(values, float)
    if len(x) < BOOTSTRAP_FROM:
        raise SoftbiasError(
            f"a bootstrap over seeds needs at least {BOOTSTRAP_FROM} of them, but there are {len(x)}; take t_interval"
        )
    rng = np.random.default_rng(0)
    found = stats.bootstrap((x,), np.mean, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile", rng=rng)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def image_bootstrap(differences: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Percentile bootstrap over test images of a mean difference; both models see the same resampled images.

    differences   (n,) per image: 1 if only the one is right, −1 if only the other is; or the mean of that over seeds

    There are few distinct values, so a resample is drawn as their counts (multinomial), which has the same distribution.
    """
    values, counts = np.unique(np.asarray(differences, float), return_counts=True)
    n = int(counts.sum())
    if n < 2:
        return NONE
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=resamples)  # (resamples, distinct)
    low, high = np.quantile(drawn @ values / n, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def wilson(right: float, n: int) -> Interval:
    """Wilson's interval for a share: it stays inside [0, 1], and holds near the ends, too.

    right   a count, or the mean of counts over several runs (scipy's `binomtest` has the same interval for counts alone)

    >>> [round(edge, 3) for edge in wilson(90, 100)]
    [0.826, 0.945]
    """
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    share = right / n
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return (float(center - half) if right else 0.0), (float(center + half) if right < n else 1.0)  # exact at the ends


@dataclass(frozen=True)
class Paired:
    """A mean of paired differences, d̄, with its t interval and the p value of d̄ = 0 over n pairs."""

    difference: float
    low: float
    high: float
    p: float
    sd: float
    n: int


def paired_t(one: ArrayLike, other: ArrayLike, *, grain: float = 0.0) -> Paired:
    """t = d̄ √n / s with n − 1 degrees of freedom, for differences of runs that share a seed.

    grain   the least s. Accuracies over m images are multiples of 1/m, so that three differences may happen to be equal, and
            s = 0 would call anything significant. Rounding two numbers to 1/m alone gives s = 1/(m √6).
    """
    d = np.asarray(one, float) - np.asarray(other, float)
    n = len(d)
    if n < 2:
        return Paired(float(d.mean()) if n else float("nan"), *NONE, float("nan"), float("nan"), n)
    mean, sd = float(d.mean()), max(float(d.std(ddof=1)), grain)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * sd / np.sqrt(n)
    if sd == 0:
        p = 1.0 if mean == 0 else float("nan")
    else:
        p = float(2 * stats.t.sf(abs(mean) * np.sqrt(n) / sd, n - 1))
    return Paired(mean, mean - half, mean + half, p, sd, n)


def holm(p: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's adjusted p values: sorted, the i-th of m (from 0) times m − i, never falling, at most 1. nan: not tested.

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, float)
    adjusted = np.full(len(given), np.nan)
    tested = np.flatnonzero(~np.isnan(given))
    order = tested[np.argsort(given[tested], kind="stable")]
    steps = given[order] * (len(order) - np.arange(len(order)))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def smallest_detectable(sd: float, n: int, *, alpha: float = 0.05) -> float:
    """The true difference that a paired t test over n pairs with this spread would find with a power of 80 %.

    Solves P(|Z + δ √n / s| > t_crit · S) = POWER for a normal Z and S² = χ² / df with df = n − 1, integrated over the
    quantiles of S (scipy's noncentral t is nan for some of the values that two and three seeds lead to).
    """
    if n < 2 or not np.isfinite(sd):
        return float("nan")
    if sd == 0:
        return 0.0
    df = n - 1
    critical = float(stats.t.ppf(1 - alpha / 2, df))

    nodes, weights = np.polynomial.legendre.leggauss(256)  # on (−1, 1)
    spread = critical * np.sqrt(stats.chi2.ppf((nodes + 1) / 2, df) / df)

    def short(noncentrality: float) -> float:
        found = stats.norm.sf(spread - noncentrality) + stats.norm.cdf(-spread - noncentrality)
        return float(found @ weights) / 2 - POWER

    top = critical + 2.0
    while short(top) < 0:
        top *= 1.5
    return float(brentq(short, 1e-9, top) * sd / np.sqrt(n))
