"""Charts of what was computed over runs: fitted curves and paired differences. Accuracies are drawn in percent."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.format import share
from softbias.study.headline import each
from softbias.study.learning_curve import Fitted
from softbias.study.report.chart import Chart, Series
from softbias.study.report.gathering import Material
from softbias.study.report.static import short_number


def slug(text: str) -> str:
    """
    >>> slug("my/pictures set")
    'my-pictures-set'
    """
    return re.sub(r"[^\w.]+", "-", str(text)).strip("-")


def part(fraction: float) -> str:
    return "all data" if fraction >= 1 else f"{share(fraction)} of the data"


def room(values: Any, share: float = 0.08) -> tuple[float, float]:
    """A range that holds the values, with a margin."""
    kept = np.asarray([value for value in values if np.isfinite(value)], float)
    low, high = float(kept.min()), float(kept.max())
    margin = max(share * (high - low), 1.0)
    return max(low - margin, 0.0) if low >= 0 else low - margin, high + margin


def fitted(material: Material, fits: dict[tuple[str, str], Fitted], data: str) -> Chart | None:
    """Error against training pictures, both as powers, with the fitted curves and their bands."""
    here = {arm: fits[data, arm] for arm in material.arms if (data, arm) in fits}
    if not here:
        return None
    series, rows = [], []
    runs = material.runs[material.runs["data"] == data]
    least, most = float(runs["n_train"].min()), float(runs["n_train"].max())
    grid = np.geomspace(least, most, 40)
    for arm, fit in here.items():
        number = material.number(arm)
        ours = runs[runs["arm"] == arm]
        says = [f"{arm}, seed {row.seed}: error {100 * (1 - row.accuracy):.1f} %" for row in each(ours)]
        series.append(
            Series("dots", arm, ours["n_train"].tolist(), (100 * (1 - ours["accuracy"])).tolist(), number, hover=says)
        )
        low, high = fit.band(grid)
        error = 100 * fit.error(grid)
        says = [f"{arm}, {n:,.0f} pictures<br>fitted error {e:.1f} %" for n, e in zip(grid, error, strict=True)]
        edges = {"low": (100 * (1 - high)).tolist(), "high": (100 * (1 - low)).tolist()}
        series.append(Series("fit", arm, grid.tolist(), error.tolist(), number, **edges, hover=says, label=arm))
        rows += [
            {"data": data, "arm": arm, "n_train": n, "error": e, "low": 1 - h, "high": 1 - a}
            for n, e, a, h in zip(grid, fit.error(grid), low, high, strict=True)
        ]
    heights = [value for one in series for value in one.y]
    bottom, top = min(heights), max(heights)
    edges_of = [value for one in series if one.low is not None for value in (*one.low, *(one.high or ()))]
    bottom, top = max(min(bottom, *edges_of), 0.8 * bottom), min(max(top, *edges_of), 1.25 * top)
    sizes = runs.groupby("train_fraction")["n_train"].first()
    slopes = "; ".join(f"{arm} falls with exponent {fit.b:.2f}" for arm, fit in here.items())
    return Chart(
        key=f"fitted-curve-{slug(data)}",
        title="Fitted error by amount of training data",
        x_title="training pictures",
        y_title="test error",
        series=series,
        table=pd.DataFrame(rows),
        alt=f"Fitted learning curves on {data}: {slopes}",
        x_log=True,
        y_log=True,
        x_ticks=[(float(n), short_number(float(n))) for n in sorted(set(sizes))],
        y_ticks=[(level, f"{level:g} %") for level in levels(bottom, top)],
        y_range=(bottom / 1.04, top * 1.04),
        height=380,
        wide=True,
        arms=material.arms,
    )


def levels(low: float, high: float) -> list[float]:
    """Readable values between two on a logarithmic axis.

    >>> levels(18, 45)
    [20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    """
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)):
        found = [s * 10.0**power for power in range(-3, 4) for s in steps if low / 1.02 <= s * 10.0**power <= high * 1.02]
        if len(found) >= 4:
            return found
    return found or [low, high]


def differences(material: Material, comparisons: pd.DataFrame, data: str) -> Chart | None:
    """Paired differences as bars over seeds (thick) and over test pictures (thin), one line per pair and fraction."""
    rows = comparisons[(comparisons["data"] == data) & comparisons["difference"].notna()]
    if not len(rows):
        return None
    ordered = list(enumerate(reversed(each(rows))))
    series, ticks, xs = [], [], [0.0]
    for place, row in ordered:
        ticks.append((float(place), f"{row.arm} − {row.other}, {share(row.train_fraction)}"))
        number, other = material.number(row.arm), material.number(row.other)
        x, y = [100 * row.difference], [float(place)]
        says = f"<b>{row.arm} − {row.other}</b>, {part(row.train_fraction)}<br>{100 * row.difference:+.1f} points, n = {row.n}"
        if row.n > 1:
            says += f"<br>over seeds {100 * row.seeds_low:+.1f} to {100 * row.seeds_high:+.1f}"
        if np.isfinite(row.images_low):
            says += f"<br>over test pictures {100 * row.images_low:+.1f} to {100 * row.images_high:+.1f}"
            spans: dict[str, Any] = {"low": [100 * row.images_low], "high": [100 * row.images_high]}
            series.append(Series("span", "test pictures", x, y, number, **spans, also=other))
            xs += [100 * row.images_low, 100 * row.images_high]
        edges: dict[str, Any] = {"low": [100 * row.seeds_low], "high": [100 * row.seeds_high]} if row.n > 1 else {}
        series.append(Series("across", row.arm, x, y, number, **edges, hover=[says], also=other))
        xs += [*x, *((100 * row.seeds_low, 100 * row.seeds_high) if row.n > 2 else ())]
    said = "; ".join(
        f"{text} {one.x[0]:+.1f}" for (_, text), one in zip(ticks, (s for s in series if s.kind == "across"), strict=True)
    )
    low, high = float(np.min(xs)), float(np.max(xs))
    margin = max(1.0, 0.06 * (high - low))
    return Chart(
        key=f"differences-{slug(data)}",
        title="Differences with both intervals",
        x_title="points",
        y_title="",
        series=series,
        table=rows,
        alt=f"Paired differences in points on {data}: {said}",
        y_ticks=ticks,
        x_range=(low - margin, high + margin),
        y_range=(-0.7, len(ordered) - 0.3),
        zero=True,
        height=90 + 30 * len(ordered),
        wide=True,
        arms=material.arms,
    )
