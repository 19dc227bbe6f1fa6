"""Published numbers: in a table beside ours, and where ours are on other data or other amounts, on axes of their own."""

from __future__ import annotations

from typing import Any

import pandas as pd

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line
from softbias.pages.format import amount_text, listed, of_the_data, shortened
from softbias.study.headline import each
from softbias.study.metric import METRICS, OWN
from softbias.study.report.main_metric import published_text, range_of
from softbias.study.report.results import ReportBlock, Results, slug


def published_blocks(results: Results) -> list[ReportBlock]:
    """The charts of numbers that no axis of ours can hold, and the table of all; nothing where there are none."""
    if not len(results.published):
        return []
    if results.in_one_table:
        others = results.published[results.published["metric"] != results.metric.name]
        return [ReportBlock(tables=[published_table(results, others)])] if len(others) else []
    blocks = []
    elsewhere = results.published_elsewhere()
    for data in dict.fromkeys(elsewhere["data"]):
        rows = elsewhere[elsewhere["data"] == data]
        ours = listed(
            f"{one} with {' and '.join(map(of_the_data, results.material.amounts(one)))}" for one in results.material.sets
        )
        text = f"Ours are on {ours}. These numbers were published on {data}, so they have an axis of their own."
        blocks.append(ReportBlock([published_chart(results, str(data), rows)], text))
    return [*blocks, ReportBlock(tables=[published_table(results, results.published)])]


def published_chart(results: Results, data: str, rows: pd.DataFrame) -> Chart:
    """The metric as published on a set: over amounts of data, or a row per arm where there is one."""
    metric = results.metric
    title, alt = f"Published: {metric.title} on {data}", "; ".join(f"{row.arm} {row.printed}" for row in each(rows))
    names = results.material.arms
    rest: dict[str, Any] = {"wide": True, "table": rows.drop(columns="printed")}
    series: list[Series] = []
    key = f"published-{slug(data)}"
    if rows["amount"].nunique() == 1:
        arms = list(dict.fromkeys(rows["arm"]))
        height = {arm: float(len(arms) - 1 - index) for index, arm in enumerate(arms)}
        for row in each(rows):
            hover, number = [published_text(metric, row)], results.number(row.arm)
            series.append(Series("published", row.arm, [row.value], [height[row.arm]], number, hover=hover))
        x = Axis(f"{metric.axis}, as published", range=range_of(metric, series, results.summary, "x"), suffix=metric.suffix)
        y = Axis(ticks=[(y, shortened(arm, 34)) for arm, y in height.items()], range=(-0.6, len(arms) - 0.4), categories=True)
        title += f" with {of_the_data(float(rows['amount'].iloc[0]))}"
        return Chart(key, title, series, x, y, f"{title}: {alt}", names, height=100 + 34 * len(arms), **rest)
    for arm in dict.fromkeys(rows["arm"]):
        own = rows[rows["arm"] == arm].sort_values("amount")
        points, number = (own["amount"].tolist(), own["value"].tolist()), results.number(str(arm))
        series.append(Series("thin", str(arm), *points, number, label=str(arm)))
        series.append(Series("published", str(arm), *points, number, hover=[published_text(metric, row) for row in each(own)]))
    amounts = sorted({float(value) for value in rows["amount"]})
    ticks = [(value, amount_text(value)) for value in amounts]
    x = Axis("training pictures, share", log=True, ticks=ticks, range=(amounts[0] / 1.15, amounts[-1] * 1.08))
    y = Axis(f"{metric.axis}, as published", range=range_of(metric, series, results.summary, "y"), suffix=metric.suffix)
    return Chart(key, title, series, x, y, f"{title}: {alt}", names, height=340, **rest)


def published_table(results: Results, published: pd.DataFrame) -> Table:
    """Published numbers beside ours, where data set, arm and amount are the same."""
    ours = {(row.data, row.arm, row.amount): row for row in each(results.summary)}
    rows = []
    for row in each(published):
        same, mine = ours.get((row.data, row.arm, row.amount)), "–"
        if row.metric == results.metric.name and results.metric.repeated == "rounds":
            same = next((one for one in each(results.summary) if one.arm == row.arm), None)
        if same is not None and row.metric == results.metric.name:
            mine = results.metric.plus_minus(same.value, same.seeds_low, same.seeds_high)
        elif same is not None and row.metric in OWN and pd.notna(getattr(same, row.metric)):
            mine = METRICS[row.metric].number(getattr(same, row.metric))
        name = Cell(str(row.arm), number=results.number(row.arm))
        title = METRICS[row.metric].title if row.metric in METRICS else str(row.metric)
        rows.append(line(name, str(row.data), amount_text(row.amount), title, row.printed, mine, row.note))
    head = ["model", "data set", "data", "metric", "published", "ours", "note"]
    alike = (
        "data set, name of the model and amount of data are" if results.metric.repeated == "seeds" else "the model's name is"
    )
    note = (
        f"“Ours” stands where {alike} the same. Other differences, such as the size of the model or the length of its "
        "training, are named at the top of the page."
    )
    return Table("published", "Published numbers beside ours; shares in percent", head, rows, note)
