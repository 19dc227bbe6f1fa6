"""The drawings on the page of a run: coordinates of curves for the template, and the confusion matrix as a picture.

The curves are drawn by the template as SVG inside the page, so that style sheets color them in light and dark.

Shapes: n test pictures, K classes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.stats import wilson
from softbias.training.evaluate import Labels, Probabilities

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 220, 48, 10, 10, 36  # of a chart and its margins
NAMED, COUNTED = 150, 25  # up to so many classes the confusion matrix has names, and counts in its cells
LONGEST = 28  # characters of a class name beside the matrix
DPI = 144
PAPER_INK_RIGHT_WRONG = {
    "light": ("#ffffff", "#1b1f24", "#0b5cad", "#c24e00"),
    "dark": ("#14171b", "#e6e8eb", "#6cb2ff", "#ffa366"),
}


def curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Charts of loss, accuracy, learning rate and the terms of regularizers over the epochs."""
    wanted: dict[str, dict[str, str]] = {
        "Loss": {"training": "loss", "validation": "val_loss"},
        "Accuracy": {"training": "accuracy", "validation": "val_accuracy"},
        "Learning rate": {"learning rate": "lr"},
    }
    if any("task_loss" in row for row in rows):  # the terms of a regularized loss, each as it is before its weight
        wanted["Task loss alone"] = {"term": "task_loss"}
    for key in dict.fromkeys(key for row in rows for key in row if key.endswith("_active")):
        name = key.removesuffix("_active")
        wanted[f"{name} loss, unweighted"] = {"term": f"{name}_loss"}
        wanted[f"Pictures with {name} loss > 0"] = {"share": key}
    made = []
    for title, lines in wanted.items():
        series = {
            name: [(row["epoch"], row[key]) for row in rows if row.get(key) is not None and np.isfinite(row[key])]
            for name, key in lines.items()
        }
        series = {name: points for name, points in series.items() if points}
        if series:
            made.append(chart(title, series, shares=title == "Accuracy" or "share" in lines))
    return made


def chart(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, shares: bool = False) -> dict[str, Any]:
    """A line chart from 0 upward: ticks and points in the coordinates of the SVG."""
    from matplotlib.ticker import MaxNLocator

    xs, ys = ([point[axis] for points in series.values() for point in points] for axis in (0, 1))
    low, high = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, min(xs) + 1)
    levels = MaxNLocator(4).tick_values(0, 1 if shares and max(ys) > 0.8 else max(*ys, 1e-12))
    top = float(levels[-1])

    def across(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (x - low) / (high - low), 1)

    def up(y: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / top, 1)

    def said(y: float) -> str:
        return f"{y:.0%}" if shares else f"{y:.3g}"

    ends = {name: (said(points[0][1]), said(points[-1][1])) for name, points in series.items()}
    told = "; ".join(f"{name} {first} at first, {last} at last" for name, (first, last) in ends.items())
    epochs = MaxNLocator(5, integer=True).tick_values(low, high)
    return {
        "title": title,
        "alt": f"{title} by epoch: {told}",
        "x": [(across(x), f"{x:g}") for x in epochs if max(low, 1) <= x <= high],
        "y": [(up(y), said(y)) for y in levels],
        "lines": {name: [(across(x), up(y)) for x, y in points] for name, points in series.items()},
    }


def reliability(probabilities: Probabilities, labels: Labels, bins: int = 10) -> dict[str, Any]:
    """How often the model is right, by how sure it is: per bin the mean confidence, the accuracy and its interval."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = []
    for number in np.unique(place):
        chosen = place == number
        n, hits = int(chosen.sum()), int(right[chosen].sum())
        low, high = wilson(hits, n)
        rows += [{"bin": int(number), "confidence": float(confidence[chosen].mean()), "accuracy": hits / n, "n": n}]
        rows[-1] |= {"low": low, "high": high}
    gap = float(confidence.mean() - right.mean())
    word = "about right on average" if abs(gap) < 0.02 else "too sure of itself" if gap > 0 else "not sure enough of itself"
    most = max(row["n"] for row in rows)
    return {"bins": rows, "width": 1 / bins, "most": most, "mean": float(confidence.mean()), "word": word}


def confusions(matrix: NDArray[np.int64], names: Sequence[str], most: int = 12) -> list[dict[str, Any]]:
    """The most frequent mistakes: true class, predicted class, how many, of how many."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = [place for place in np.argsort(-wrong, axis=None, kind="stable")[:most] if wrong.flat[place]]
    pairs = [divmod(int(place), len(names)) for place in order]
    return [{"true": names[a], "predicted": names[b], "n": int(wrong[a, b]), "of": int(matrix[a].sum())} for a, b in pairs]


def draw_confusion(matrix: NDArray[np.int64], names: Sequence[str], theme: str = "light") -> bytes:
    """The confusion matrix as a PNG: rows are the truth, columns the prediction.

    A cell's strength is the square root of its share of the row, so that single mistakes stay visible among a hundred
    classes; the right ones have a color of their own.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    count = len(names)
    paper, ink, right, wrong = (np.array(to_rgb(color)) for color in PAPER_INK_RIGHT_WRONG[theme])
    cell = float(np.clip(6.5 / count, 0.15, 0.6)) if count <= NAMED else 15 / count  # inches
    shares = np.sqrt(matrix / np.maximum(matrix.sum(1, keepdims=True), 1))[..., None]  # (K, K, 1)
    hue = np.where(np.eye(count, dtype=bool)[..., None], right, wrong)  # (K, K, 3)
    figure = Figure((cell * count, cell * count), dpi=DPI, facecolor=tuple(paper))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(paper + shares * (hue - paper), interpolation="nearest")
    size = min(9.0, 72 * cell * 0.6)
    heading: dict[str, Any] = {"color": tuple(ink), "fontsize": 10 if count <= NAMED else 14}
    axes.set_ylabel("true class", **heading)
    axes.set_xlabel("predicted class", **heading)
    axes.spines[:].set_color(tuple(0.65 * paper + 0.35 * ink))
    if count <= NAMED:
        short = [name if len(name) <= LONGEST else name[: LONGEST - 1] + "…" for name in names]
        style: dict[str, Any] = {"fontsize": size, "color": tuple(ink), "parse_math": False}
        axes.set_xticks(range(count), short, rotation=90, **style)
        axes.set_yticks(range(count), short, **style)
        axes.tick_params(length=0, labeltop=count > COUNTED)
        if count > COUNTED:
            for edge in np.arange(9.5, count - 0.5, 10):
                for draw in (axes.axhline, axes.axvline):
                    draw(edge, color=tuple(ink), linewidth=0.4, alpha=0.35)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    if count <= COUNTED:
        for row, column in np.argwhere(matrix):
            strong = float(shares[row, column, 0]) > 0.62
            color = tuple(paper if strong else ink)
            axes.text(column, row, f"{matrix[row, column]}", ha="center", va="center", fontsize=size, color=color)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the tables show names in every script
        figure.savefig(stream, format="png", bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return stream.getvalue()
