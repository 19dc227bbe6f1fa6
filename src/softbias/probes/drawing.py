"""Figures of rows: which rows belong together, and the charts that several probes share. `pages.static` draws them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softbias.pages.charts import Axis, Chart, Series, values_of
from softbias.pages.static import save, sheet
from softbias.probes.rows import Rows, model_label


def through_training(rows: Rows) -> bool:
    """Whether rows were measured at several steps of a training."""
    return len({row.get("step") for row in rows}) > 1


def some_epochs(measured: Iterable[float], most: int) -> list[float]:
    """The first epoch, the last, and some between them; at most as many as are wanted.

    >>> some_epochs(range(0, 101, 10), most=6)
    [0, 20, 40, 60, 80, 100]
    """
    epochs = sorted(set(measured))
    if len(epochs) <= most:
        return epochs
    return [epochs[round(step * (len(epochs) - 1) / (most - 1))] for step in range(most)]


def by_model(rows: Rows) -> dict[str, Rows]:
    """Rows by the name of the model."""
    found: dict[str, Rows] = defaultdict(list)
    for row in rows:
        found[row["model"]].append(row)
    return dict(found)


def latest(rows: Rows) -> dict[str, Rows]:
    """The rows of every model at its last step, by the model's label."""
    found = {}
    for of_model in by_model(rows).values():
        last = max(row.get("step") or 0 for row in of_model)
        kept = [row for row in of_model if (row.get("step") or 0) == last]
        found[model_label(kept[0])] = kept
    return found


def as_matrix(cells: Mapping[tuple[int, int], float]) -> NDArray[np.float64]:
    """Values by (row, column) as an array."""
    height, width = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
    return np.array([[cells[row, column] for column in range(width)] for row in range(height)])


def from_zero(charts: list[Chart]) -> list[Chart]:
    """The charts with one scale from zero, for one quantity in several panels."""
    top = max([value for chart in charts for value in values_of(chart, "y")] + [1e-9])
    return [replace(chart, y=replace(chart.y, range=(0.0, 1.05 * top))) for chart in charts]


def on_one_scale(charts: list[Chart]) -> list[Chart]:
    """The charts with one scale that holds all of their values and a margin, so that small changes can be seen."""
    values = [value for chart in charts for value in values_of(chart, "y")]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.5
    return [replace(chart, y=replace(chart.y, range=(low - margin, high + margin))) for chart in charts]


def by_layer(rows: Rows, folder: Path, stem: str, measures: dict[str, str]) -> list[Path]:
    """A panel per measure: a line per model over its layers, a faint dot per head."""
    models = latest(rows)
    charts = []
    for measure, title in measures.items():
        series = []
        for number, (name, of_model) in enumerate(models.items()):
            chosen = [row for row in of_model if row["measure"] == measure]
            heads = [row for row in chosen if row["head"] is not None]
            shift = 0.12 * (number - (len(models) - 1) / 2)
            dots = [row["layer"] + shift for row in heads]
            series.append(Series("dots", name, dots, [row["value"] for row in heads], number))
            layers = sorted({row["layer"] for row in chosen})
            means = [mean(row["value"] for row in heads if row["layer"] == layer) for layer in layers]
            series.append(Series("line", name, [layer + shift for layer in layers], means, number))
        chart = Chart(measure, "", series, Axis("layer", whole=True), Axis(title), names=list(models), height=300)
        charts += from_zero([chart])
    return [save(sheet(charts), folder, stem)]


def over_training(rows: Rows, folder: Path, stem: str, measure: str, title: str) -> list[Path]:
    """A figure per model, a panel per layer, a line per head over the epochs, and a black one for their mean."""
    made = []
    for name, of_model in by_model(rows).items():
        chosen = [row for row in of_model if row["measure"] == measure and row["head"] is not None]
        if not chosen:
            continue
        charts: list[Chart] = []
        names = [f"head {head}" for head in range(1 + max(row["head"] for row in chosen))]
        for layer in sorted({row["layer"] for row in chosen}):
            series = []
            for head in sorted({row["head"] for row in chosen if row["layer"] == layer}):
                line = sorted((row["epoch"], row["value"]) for row in chosen if row["layer"] == layer and row["head"] == head)
                epochs, values = zip(*line, strict=True)
                series.append(Series("line", names[head], epochs, values, head))
            series.append(mean_line([row for row in chosen if row["layer"] == layer], "mean over heads"))
            y = Axis(title if not charts else "")
            charts.append(Chart(f"layer-{layer}", f"layer {layer}", series, Axis("epoch"), y, names=names))
        heading = f"{name}: {title} through training (black: mean over heads)"
        figure = sheet(from_zero(charts), width=2.3, height=2.3, columns=6, title=heading)
        made.append(save(figure, folder, f"{stem}_training", name))
    return made


def layers_over_training(rows: Rows, folder: Path, stem: str, measure: str, title: str) -> Path:
    """A panel per model, a line per layer over the epochs (its mean over heads), and a black one for the mean over layers."""
    charts: list[Chart] = []
    last = max(row["layer"] for row in rows)
    names = [f"layer {layer}" for layer in range(last + 1)]
    for name, of_model in by_model(rows).items():
        chosen = [row for row in of_model if row["measure"] == measure and row["head"] is not None]
        series = []
        for layer in sorted({row["layer"] for row in chosen}):
            line = mean_line([row for row in chosen if row["layer"] == layer], names[layer])
            series.append(replace(line, kind="line", number=layer))
        series.append(mean_line(chosen, "mean over layers"))
        y = Axis(title if not charts else "")
        charts.append(Chart(name, name, series, Axis("epoch", whole=True), y, names=names))
    heading = f"{title} through training (black: mean over layers and heads)"
    return save(sheet(on_one_scale(charts), width=4.2, height=3.4, columns=2, title=heading), folder, stem)


def mean_line(rows: Rows, name: str) -> Series:
    """The mean of the rows of each epoch, in black."""
    epochs = sorted({row["epoch"] for row in rows})
    means = [mean(row["value"] for row in rows if row["epoch"] == epoch and row["value"] is not None) for epoch in epochs]
    return Series("mean", name, epochs, means)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else float("nan")


def draw_points(
    rows: Rows, folder: Path, stem: str, panels_by: str, across: str, title: str, *, chance_level: float | None = None
) -> list[Path]:
    """A panel per value of one column, groups along another, a point with its interval per model."""
    models = latest(rows)
    charts: list[Chart] = []
    for kind in dict.fromkeys(row[panels_by] for row in rows):
        groups = list(dict.fromkeys(row[across] for row in rows if row[panels_by] == kind))
        edges = (-0.6, len(groups) - 0.4)
        series = []
        if chance_level is not None:
            series.append(Series("reference", "random", edges, [chance_level] * 2, label="" if charts else "random"))
        for number, (name, of_model) in enumerate(models.items()):
            chosen = {row[across]: row for row in of_model if row[panels_by] == kind and row["value"] is not None}
            shift = 0.7 * ((number + 0.5) / len(models) - 0.5)
            positions = [index + shift for index, group in enumerate(groups) if group in chosen]
            value, low, high = ([chosen[group][key] for group in groups if group in chosen] for key in ("value", "low", "high"))
            series.append(Series("upright", name, positions, value, number, low, high))
        x = Axis(across, range=edges, ticks=[(float(index), str(group)) for index, group in enumerate(groups)])
        y = Axis(title if not charts else "")
        charts.append(Chart(str(kind), str(kind).replace("_", " "), series, x, y, names=list(models), height=300))
    return [save(sheet(from_zero(charts), width=max(3.2, 1.4 + 0.28 * len(models))), folder, stem)]
