"""Charts of what the runs themselves report: learning curves, costs, classes. Accuracies are drawn in percent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.format import share
from softbias.study.headline import each
from softbias.study.report.chart import Chart, Series
from softbias.study.report.figures import part, room, slug
from softbias.study.report.gathering import Material, classes_of, epochs_of
from softbias.study.report.static import short_number

POINTS = 150  # of a learning curve
CLASSES = 20  # in the chart of classes; the table has them all
COSTS = {
    "parameters": ("parameters", 1.0),
    "macs": ("MACs per picture", 1.0),
    "images_per_second": ("training pictures/s", 1.0),
    "peak_memory": ("peak memory, MiB", 2.0**-20),
}


def learning(material: Material, data: str) -> list[Chart]:
    """For every fraction the accuracy while training (on validation pictures, where there were any) and the loss."""
    charts = []
    for column, other, title in (("val_accuracy", "accuracy", "accuracy"), ("loss", "loss", "training loss")):
        for fraction in material.fractions(data):
            found = learning_chart(material, data, fraction, column, other, title)
            charts += [] if found is None else [found]
    return charts


def learning_chart(material: Material, data: str, fraction: float, column: str, other: str, title: str) -> Chart | None:
    tables = {
        (arm, int(row.seed)): epochs_of(row.run) for arm in material.arms for row in each(material.cell(data, fraction, arm))
    }
    tables = {key: table for key, table in tables.items() if len(table) and other in table}
    if not tables:
        return None
    measured = all(column in table and table[column].notna().any() for table in tables.values())
    used = column if measured else other
    scale = 100.0 if title == "accuracy" else 1.0
    series, kept = [], []
    for arm in material.arms:
        mine = [table[["step", used]].dropna().set_index("step")[used] for (name, _), table in tables.items() if name == arm]
        mine = [line for line in mine if len(line)]
        if not mine:
            continue
        number = material.number(arm)
        if len(mine) > 1:
            series += [Series("thin", arm, *thinned(scale * line), number) for line in mine]
        mean = pd.concat(mine, axis=1, join="inner").mean(axis=1)
        if not len(mean):
            continue
        x, y = thinned(scale * mean)
        says = [
            f"<b>{arm}</b>, step {a:,.0f}<br>{b:.3g}{' %' if scale > 1 else ''}, mean of {len(mine)}"
            for a, b in zip(x, y, strict=True)
        ]
        series.append(Series("curve", arm, x, y, number, hover=says))
        for (name, seed), table in tables.items():
            if name == arm:
                kept.append(
                    pd.DataFrame(
                        {
                            "data": data,
                            "train_fraction": fraction,
                            "arm": arm,
                            "seed": seed,
                            "step": table["step"],
                            used: table[used],
                        }
                    )
                )
    ends = "; ".join(f"{one.name} ends at {one.y[-1]:.3g}" for one in series if one.kind == "curve")
    what = {"val_accuracy": "Validation accuracy", "accuracy": "Training accuracy", "loss": "Training loss"}[used]
    return Chart(
        key=f"learning-{slug(data)}-{100 * fraction:g}-{used.replace('_', '-')}",
        title=f"{what} · {share(fraction)}",
        x_title="step",
        y_title="",
        series=series,
        table=pd.concat(kept, ignore_index=True),
        alt=f"{what} by step on {data} with {part(fraction)}: {ends}",
        y_suffix=" %" if scale > 1 else "",
        height=260,
        arms=material.arms,
    )


def thinned(line: pd.Series[float]) -> tuple[list[float], list[float]]:
    """At most `POINTS` points of a curve, the first and the last among them."""
    places = (
        np.unique(np.linspace(0, len(line) - 1, POINTS).round().astype(int)) if len(line) > POINTS else np.arange(len(line))
    )
    return [float(step) for step in line.index[places]], [float(value) for value in line.iloc[places]]


def costs(material: Material, summary: pd.DataFrame, data: str) -> list[Chart]:
    """Accuracy with the most data against parameters, MACs, speed and memory."""
    fraction = material.fractions(data)[-1]
    cells = summary[(summary["data"] == data) & (summary["train_fraction"] == fraction)]
    charts = []
    for column, (title, unit) in COSTS.items():
        rows = cells[pd.to_numeric(cells[column]) > 0] if column in cells else cells[:0]  # not every run knows its cost
        if not len(rows):
            continue
        series = []
        for row in each(rows):
            x = unit * float(getattr(row, column))
            says = [
                f"<b>{row.arm}</b><br>{title}: {short_number(float(f'{x:.3g}'))}<br>{100 * row.accuracy:.1f} %, n = {row.n}"
            ]
            edges: dict[str, Any] = {} if row.n < 2 else {"low": [100 * row.seeds_low], "high": [100 * row.seeds_high]}
            series.append(Series("bars", row.arm, [x], [100 * row.accuracy], material.number(row.arm), **edges, hover=says))
        xs = [one.x[0] for one in series]
        wide = max(xs) / min(xs) > 4
        heights = [100 * value for value in rows["accuracy"]]
        if (rows["n"] > 2).any():
            heights += [100 * value for name in ("seeds_low", "seeds_high") for value in rows[name]]
        said = "; ".join(f"{row.arm} {short_number(float(f'{unit * getattr(row, column):.3g}'))}" for row in each(rows))
        charts.append(
            Chart(
                key=f"cost-{slug(data)}-{column.replace('_', '-')}",
                title=title[0].upper() + title[1:],
                x_title="",
                y_title="test accuracy",
                series=series,
                table=rows[["data", "train_fraction", "arm", column, "accuracy", "seeds_low", "seeds_high", "n"]],
                alt=f"Accuracy against {title} on {data}: {said}",
                x_log=wide,
                x_range=(min(xs) / 1.3, max(xs) * 1.3) if wide else (min(xs) - 0.1 * max(xs), 1.1 * max(xs)),
                y_range=room(heights, 0.15),
                y_suffix=" %",
                height=270,
                arms=material.arms,
            )
        )
    return charts


def per_class(material: Material, data: str, fraction: float) -> Chart | None:
    """Recall of every class by arm, mean over seeds; classes on which the arms differ most come first."""
    found = []
    for arm in material.arms:
        for row in each(material.cell(data, fraction, arm)):
            table = classes_of(row.run)
            if len(table):
                found.append(table.assign(arm=arm, seed=row.seed))
    if not found:
        return None
    rows = pd.concat(found, ignore_index=True)
    rows["recall"] = pd.to_numeric(rows["recall"])
    means = rows.groupby(["name", "arm"], sort=False).agg(
        recall=("recall", "mean"), f1=("f1", "mean"), n=("n", "first"), seeds=("seed", "size")
    )
    wide = means["recall"].unstack("arm")
    apart = (wide.max(axis=1) - wide.min(axis=1)).sort_values(ascending=False, kind="stable")
    chosen = list(apart.index[:CLASSES])
    places = {name: float(len(chosen) - 1 - place) for place, name in enumerate(chosen)}
    table = means.reset_index().assign(data=data, train_fraction=fraction)
    table["spread"] = table["name"].map(apart)
    table = table.sort_values(["spread", "name"], ascending=[False, True], kind="stable")
    series = [Series("thin", "", *(values(wide.loc[name], places[name])), None) for name in chosen]
    for arm in [arm for arm in material.arms if arm in wide]:
        xs = [100 * float(wide.loc[name, arm]) for name in chosen]
        says = [f"<b>{name}</b><br>{arm}: {x:.1f} % found" for name, x in zip(chosen, xs, strict=True)]
        series.append(Series("across", arm, xs, [places[name] for name in chosen], material.number(arm), hover=says))
    first = chosen[0]
    return Chart(
        key=f"classes-{slug(data)}-{100 * fraction:g}",
        title=f"Share of each class that is found (recall), {part(fraction)}",
        x_title="recall, mean over seeds",
        y_title="",
        series=series,
        table=table[["data", "train_fraction", "name", "n", "arm", "seeds", "recall", "f1"]],
        alt=f"Recall per class on {data} with {part(fraction)}; the models differ most on {first}",
        y_ticks=[(place, name if len(name) < 24 else name[:23] + "…") for name, place in places.items()],
        x_suffix=" %",
        y_range=(-0.7, len(chosen) - 0.3),
        height=100 + 26 * len(chosen),
        wide=True,
        arms=material.arms,
    )


def values(recalls: pd.Series[float], place: float) -> tuple[list[float], list[float]]:
    """A line from the lowest to the highest recall of a class."""
    return [100 * float(recalls.min()), 100 * float(recalls.max())], [place, place]
