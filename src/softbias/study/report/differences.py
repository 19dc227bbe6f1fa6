"""Paired differences between arms in the main metric, as a chart and a table, and intervals over seeds and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line
from softbias.pages.format import amount_text, count, of_the_data, p_value, points
from softbias.study.comparison import ALL_PAIRS_UP_TO
from softbias.study.headline import LEAST_SEEDS, each
from softbias.study.metric import Metric
from softbias.study.report.results import ReportBlock, Results, slug


def differences_blocks(results: Results, data: str) -> list[ReportBlock]:
    if results.metric.repeated == "rounds":
        return []  # its values are paired already: each is relative to the first model, round by round
    chart = differences_chart(results, data)
    if chart is None:
        return [ReportBlock(text="There is nothing to pair: only one model, or no shared seeds.")]
    many = len(results.material.arms) > ALL_PAIRS_UP_TO
    first = f" There are many models; each is compared with the first only, {results.material.arms[0]}." if many else ""
    thick = "Thick: 95 % t interval over seeds. " if results.seeds > 1 else ""
    known = results.comparisons["images_low"].notna().any()
    thin = f"Thin: 95 % bootstrap interval over {results.metric.over}. " if known else ""
    single = "" if thick or thin else "With one seed these are single differences, not findings. "
    text = f"{thick}{thin}{single}Runs are paired by seed, and both models see the same pictures.{first}"
    return [ReportBlock([chart], text, [differences_table(results, data)])]


def differences_chart(results: Results, data: str) -> Chart | None:
    """A row per pair and amount: a thick whisker over seeds and a thin one over test pictures."""
    rows = results.comparisons[(results.comparisons["data"] == data) & results.comparisons["difference"].notna()]
    if not len(rows):
        return None
    metric, factor = results.metric, results.metric.factor
    series, ticks, values, texts = [], [], [0.0], []
    for index, row in enumerate(reversed(each(rows))):
        name = f"{row.arm} − {row.other}"
        ticks.append((float(index), f"{name}, {amount_text(row.amount)}"))
        pair: dict[str, Any] = {"number": results.number(row.arm), "other": results.number(row.other)}
        x, y = [factor * row.difference], [float(index)]
        hover = [f"{name}, {of_the_data(row.amount)}", f"{metric.number(row.difference, sign=True)} {metric.unit}, n = {row.n}"]
        hover += [f"over seeds {metric.span(row.seeds_low, row.seeds_high, sign=True)}"] if row.n > 1 else []
        if np.isfinite(row.images_low):
            hover += [f"over {metric.over} {metric.span(row.images_low, row.images_high, sign=True)}"]
            edges: dict[str, Any] = {"low": [factor * row.images_low], "high": [factor * row.images_high]}
            series.append(Series("span", metric.over, x, y, **pair, **edges))
            values += [factor * row.images_low, factor * row.images_high]
        edges = {"low": [factor * row.seeds_low], "high": [factor * row.seeds_high]} if row.n > 1 else {}
        series.append(Series("across", row.arm, x, y, **pair, **edges, hover=["\n".join(hover)]))
        values += [*x, *((factor * row.seeds_low, factor * row.seeds_high) if row.n >= LEAST_SEEDS else ())]
        texts.append(f"{name} {metric.number(row.difference, sign=True)}")
    margin = max(factor / 100, 0.06 * (max(values) - min(values)))
    return Chart(
        key=f"differences-{slug(data)}",
        title="Differences with both intervals" if results.seeds > 1 else "Differences",
        series=series,
        x=Axis(
            "percentage points" if metric.share else f"{metric.unit} of {metric.title}",
            range=(min(values) - margin, max(values) + margin),
        ),
        y=Axis(ticks=ticks, range=(-0.7, len(rows) - 0.3), categories=True),
        alt=f"Paired differences in {metric.title} on {data}: {'; '.join(texts)}",
        names=results.material.arms,
        table=rows,
        zero=True,
        height=90 + 30 * len(rows),
        wide=True,
    )


def differences_table(results: Results, data: str) -> Table:
    """A row per pair. With one seed there is no test, and for a metric that counts no pictures no interval over them."""
    metric, tested = results.metric, results.seeds > 1
    own = bool(results.comparisons["images_low"].notna().any())
    rows: list[list[Cell]] = []
    marked: list[int] = []
    for row in each(results.comparisons[results.comparisons["data"] == data]):
        marked += [len(rows)] if row.supported else []
        relative = (f"{points(row.relative)} % relative",) if np.isfinite(row.relative) else ()
        cells: list[str | Cell] = [Cell(f"{row.arm} − {row.other}", (f"{of_the_data(row.amount)}, n = {row.n}",))]
        cells += [Cell(metric.number(row.difference, sign=True), relative)]
        cells += [metric.span(row.seeds_low, row.seeds_high, sign=True)] if tested else []
        cells += [metric.span(row.images_low, row.images_high, sign=True)] if own else []
        rows.append(line(*cells, *(verdict(metric, row) if tested else ())))
    head = ["pair", "difference", *(["95 % over seeds"] if tested else []), *(["95 % over pictures"] if own else [])]
    head += ["p (Holm)", "detectable", "supported"] if tested else []
    unit = "percentage points" if metric.share else f"{metric.unit} of {metric.title}"
    note = f"Differences in {unit}."
    if tested:
        note += (
            f" p: paired t test over seeds, corrected by Holm over {count(results.tests, 'comparison')}. Detectable: the "
            "smallest true difference that a single test would find with a power of 80 %, given the spread seen here; in "
            "family: at the strictest step of the correction."
        )
    note += f" Relative: the difference as a share of the other model’s {metric.title}."
    caption = f"Paired differences in {metric.axis} on {data}, {unit}"
    return Table(f"differences-{data}", caption, head, rows, note, marked)


def verdict(metric: Metric, row: Any) -> list[str | Cell]:
    """What the paired test says about a difference."""
    p = "–" if not np.isfinite(row.p_holm) else p_value(row.p_holm).removeprefix("p = ").removeprefix("p ")
    family = (f"{metric.number(row.detectable_family)} in family",) if np.isfinite(row.detectable_family) else ()
    supported = "yes" if row.supported else "no claim" if row.n < LEAST_SEEDS else "no"
    return [p, Cell(metric.number(row.detectable), family), supported]
