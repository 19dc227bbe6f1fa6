"""The charts on the page of a run: learning curves, the score beside the baseline, calibration, confusions.

Shapes: n test pictures, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.pages.charts import Axis, Chart, Series, linear_levels
from softbias.pages.format import interval, percent, short_number, shortened
from softbias.stats import wilson
from softbias.training.evaluate import Labels, Probabilities

QUARTERS = [(tick, f"{tick:.0%}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]


def curves(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Charts of loss, accuracy, learning rate and the terms of regularizers over the epochs."""
    wanted: dict[str, dict[str, str]] = {
        "Loss": {"training": "loss", "validation": "val_loss"},
        "Accuracy": {"training": "accuracy", "validation": "val_accuracy"},
        "Learning rate": {"learning rate": "lr"},
    }
    if any("task_loss" in row for row in rows):  # the terms of a regularized loss, each before its weight
        wanted["Task loss alone"] = {"term": "task_loss"}
    for key in dict.fromkeys(key for row in rows for key in row if key.endswith("_active")):
        name = key.removesuffix("_active")
        wanted[f"{name} loss, unweighted"] = {"term": f"{name}_loss"}
        wanted[f"Pictures with {name} loss > 0"] = {"share": key}
    made = []
    for title, lines in wanted.items():
        found = {name: points_of(rows, key) for name, key in lines.items()}
        found = {name: points for name, points in found.items() if points}
        if found:
            made.append(curve_chart(title, found, shares=title == "Accuracy" or "share" in lines))
    return made


def points_of(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """The epochs at which a value was recorded, with the value."""
    return [(row["epoch"], row[key]) for row in rows if row.get(key) is not None and np.isfinite(row[key])]


def curve_chart(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], *, shares: bool = False) -> Chart:
    """Lines over the epochs, from zero upward; up to 25 epochs have markers."""

    def words(value: float) -> str:
        return percent(value) if shares else f"{value:.3g}"

    series = []
    for number, (name, points) in enumerate(lines.items()):
        hover = [f"{name}, epoch {x:g}\n{words(y)}" for x, y in points]
        xs, ys = zip(*points, strict=True)
        series.append(Series("line" if len(points) < 25 else "curve", name, xs, ys, number, hover=hover))
    highest = max(max(one.y) for one in series)
    top = 1.0 if highest <= 0 or (shares and highest > 0.8) else 1.04 * highest
    levels = linear_levels(0, top, 4)
    ends = "; ".join(f"{one.name} {words(one.y[0])} at first, {words(one.y[-1])} at last" for one in series)
    return Chart(
        key="".join(letter if letter.isalnum() else "-" for letter in title.lower()),
        title=title,
        series=series,
        x=Axis("epoch", whole=True),
        y=Axis(range=(0, top), ticks=[(level, f"{level:.0%}" if shares else f"{level:.3g}") for level in levels]),
        alt=f"{title} by epoch: {ends}",
        names=list(lines),
        height=250,
    )


def score_chart(test: Mapping[str, Any], baseline: Mapping[str, Any]) -> Chart:
    """The accuracy of the model above that of the baseline, with 95 % intervals."""
    rows = {"this model": test, baseline["name"]: baseline}
    series = []
    for number, (name, row) in enumerate(rows.items()):
        low, high = row["accuracy_interval"]
        hover = [f"{name}\n{percent(row['accuracy'])}\n95 % interval {interval(row['accuracy_interval'])}"]
        series.append(Series("across", name, [row["accuracy"]], [1.0 - number], number, [low], [high], hover))
    ticks = [(1.0 - number, f"{name}: {percent(row['accuracy'])}") for number, (name, row) in enumerate(rows.items())]
    alt = f"Accuracy with 95 % intervals: {'; '.join(text for _, text in ticks)}"
    y = Axis(ticks=[(level, shortened(text, 60)) for level, text in ticks], range=(-0.4, 1.5), categories=True)
    return Chart("score", "Test accuracy", series, Axis(range=(0, 1), ticks=QUARTERS), y, alt, height=150)


@dataclass(frozen=True)
class Reliability:
    """bins: bin, confidence, accuracy, low, high and n of every bin that has pictures; width: of a bin; mean: confidence."""

    bins: list[dict[str, Any]]
    width: float
    mean: float
    word: str

    def charts(self) -> list[Chart]:
        """Accuracy against confidence, and the number of pictures by confidence."""
        xs, ys = ([row[name] for row in self.bins] for name in ("confidence", "accuracy"))
        low, high = ([row[name] for row in self.bins] for name in ("low", "high"))
        hover = [
            f"{percent(row['accuracy'])} right\nmean confidence {percent(row['confidence'])}, n = {row['n']:,}\n"
            f"95 % interval {interval((row['low'], row['high']))}"
            for row in self.bins
        ]
        ideal = Series("reference", "ideal", [0, 1], [0, 1])
        x = Axis("confidence of the prediction", range=(0, 1), ticks=QUARTERS)
        alt = "Reliability diagram: accuracy against confidence in ten bins; the table beside it has the numbers"
        right = Series("upright", "accuracy", xs, ys, 0, low, high, hover)
        y = Axis("accuracy", range=(0, 1), ticks=QUARTERS)
        centers, counts = [self.width * (row["bin"] + 0.5) for row in self.bins], [row["n"] for row in self.bins]
        hover = [
            f"{percent(x - self.width / 2)} to {percent(x + self.width / 2)}\nn = {n:,}"
            for x, n in zip(centers, counts, strict=True)
        ]
        bars = Series("columns", "pictures", centers, counts, hover=hover)
        levels = [(level, short_number(level)) for level in linear_levels(0, max(counts), 2, whole=True)]
        return [
            Chart("reliability", "Accuracy by confidence", [ideal, right], x, y, alt, height=330),
            Chart(
                "confidence",
                "Pictures by confidence",
                [bars],
                x,
                Axis("pictures", range=(0, max(counts)), ticks=levels),
                height=150,
            ),
        ]


def reliability(probabilities: Probabilities, labels: Labels, bins: int = 10) -> Reliability:
    """How often the model is right, by its confidence.  # (n, K), (n,)"""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = []
    for number in np.unique(bin_of):
        chosen = bin_of == number
        n, hits = int(chosen.sum()), int(right[chosen].sum())
        low, high = wilson(hits, n)
        rows += [{"bin": int(number), "confidence": float(confidence[chosen].mean()), "accuracy": hits / n, "n": n}]
        rows[-1] |= {"low": low, "high": high}
    gap = float(confidence.mean() - right.mean())
    word = "about right on average" if abs(gap) < 0.02 else "too sure of itself" if gap > 0 else "not sure enough of itself"
    return Reliability(rows, 1 / bins, float(confidence.mean()), word)


def confusions(matrix: NDArray[np.int64], names: Sequence[str], most: int = 12) -> list[dict[str, Any]]:
    """The most frequent mistakes: true class, predicted class, how many, of how many.  # (K, K)"""
    wrong = matrix - np.diag(np.diag(matrix))
    order = [index for index in np.argsort(-wrong, axis=None, kind="stable")[:most] if wrong.flat[index]]
    pairs = [divmod(int(index), len(names)) for index in order]
    return [{"true": names[a], "predicted": names[b], "n": int(wrong[a, b]), "of": int(matrix[a].sum())} for a, b in pairs]
