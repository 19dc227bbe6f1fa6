"""Paired differences between arms, with the intervals over seeds and over test pictures, as a chart and a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line
from softbias.pages.format import count, of_the_data, p_value, points, share, span
from softbias.study.comparison import ALL_PAIRS_UP_TO
from softbias.study.headline import LEAST_SEEDS, each
from softbias.study.report.results import ReportBlock, Results, slug


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
    """A row per pair and fraction: a thick whisker over seeds and a thin one over test pictures."""
    rows = results.comparisons[(results.comparisons["data"] == data) & results.comparisons["difference"].notna()]
    if not len(rows):
        return None
    series, ticks, values, texts = [], [], [0.0], []
    for index, row in enumerate(reversed(each(rows))):
        name = f"{row.arm} − {row.other}"
        ticks.append((float(index), f"{name}, {share(row.train_fraction)}"))
        pair: dict[str, Any] = {"number": results.number(row.arm), "other": results.number(row.other)}
        x, y = [100 * row.difference], [float(index)]
        hover = [f"{name}, {of_the_data(row.train_fraction)}", f"{points(row.difference)} points, n = {row.n}"]
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
                Cell(f"{row.arm} − {row.other}", (f"{share(row.train_fraction)} of the data, n = {row.n}",)),
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
