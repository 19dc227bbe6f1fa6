"""The main metric of a study, accuracy if it names no other, against the amount of training data, as a chart and a table.

Shares are drawn in percent. A band or bar is the 95 % t interval over seeds, a faint point is a single seed, a thin line the
interval of a single run. A published number stands on an axis of ours only where data set and amount are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line, padded
from softbias.pages.format import amount_text, count, of_the_data, points, short_number, shortened
from softbias.study.headline import each
from softbias.study.metric import Metric
from softbias.study.report.results import ReportBlock, Results, slug

BASELINE = "logistic regression on raw pixels"
RANDOM = "random answers"
KEPT = [
    "data", "arm", "amount", "n_train", "n", "value", "sd", "seeds_low", "seeds_high", "images_low", "images_high",
    "n_test", "accuracy", "top5", "balanced_accuracy", "macro_f1", "baseline_accuracy",
]  # fmt: skip


def metric_blocks(results: Results, data: str) -> list[ReportBlock]:
    draw = by_arm if len(results.material.amounts(data)) == 1 else by_amount
    tables = [] if results.in_one_table else [metric_table(results, data)]
    return [ReportBlock([draw(results, data)], chart_text(results, data), tables)]


def chart_text(results: Results, data: str) -> str:
    """What the chart shows, in words."""
    metric, material = results.metric, results.material
    wide = ", which with two seeds is ± 12.7 standard errors and may leave the chart" if results.seeds == 2 else ""
    parts = [f"Bands: 95 % t interval over seeds{wide}; faint points: single seeds."] if results.seeds > 1 else []
    if results.seeds == 1 and results.cells(data)["images_low"].notna().any() and len(material.amounts(data)) == 1:
        parts.append(f"Thin lines: {interval_name(metric)}{', of one seed' if metric.repeated == 'seeds' else ''}.")
    if reference_levels(results, data):
        what = "a logistic regression on raw pixels, on the same pictures" if metric.name == "accuracy" else "random answers"
        parts.append(f"Gray dashes: {what}.")
    if len(results.published_beside(data)):
        where = ", on other hardware and other pictures" if metric.repeated == "rounds" else ""
        parts.append(f"Open diamonds: published numbers{where}.")
    parts += [material.scores.setting] if metric.measured and material.scores is not None else []
    return " ".join(parts)


def interval_name(metric: Metric) -> str:
    """What the interval of a single run is."""
    return f"quartiles over {metric.over}" if metric.repeated == "rounds" else f"95 % interval over {metric.over}"


def by_amount(results: Results, data: str) -> Chart:
    """Curves over the share of the training pictures, or over their number in each class."""
    material, rows, published = results.material, results.cells(data), results.published_beside(data)
    metric, factor, levels = results.metric, results.metric.factor, reference_levels(results, data)
    series = reference_series(metric, list(levels), list(levels.values()), label=True)
    for arm in material.arms:
        cells = rows[rows["arm"] == arm].sort_values("amount")
        if not len(cells):
            continue
        number, runs = material.number(arm), runs_of(results, data, arm)
        if len(runs) > len(cells):
            heights = (factor * runs["value"]).tolist()
            series.append(Series("dots", arm, runs["amount"].tolist(), heights, number, hover=seed_texts(metric, arm, runs)))
        low, high = ((factor * cells[f"seeds_{name}"]).tolist() for name in ("low", "high"))
        hover, heights = [cell_text(metric, row) for row in each(cells)], (factor * cells["value"]).tolist()
        series.append(Series("line", arm, cells["amount"].tolist(), heights, number, low, high, hover, arm))
    for row in each(published):
        known, hover = results.number(row.arm), [published_text(metric, row)]
        series.append(Series("published", f"published: {row.arm}", [row.amount], [row.value], known, hover=hover))
    amounts, sizes = material.amounts(data), rows.groupby("amount")["n_train"].first()
    ticks = [(value, f"{amount_text(value)}\n{short_number(float(sizes[value]))}") for value in amounts]
    ticks += [(float(value), amount_text(value)) for value in sorted(set(published["amount"]) - set(amounts))]
    edges = min(value for value, _ in ticks) / 1.15, max(value for value, _ in ticks) * 1.08
    what = "of each class" if min(amounts) > 1 else "share" if max(amounts) <= 1 else "share or of each class"
    x = Axis(f"training pictures, {what} and number", log=True, ticks=sorted(ticks), range=edges)
    y = Axis(metric.axis, range=range_of(metric, series, rows, "y"), suffix=metric.suffix)
    return metric_chart(results, data, f"{metric.heading} by amount of training data", series, x, y, 420)


def by_arm(results: Results, data: str) -> Chart:
    """With a single amount of data: a row with a horizontal whisker per arm."""
    material, rows = results.material, results.cells(data)
    metric, factor = results.metric, results.metric.factor
    arms = [arm for arm in material.arms if arm in set(rows["arm"])]
    height = {arm: float(len(arms) - 1 - index) for index, arm in enumerate(arms)}
    edges, levels = (-0.6, len(arms) - 0.4), list(reference_levels(results, data).values())
    series = reference_series(metric, levels * 2, edges)
    for row in each(rows):
        number, y, runs = material.number(row.arm), height[row.arm], runs_of(results, data, row.arm)
        if len(runs) > 1:
            values = (factor * runs["value"]).tolist()
            series.append(Series("dots", row.arm, values, [y] * len(runs), number, hover=seed_texts(metric, row.arm, runs)))
        elif np.isfinite(row.images_low):
            ends = [factor * row.images_low], [factor * row.images_high]
            series.append(Series("span", row.arm, [factor * row.value], [y], number, *ends))
        whisker: dict[str, Any] = {"low": [factor * row.seeds_low], "high": [factor * row.seeds_high]} if row.n > 1 else {}
        hover = [cell_text(metric, row)]
        series.append(Series("across", row.arm, [factor * row.value], [y], number, hover=hover, **whisker))
    for row in each(results.published_beside(data)):
        if row.arm in height:
            number, hover = material.number(row.arm), [published_text(metric, row)]
            series.append(Series("published", f"published: {row.arm}", [row.value], [height[row.arm]], number, hover=hover))
    x = Axis(metric.axis, range=range_of(metric, series, rows, "x"), suffix=metric.suffix)
    y_axis = Axis(ticks=[(y, shortened(arm, 34)) for arm, y in height.items()], range=edges, categories=True)
    title = f"{metric.heading} with {of_the_data(material.amounts(data)[0])}" if metric.repeated == "seeds" else metric.heading
    return metric_chart(results, data, title, series, x, y_axis, 100 + 34 * len(arms))


def metric_chart(results: Results, data: str, title: str, series: list[Series], x: Axis, y: Axis, height: int) -> Chart:
    rows, published, metric = results.cells(data), results.published_beside(data), results.metric
    table = rows[KEPT].assign(metric=metric.name, kind="measured")
    if len(published):
        others = published[["data", "arm", "amount"]].assign(value=published["value"] / metric.factor, kind="published")
        table = pd.concat([table.astype(object), others.astype(object)], ignore_index=True)
    best = "; ".join(f"{row.arm} {metric.value(row.value)} with {of_the_data(row.amount)}" for row in each(rows))
    alt, key = f"{metric.heading} on {data}: {best}", f"sample-efficiency-{slug(data)}"
    return Chart(key, title, series, x, y, alt, results.material.arms, table, height=height, wide=True)


def reference_levels(results: Results, data: str) -> dict[float, float]:
    """Amount -> the value that models are compared with, as printed: of a regression on pixels, or of random answers."""
    rows, level = results.cells(data), results.material.chance_level
    if results.metric.name == "accuracy":
        means = rows.groupby("amount")["baseline_accuracy"].mean().dropna()
        return {float(amount): 100 * float(value) for amount, value in zip(means.index, means, strict=True)}
    return {} if level is None else dict.fromkeys(results.material.amounts(data), results.metric.factor * level)


def reference_series(metric: Metric, xs: Any, ys: Any, label: bool = False) -> list[Series]:
    """A dashed line at the values that models are compared with; label: along the amounts, with its name at the end."""
    if not len(xs):
        return []
    name, short = (BASELINE, "raw-pixel baseline") if metric.name == "accuracy" else (RANDOM, RANDOM)
    hover = [f"{name}\n{metric.value(value / metric.factor)}" for value in (ys if label else xs)]
    return [Series("reference", name, xs, ys, hover=hover, label=short if label else "")]


def range_of(metric: Metric, series: list[Series], rows: pd.DataFrame, axis: str) -> tuple[float, float]:
    """A range for all values. The interval of two seeds is so wide that it would flatten everything else."""
    values = [float(value) for one in series for value in getattr(one, axis)]
    if (rows["n"] != 2).all():
        values += [float(value) for one in series for edge in (one.low, one.high) for value in edge or ()]
    if metric.share:
        low, high = padded(values)
        return low, min(high, 101.0)
    kept = [value for value in values if np.isfinite(value)]
    margin = 0.08 * (max(kept) - min(kept)) or 0.5
    return min(kept) - margin, max(kept) + margin


def runs_of(results: Results, data: str, arm: str) -> pd.DataFrame:
    runs = results.material.runs
    return runs[(runs["data"] == data) & (runs["arm"] == arm)]


def seed_texts(metric: Metric, arm: str, runs: pd.DataFrame) -> list[str]:
    return [f"{arm}, seed {row.seed}\n{metric.value(row.value)}" for row in each(runs)]


def published_text(metric: Metric, row: Any) -> str:
    return f"published: {row.arm}, {row.data}, {of_the_data(row.amount)}\n{row.printed}{metric.suffix}\n{row.note}"


def cell_text(metric: Metric, row: Any) -> str:
    """The values of an arm at one amount of data."""
    seeds = f", n = {count(row.n, 'seed')}" if metric.repeated == "seeds" else ""
    lines = [f"{row.arm}, {of_the_data(row.amount)}", f"{metric.value(row.value)}{seeds}"]
    lines += [f"over seeds {metric.span(row.seeds_low, row.seeds_high)}{metric.suffix}"] if row.n > 1 else []
    own = f"over {metric.over} {metric.span(row.images_low, row.images_high)}{metric.suffix}"
    return "\n".join([*lines, *([own] if np.isfinite(row.images_low) else [])])


def metric_table(results: Results, data: str) -> Table:
    """Arms by amounts: mean ± over seeds, below it the interval of a single run and other scores."""
    amounts, metric = results.material.amounts(data), results.metric
    cells = {(row.arm, row.amount): row for row in each(results.cells(data))}
    rows = []
    for arm in results.material.arms:
        found = [cells.get((arm, amount)) for amount in amounts]
        if any(found):
            rows.append([Cell(arm, number=results.material.number(arm)), *(metric_cell(metric, row) for row in found)])
    levels = reference_levels(results, data)
    if levels:  # large sets have no baseline
        texts = [metric.number(levels[amount] / metric.factor) if amount in levels else "–" for amount in amounts]
        rows.append(line("raw-pixel baseline" if metric.name == "accuracy" else RANDOM, *texts))
    head = ["model", *(of_the_data(amount) for amount in amounts)]
    caption = f"{metric.heading} on {data}{', percent' if metric.share else ''}"
    return Table(f"accuracy-{data}", caption, head, rows, table_note(results))


def table_note(results: Results) -> str:
    """What the numbers in a table of the metric are."""
    metric = results.metric
    note = f"{metric.heading}{' in percent' if metric.share else ''}."
    note += " ± is the 95 % t interval over n seeds." if results.seeds > 1 else ""
    if results.summary["images_low"].notna().any():
        note += f" “{short_name(metric)}”: {interval_name(metric)}{' (Wilson)' if metric.over.endswith('pictures') else ''}."
    return note


def short_name(metric: Metric) -> str:
    return metric.over.split()[-1]


def metric_cell(metric: Metric, row: Any) -> Cell:
    if row is None:
        return Cell("–")
    below = [f"{short_name(metric)} {metric.span(row.images_low, row.images_high)}"] if np.isfinite(row.images_low) else []
    below += [f"top-5 {points(row.top5, sign=False)}"] if metric.name == "accuracy" and pd.notna(row.top5) else []
    if metric.name != "accuracy" and metric.repeated == "seeds":
        below += [f"accuracy {points(row.accuracy, sign=False)}"]
    below += [f"n = {row.n}"] if metric.repeated == "seeds" else []
    return Cell(metric.plus_minus(row.value, row.seeds_low, row.seeds_high), tuple(below))
