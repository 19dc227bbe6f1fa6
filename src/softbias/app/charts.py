"""Charts of the runs in the app: loss and accuracy of all runs, and the gates of one run through its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from softbias.pages.charts import Axis, Chart, Series, linear_levels
from softbias.pages.format import percent
from softbias.runs.page import points_of

Rows = Sequence[Mapping[str, Any]]


def training_charts(runs: Mapping[str, Rows]) -> list[Chart]:
    """Loss and accuracy over the epochs: a line per run, with markers for validation."""
    charts = []
    for title, key in (("Loss", "loss"), ("Accuracy", "accuracy")):
        shares = key == "accuracy"
        series = []
        for number, (name, rows) in enumerate(runs.items()):
            for column, kind in ((key, "training"), (f"val_{key}", "validation")):
                points = points_of(rows, column)
                if points:
                    hover = [f"{name}, {kind}, epoch {x:g}\n{percent(y) if shares else f'{y:.3g}'}" for x, y in points]
                    xs, ys = zip(*points, strict=True)
                    series.append(Series("curve" if kind == "training" else "line", name, xs, ys, number, hover=hover))
        if series:
            top = max(max(one.y) for one in series)
            top = 1.0 if top <= 0 or (shares and top > 0.5) else 1.04 * top
            ticks = [(level, f"{level:.0%}" if shares else f"{level:.3g}") for level in linear_levels(0, top, 4)]
            ends = "; ".join(f"{one.hover[-1].replace(chr(10), ': ')}" for one in series if one.hover)
            x, y = Axis("epoch", whole=True), Axis(range=(0, top), ticks=ticks)
            charts.append(Chart(key, title, series, x, y, f"{title} by epoch: {ends}", list(runs), height=250))
    return charts


def gates_chart(name: str, rows: Rows, checkpoint: Mapping[str, Any] | None) -> Chart | None:
    """The share of positional attention of every gated head through training; a dashed line at the chosen checkpoint."""
    if not rows:
        return None
    unit = "step" if any(row["epoch"] is None for row in rows) else "epoch"
    xs = [float(row[unit]) for row in rows]
    layers = list(rows[0]["layers"])
    series = []
    for number, layer in enumerate(layers):
        for head in range(len(rows[0]["layers"][layer])):
            ys = [row["layers"][layer][head] for row in rows]
            hover = [f"layer {layer}, head {head}, {unit} {x:g}\n{percent(y)}" for x, y in zip(xs, ys, strict=True)]
            series.append(Series("line" if len(xs) == 1 else "curve", f"layer {layer}", xs, ys, number, hover=hover))
    values = [value for one in series for value in one.y]
    low, high = max(0.0, min(values) - 0.02), min(1.0, max(values) + 0.02)
    if checkpoint is not None and checkpoint[unit] is not None:
        series.append(Series("reference", "checkpoint", [checkpoint[unit]] * 2, [low, high]))
    ticks = [(level, f"{100 * level:.3g}%") for level in linear_levels(low, high, 4)]
    title = f"Gates of {name}: share of positional attention, a line per head"
    x, y = Axis(unit, whole=True), Axis(range=(low, high), ticks=ticks)
    alt = f"{title}: {percent(min(values))} to {percent(max(values))}"
    return Chart("gates", title, series, x, y, alt, [f"layer {layer}" for layer in layers], height=250)
