"""What a model costs and what it finds: the main metric against cost, and the recall of every class, as charts and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line, padded
from softbias.pages.format import duration, memory, of_the_data, points, short_number, shortened
from softbias.study.headline import LEAST_SEEDS, each
from softbias.study.report.results import ReportBlock, Results, amount_key, classes_of, slug

CLASSES = 20  # in the chart; the table has all
COSTS = {
    "parameters": ("Parameters", 1.0),
    "macs": ("MACs per picture", 1.0),
    "images_per_second": ("Training pictures/s", 1.0),
    "peak_memory": ("Peak memory, MiB", 2.0**-20),
}


def cost_blocks(results: Results, data: str) -> list[ReportBlock]:
    """The metric with the most data against parameters, MACs, speed and memory."""
    amount = results.material.amounts(data)[-1]
    charts = [cost_chart(results, data, amount, column) for column in COSTS]
    text = f"With {of_the_data(amount)}. Speed and memory are those of the training, on the hardware named below."
    drawn = [chart for chart in charts if chart is not None]
    return [ReportBlock(drawn, text, [cost_table(results, data)], columns="charts four")]


def cost_chart(results: Results, data: str, amount: float, column: str) -> Chart | None:
    cells = results.cells(data, amount)
    rows = cells[pd.to_numeric(cells[column]) > 0] if column in cells else cells[:0]  # not every run knows its cost
    if not len(rows):
        return None
    title, unit = COSTS[column]
    metric, factor = results.metric, results.metric.factor
    series, texts = [], []
    for row in each(rows):
        x = unit * float(getattr(row, column))
        cost = short_number(float(f"{x:.3g}"))
        hover = [f"{row.arm}\n{title}: {cost}\n{metric.value(row.value)}, n = {row.n}"]
        edges: dict[str, Any] = {} if row.n < 2 else {"low": [factor * row.seeds_low], "high": [factor * row.seeds_high]}
        series.append(Series("upright", row.arm, [x], [factor * row.value], results.number(row.arm), hover=hover, **edges))
        texts.append(f"{row.arm} {cost}")
    xs = [one.x[0] for one in series]
    log = max(xs) / min(xs) > 4
    heights = [factor * value for value in rows["value"]]
    if (rows["n"] >= LEAST_SEEDS).any():
        heights += [factor * value for name in ("seeds_low", "seeds_high") for value in rows[name]]
    return Chart(
        key=f"cost-{slug(data)}-{column.replace('_', '-')}",
        title=title,
        series=series,
        x=Axis(log=log, range=(min(xs) / 1.3, max(xs) * 1.3) if log else (min(xs) - 0.1 * max(xs), 1.1 * max(xs))),
        y=Axis(metric.axis, range=padded(heights, 0.15, least=factor / 100), suffix=metric.suffix),
        alt=f"{metric.heading} against {title} on {data}: {'; '.join(texts)}",
        names=results.material.arms,
        table=rows[["data", "amount", "arm", column, "value", "seeds_low", "seeds_high", "n"]],
    )


def cost_table(results: Results, data: str) -> Table:
    amount = results.material.amounts(data)[-1]
    rows = [
        line(
            Cell(row.arm, number=results.number(row.arm)),
            f"{row.parameters / 1e6:,.3g} M",
            f"{row.macs / 1e6:,.1f} M" if pd.notna(row.macs) else "–",
            f"{row.images_per_second:,.0f}",
            memory(row.peak_memory) if pd.notna(row.peak_memory) else "–",
            duration(row.seconds),
            results.metric.number(row.value),
        )
        for row in each(results.cells(data, amount))
    ]
    head = [
        "model",
        "parameters",
        "MACs",
        "pictures/s",
        "peak memory",
        "training",
        f"{results.metric.title}{', %' if results.metric.share else ''}",
    ]
    return Table(f"cost-{data}", f"Cost and {results.metric.title} on {data} with {of_the_data(amount)}", head, rows)


def class_blocks(results: Results, data: str) -> list[ReportBlock]:
    """The recall of every class with the most and with the least data."""
    amounts = results.material.amounts(data)
    charts = [class_chart(results, data, amount) for amount in dict.fromkeys([amounts[-1], amounts[0]])]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return [ReportBlock(text="The runs have no scores per class.")]
    text = "The classes on which the models differ most come first. With few pictures per class, differences are often random."
    blocks = [ReportBlock([chart], tables=[class_table(results, chart, data)], folded="classes") for chart in drawn]
    return [ReportBlock(text=text), *blocks]


def class_chart(results: Results, data: str, amount: float) -> Chart | None:
    """Recall of every class by arm, mean over seeds."""
    material = results.material
    found = [
        classes_of(row.run).assign(arm=arm, seed=row.seed)
        for arm in material.arms
        for row in each(material.cell(data, amount, arm))
        if len(classes_of(row.run))
    ]
    if not found:
        return None
    rows = pd.concat(found, ignore_index=True)
    rows["recall"] = pd.to_numeric(rows["recall"])
    means = rows.groupby(["name", "arm"], sort=False).agg(
        recall=("recall", "mean"), f1=("f1", "mean"), n=("n", "first"), seeds=("seed", "size")
    )
    recalls = means["recall"].unstack("arm")  # class × arm
    spreads = (recalls.max(axis=1) - recalls.min(axis=1)).sort_values(ascending=False, kind="stable")
    chosen = list(spreads.index[:CLASSES])
    height = {name: float(len(chosen) - 1 - index) for index, name in enumerate(chosen)}
    table = means.reset_index().assign(data=data, amount=amount)
    table["spread"] = table["name"].map(spreads)
    table = table.sort_values(["spread", "name"], ascending=[False, True], kind="stable")
    ends = [[100 * float(edge) for edge in (recalls.loc[name].min(), recalls.loc[name].max())] for name in chosen]
    series = [Series("thin", "", pair, [height[name]] * 2) for name, pair in zip(chosen, ends, strict=True)]
    for arm in [arm for arm in material.arms if arm in recalls]:
        xs = [100 * float(recalls.loc[name, arm]) for name in chosen]
        hover = [f"{name}\n{arm}: {x:.1f} % found" for name, x in zip(chosen, xs, strict=True)]
        series.append(Series("across", arm, xs, list(height.values()), material.number(arm), hover=hover))
    values = [value for pair in ends for value in pair if np.isfinite(value)]
    low, high = padded(values, 0.04) if values else (0.0, 100.0)
    ticks = [(y, shortened(str(name), 24)) for name, y in height.items()]
    return Chart(
        key=f"classes-{slug(data)}-{amount_key(amount)}",
        title=f"Share of each class that is found (recall), {of_the_data(amount)}",
        series=series,
        x=Axis("recall, mean over seeds", range=(low, min(high, 101.0)), suffix=" %"),
        y=Axis(ticks=ticks, range=(-0.7, len(chosen) - 0.3), categories=True),
        alt=f"Recall per class on {data} with {of_the_data(amount)}; the models differ most on {chosen[0]}",
        names=material.arms,
        table=table[["data", "amount", "name", "n", "arm", "seeds", "recall", "f1"]],
        height=100 + 26 * len(chosen),
        wide=True,
    )


def class_table(results: Results, chart: Chart, data: str) -> Table:
    """The recall of all classes, by arm."""
    assert chart.table is not None
    arms = [arm for arm in results.material.arms if arm in set(chart.table["arm"])]
    rows = []
    for name, cell in chart.table.groupby("name", sort=False):
        found = dict(zip(cell["arm"], cell["recall"], strict=True))
        recalls = [float(found.get(arm, np.nan)) for arm in arms]
        texts = [points(value, sign=False) for value in (*recalls, max(recalls) - min(recalls))]
        rows.append(line(str(name), str(int(cell["n"].iloc[0])), *texts))
    amount = chart.table["amount"].iloc[0]
    caption = f"Recall per class on {data} with {of_the_data(amount)}, percent"
    return Table(f"classes-{data}-{amount_key(amount)}", caption, ["class", "n", *arms, "spread"], rows)
