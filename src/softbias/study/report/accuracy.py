"""Accuracy against the amount of training data, and paired differences between arms, each as a chart and a table; and how much
data another model needs to match.

Accuracies are drawn in percent. A band or bar is the 95 % t interval over seeds, a faint point is a single seed. Differences
have intervals over seeds and over test pictures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line, padded
from softbias.pages.format import amount_text, count, of_the_data, p_value, plus_minus, points, short_number, shortened, span
from softbias.study.comparison import ALL_PAIRS_UP_TO
from softbias.study.headline import LEAST_SEEDS, each
from softbias.study.report.results import ReportBlock, Results, slug

BASELINE = "logistic regression on raw pixels"
KEPT = [
    "data", "arm", "amount", "n_train", "n", "accuracy", "sd", "seeds_low", "seeds_high", "images_low", "images_high",
    "n_test", "top5", "balanced_accuracy", "macro_f1", "baseline_accuracy",
]  # fmt: skip


def accuracy_blocks(results: Results, data: str) -> list[ReportBlock]:
    draw = by_arm if len(results.material.amounts(data)) == 1 else by_amount
    wide = ", which with two seeds is ± 12.7 standard errors and may leave the chart" if results.seeds == 2 else ""
    none = " (there is none with a single seed)" if results.seeds == 1 else ""
    diamonds = " Open diamonds: published numbers." if len(results.published) else ""
    text = (
        f"Bands: 95 % t interval over seeds{wide}{none}; faint points: single seeds. Gray dashes: a logistic regression on raw "
        f"pixels, on the same pictures.{diamonds}"
    )
    return [ReportBlock([draw(results, data)], text, [accuracy_table(results, data)])]


def by_amount(results: Results, data: str) -> Chart:
    """Curves over the share of the training pictures, or over their number in each class."""
    material, rows, published = results.material, results.cells(data), results.published_beside(data)
    baseline = 100 * rows.groupby("amount")["baseline_accuracy"].mean().dropna()
    series = baseline_series([float(value) for value in baseline.index], baseline.tolist(), "raw-pixel baseline")
    for arm in material.arms:
        cells = rows[rows["arm"] == arm].sort_values("amount")
        if not len(cells):
            continue
        number, runs = material.number(arm), runs_of(results, data, arm)
        if len(runs) > len(cells):
            heights = (100 * runs["accuracy"]).tolist()
            series.append(Series("dots", arm, runs["amount"].tolist(), heights, number, hover=seed_texts(arm, runs)))
        low, high = ((100 * cells[f"seeds_{name}"]).tolist() for name in ("low", "high"))
        hover, heights = [cell_text(row) for row in each(cells)], (100 * cells["accuracy"]).tolist()
        series.append(Series("line", arm, cells["amount"].tolist(), heights, number, low, high, hover, arm))
    for row in each(published):
        known, hover = results.number(row.arm), [published_text(row)]
        series.append(Series("published", f"published: {row.arm}", [row.amount], [row.value], known, hover=hover))
    amounts, sizes = material.amounts(data), rows.groupby("amount")["n_train"].first()
    ticks = [(value, f"{amount_text(value)}\n{short_number(float(sizes[value]))}") for value in amounts]
    ticks += [(float(value), amount_text(value)) for value in sorted(set(published["amount"]) - set(amounts))]
    edges = min(value for value, _ in ticks) / 1.15, max(value for value, _ in ticks) * 1.08
    what = "of each class" if min(amounts) > 1 else "share" if max(amounts) <= 1 else "share or of each class"
    x = Axis(f"training pictures, {what} and number", log=True, ticks=sorted(ticks), range=edges)
    y = Axis("test accuracy", range=range_of(series, rows, "y"), suffix=" %")
    return accuracy_chart(results, data, "Accuracy by amount of training data", series, x, y, 420)


def by_arm(results: Results, data: str) -> Chart:
    """With a single amount of data: a row with a horizontal whisker per arm."""
    material, rows = results.material, results.cells(data)
    arms = [arm for arm in material.arms if arm in set(rows["arm"])]
    height = {arm: float(len(arms) - 1 - index) for index, arm in enumerate(arms)}
    edges, baseline = (-0.6, len(arms) - 0.4), 100 * rows["baseline_accuracy"].dropna()
    series = baseline_series([float(baseline.mean())] * 2, edges) if len(baseline) else []
    for row in each(rows):
        number, y, runs = material.number(row.arm), height[row.arm], runs_of(results, data, row.arm)
        if len(runs) > 1:
            values = (100 * runs["accuracy"]).tolist()
            series.append(Series("dots", row.arm, values, [y] * len(runs), number, hover=seed_texts(row.arm, runs)))
        whisker: dict[str, Any] = {"low": [100 * row.seeds_low], "high": [100 * row.seeds_high]} if row.n > 1 else {}
        series.append(Series("across", row.arm, [100 * row.accuracy], [y], number, hover=[cell_text(row)], **whisker))
    for row in each(results.published_beside(data)):
        if row.arm in height:
            number, hover = material.number(row.arm), [published_text(row)]
            series.append(Series("published", f"published: {row.arm}", [row.value], [height[row.arm]], number, hover=hover))
    x = Axis("test accuracy", range=range_of(series, rows, "x"), suffix=" %")
    y_axis = Axis(ticks=[(y, shortened(arm, 34)) for arm, y in height.items()], range=edges, categories=True)
    title = f"Accuracy with {of_the_data(material.amounts(data)[0])}"
    return accuracy_chart(results, data, title, series, x, y_axis, 100 + 34 * len(arms))


def accuracy_chart(results: Results, data: str, title: str, series: list[Series], x: Axis, y: Axis, height: int) -> Chart:
    rows, published = results.cells(data), results.published_beside(data)
    table = rows[KEPT].assign(kind="measured")
    if len(published):
        others = published[["data", "arm", "amount"]].assign(accuracy=published["value"] / 100, kind="published")
        table = pd.concat([table.astype(object), others.astype(object)], ignore_index=True)
    best = "; ".join(f"{row.arm} {100 * row.accuracy:.1f} % with {of_the_data(row.amount)}" for row in each(rows))
    alt, key = f"Test accuracy on {data}: {best}", f"sample-efficiency-{slug(data)}"
    return Chart(key, title, series, x, y, alt, results.material.arms, table, height=height, wide=True)


def baseline_series(xs: Any, ys: Any, label: str = "") -> list[Series]:
    if not len(xs):
        return []
    values = ys if label else xs
    return [Series("reference", BASELINE, xs, ys, hover=[f"{BASELINE}\n{value:.1f} %" for value in values], label=label)]


def range_of(series: list[Series], rows: pd.DataFrame, axis: str) -> tuple[float, float]:
    """A range for all accuracies. The interval of two seeds is so wide that it would flatten everything else."""
    values = [float(value) for one in series for value in getattr(one, axis)]
    if (rows["n"] > 2).any():
        values += [float(value) for one in series for edge in (one.low, one.high) for value in edge or ()]
    low, high = padded(values)
    return low, min(high, 101.0)


def runs_of(results: Results, data: str, arm: str) -> pd.DataFrame:
    runs = results.material.runs
    return runs[(runs["data"] == data) & (runs["arm"] == arm)]


def seed_texts(arm: str, runs: pd.DataFrame) -> list[str]:
    return [f"{arm}, seed {row.seed}\n{100 * row.accuracy:.1f} %" for row in each(runs)]


def published_text(row: Any) -> str:
    return f"published: {row.arm}, {row.data}, {of_the_data(row.amount)}\n{row.printed} %\n{row.note}"


def cell_text(row: Any) -> str:
    """The values of an arm at one amount of data."""
    lines = [f"{row.arm}, {of_the_data(row.amount)}", f"{100 * row.accuracy:.1f} %, n = {count(row.n, 'seed')}"]
    lines += [f"over seeds {span(row.seeds_low, row.seeds_high)} %"] if row.n > 1 else []
    return "\n".join([*lines, f"over test pictures {span(row.images_low, row.images_high)} %"])


def accuracy_table(results: Results, data: str) -> Table:
    """Arms by amounts: mean ± over seeds, below it the interval over test pictures and the top-5 accuracy."""
    amounts = results.material.amounts(data)
    cells = {(row.arm, row.amount): row for row in each(results.cells(data))}
    rows = []
    for arm in results.material.arms:
        found = [cells.get((arm, amount)) for amount in amounts]
        if any(found):
            rows.append([Cell(arm, number=results.material.number(arm)), *(accuracy_cell(row) for row in found)])
    baseline = results.cells(data).groupby("amount")["baseline_accuracy"].mean()
    if baseline.notna().any():  # large sets have no baseline
        rows.append(line("raw-pixel baseline", *(points(float(baseline[amount]), sign=False) for amount in amounts)))
    note = (
        "Test accuracy in percent. ± is the 95 % t interval over n seeds, “pictures” the 95 % interval over test pictures "
        "(Wilson)."
    )
    head = ["model", *(of_the_data(amount) for amount in amounts)]
    return Table(f"accuracy-{data}", f"Test accuracy on {data}, percent", head, rows, note)


def accuracy_cell(row: Any) -> Cell:
    if row is None:
        return Cell("–")
    top5 = [f"top-5 {points(row.top5, sign=False)}"] if pd.notna(row.top5) else []
    below = [f"pictures {span(row.images_low, row.images_high)}", *top5, f"n = {row.n}"]
    return Cell(plus_minus(row.accuracy, row.seeds_low, row.seeds_high), tuple(below))


def matching_blocks(results: Results, data: str) -> list[ReportBlock]:
    table = matching_table(results.matching, data, results.seeds)
    return [ReportBlock(heading="How much data does the other model need to match?", tables=[table])] if table.rows else []


def matching_table(matching: pd.DataFrame, data: str, seeds: int = 3) -> Table:
    rows = []
    for row in each(matching[matching["data"] == data]):
        times = f"{row.needed / row.amount:.1f} ×" if np.isfinite(row.needed) else "–"
        if row.needed == np.inf:
            times = f"> {row.largest / row.amount:.3g} ×"
        reached = points(row.target, sign=False)
        rows.append(line(row.arm, amount_text(row.amount), reached, row.other, needed(row.needed, row), bounds(row), times))
    head = ["model", "with", "reaches", "other model", "needs", "95 % over seeds", "times as much"]
    single = " With one seed these are single curves, not findings." if seeds == 1 else ""
    note = (
        "Interpolated on the curve of the other model, over the logarithm of the amount of data. A bound (“>” or “<”) "
        f"means that the match lies outside the amounts tried.{single}"
    )
    return Table(f"matching-{data}", f"Data needed to match on {data}, interpolated", head, rows, note)


def needed(value: float, row: Any, digits: int = 3) -> str:
    """An amount of data, or a bound where it lies outside the amounts that were tried."""
    if np.isnan(value):
        return "–"
    if np.isinf(value):
        return f"> {amount_text(row.largest)}" if value > 0 else f"< {amount_text(row.smallest)}"
    if row.largest > 1:
        return f"{value:.{digits}g} per class"
    return f"{100 * value:.{digits if value < 0.995 else 3}g} %"


def bounds(row: Any) -> str:
    """The interval of an amount of data; it is simulated, so two digits are enough."""
    if np.isnan(row.low):
        return "–"
    low, high = (needed(edge, row, digits=2) for edge in (row.low, row.high))
    return low if low == high else f"{low} to {high}"


def differences_blocks(results: Results, data: str) -> list[ReportBlock]:
    chart = differences_chart(results, data)
    if chart is None:
        return [ReportBlock(text="There is nothing to pair: only one model, or no shared seeds.")]
    many = len(results.material.arms) > ALL_PAIRS_UP_TO
    first = f" There are many models; each is compared with the first only, {results.material.arms[0]}." if many else ""
    text = (
        "Thick: 95 % t interval over seeds. Thin: 95 % bootstrap interval over test pictures. Runs are paired by seed, and "
        f"both models see the same pictures.{first}"
    )
    return [ReportBlock([chart], text, [differences_table(results, data)])]


def differences_chart(results: Results, data: str) -> Chart | None:
    """A row per pair and amount: a thick whisker over seeds and a thin one over test pictures."""
    rows = results.comparisons[(results.comparisons["data"] == data) & results.comparisons["difference"].notna()]
    if not len(rows):
        return None
    series, ticks, values, texts = [], [], [0.0], []
    for index, row in enumerate(reversed(each(rows))):
        name = f"{row.arm} − {row.other}"
        ticks.append((float(index), f"{name}, {amount_text(row.amount)}"))
        pair: dict[str, Any] = {"number": results.number(row.arm), "other": results.number(row.other)}
        x, y = [100 * row.difference], [float(index)]
        hover = [f"{name}, {of_the_data(row.amount)}", f"{points(row.difference)} points, n = {row.n}"]
        hover += [f"over seeds {span(row.seeds_low, row.seeds_high, sign=True)}"] if row.n > 1 else []
        if np.isfinite(row.images_low):
            hover += [f"over test pictures {span(row.images_low, row.images_high, sign=True)}"]
            edges: dict[str, Any] = {"low": [100 * row.images_low], "high": [100 * row.images_high]}
            series.append(Series("span", "test pictures", x, y, **pair, **edges))
            values += [100 * row.images_low, 100 * row.images_high]
        edges = {"low": [100 * row.seeds_low], "high": [100 * row.seeds_high]} if row.n > 1 else {}
        series.append(Series("across", row.arm, x, y, **pair, **edges, hover=["\n".join(hover)]))
        values += [*x, *((100 * row.seeds_low, 100 * row.seeds_high) if row.n >= LEAST_SEEDS else ())]
        texts.append(f"{name} {points(row.difference)}")
    margin = max(1.0, 0.06 * (max(values) - min(values)))
    return Chart(
        key=f"differences-{slug(data)}",
        title="Differences with both intervals",
        series=series,
        x=Axis("percentage points", range=(min(values) - margin, max(values) + margin)),
        y=Axis(ticks=ticks, range=(-0.7, len(rows) - 0.3), categories=True),
        alt=f"Paired differences in points on {data}: {'; '.join(texts)}",
        names=results.material.arms,
        table=rows,
        zero=True,
        height=90 + 30 * len(rows),
        wide=True,
    )


def differences_table(results: Results, data: str) -> Table:
    rows: list[list[Cell]] = []
    marked: list[int] = []
    for row in each(results.comparisons[results.comparisons["data"] == data]):
        marked += [len(rows)] if row.supported else []
        p = "–" if not np.isfinite(row.p_holm) else p_value(row.p_holm).removeprefix("p = ").removeprefix("p ")
        relative = (f"{points(row.relative)} % relative",) if np.isfinite(row.relative) else ()
        family = (f"{points(row.detectable_family, sign=False)} in family",) if np.isfinite(row.detectable_family) else ()
        rows.append(
            line(
                Cell(f"{row.arm} − {row.other}", (f"{of_the_data(row.amount)}, n = {row.n}",)),
                Cell(points(row.difference), relative),
                span(row.seeds_low, row.seeds_high, sign=True),
                span(row.images_low, row.images_high, sign=True),
                p,
                Cell(points(row.detectable, sign=False), family),
                "yes" if row.supported else "no claim" if row.n < LEAST_SEEDS else "no",
            )
        )
    head = ["pair", "difference", "95 % over seeds", "95 % over pictures", "p (Holm)", "detectable", "supported"]
    note = (
        "Differences in percentage points. p: paired t test over seeds, corrected by Holm over "
        f"{count(results.tests, 'comparison')}. Detectable: the smallest true difference that a single test would find with a "
        "power of 80 %, given the spread seen here; in family: at the strictest step of the correction. Relative: the "
        "difference as a share of the other model’s accuracy, as in ConViT’s table."
    )
    caption = f"Paired differences in test accuracy on {data}, percentage points"
    return Table(f"differences-{data}", caption, head, rows, note, marked)
