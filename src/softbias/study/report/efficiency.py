"""The first chart of a report: accuracy against the amount of training data, or with one amount a bar per arm.

Accuracies are drawn in percent. A band or bar is the 95 % t interval over seeds, a faint point a single seed.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from softbias.pages.format import share
from softbias.study.headline import each
from softbias.study.report.chart import Chart, Series, shortened
from softbias.study.report.figures import part, room, slug
from softbias.study.report.gathering import Material
from softbias.study.report.static import short_number

PIXELS = "logistic regression on raw pixels"
KEPT = (
    "data", "arm", "train_fraction", "n_train", "n", "accuracy", "sd", "seeds_low", "seeds_high", "images_low", "images_high",
    "n_test", "top5", "balanced_accuracy", "macro_f1", "baseline_accuracy",
)  # fmt: skip


def efficiency(material: Material, summary: pd.DataFrame, published: pd.DataFrame, data: str) -> Chart:
    rows = summary[summary["data"] == data]
    draw = by_arm if len(material.fractions(data)) == 1 else by_amount
    best = "; ".join(f"{row.arm} {100 * row.accuracy:.1f} % with {part(row.train_fraction)}" for row in each(rows))
    about = {"key": f"sample-efficiency-{slug(data)}", "table": table_of(rows, published), "arms": material.arms}
    return draw(material, rows, published, data, about | {"alt": f"Test accuracy on {data}: {best}", "wide": True})


def by_amount(material: Material, rows: pd.DataFrame, published: pd.DataFrame, data: str, about: dict[str, Any]) -> Chart:
    """Curves over the share of the training pictures."""
    fractions = material.fractions(data)
    series: list[Series] = []
    baseline = rows.groupby("train_fraction")["baseline_accuracy"].mean().dropna() * 100
    if len(baseline):
        says = [f"{PIXELS}: {value:.1f} %" for value in baseline]
        xs = [float(value) for value in baseline.index]
        series.append(Series("reference", PIXELS, xs, baseline.tolist(), hover=says, label="raw-pixel baseline"))
    for arm in material.arms:
        cells = rows[rows["arm"] == arm].sort_values("train_fraction")
        if not len(cells):
            continue
        number, runs = material.number(arm), runs_of(material, data, arm)
        if len(runs) > len(cells):
            heights = (100 * runs["accuracy"]).tolist()
            series.append(Series("dots", arm, runs["train_fraction"].tolist(), heights, number, hover=seeds(arm, runs)))
        edges: dict[str, Any] = {name: (100 * cells[f"seeds_{name}"]).tolist() for name in ("low", "high")}
        texts, heights = [hover(row) for row in each(cells)], (100 * cells["accuracy"]).tolist()
        series.append(Series("line", arm, cells["train_fraction"].tolist(), heights, number, **edges, hover=texts, label=arm))
    for row in each(published):
        known = material.number(row.arm) if row.arm in material.arms else None
        series.append(
            Series("published", f"published: {row.arm}", [row.train_fraction], [row.value], known, hover=[theirs(row)])
        )
    low, high = room(heights_of(series, rows, "y"))
    per = rows.groupby("train_fraction")["n_train"].first()
    ticks = [(value, f"{share(value)}<br>{short_number(float(per[value]))}") for value in fractions]
    ticks += [(float(value), share(value)) for value in sorted(set(published["train_fraction"]) - set(fractions))]
    places = [value for value, _ in ticks]
    return Chart(
        title="Accuracy by amount of training data",
        x_title="training pictures, share and number",
        y_title="test accuracy",
        series=series,
        x_log=True,
        x_ticks=sorted(ticks),
        x_range=(min(places) / 1.15, max(places) * 1.08),
        y_range=(low, min(high, 101.0)),
        y_suffix=" %",
        height=420,
        **about,
    )


def by_arm(material: Material, rows: pd.DataFrame, published: pd.DataFrame, data: str, about: dict[str, Any]) -> Chart:
    """With a single amount of data: one lying bar per arm."""
    arms = [arm for arm in material.arms if arm in set(rows["arm"])]
    place = {arm: float(len(arms) - 1 - number) for number, arm in enumerate(arms)}
    series: list[Series] = []
    baseline = rows["baseline_accuracy"].dropna()
    if len(baseline):
        value = 100 * float(baseline.mean())
        says = [f"{PIXELS}: {value:.1f} %"] * 2
        series.append(Series("reference", PIXELS, [value, value], [-0.6, len(arms) - 0.4], hover=says))
    for row in each(rows):
        number, y, runs = material.number(row.arm), place[row.arm], runs_of(material, data, row.arm)
        if len(runs) > 1:
            values = (100 * runs["accuracy"]).tolist()
            series.append(Series("dots", row.arm, values, [y] * len(runs), number, hover=seeds(row.arm, runs)))
        edges: dict[str, Any] = {"low": [100 * row.seeds_low], "high": [100 * row.seeds_high]} if row.n > 1 else {}
        series.append(Series("across", row.arm, [100 * row.accuracy], [y], number, **edges, hover=[hover(row)]))
    for row in each(published):
        if row.arm in place:
            number, y = material.number(row.arm), place[row.arm]
            series.append(Series("published", f"published: {row.arm}", [row.value], [y], number, hover=[theirs(row)]))
    low, high = room(heights_of(series, rows, "x"))
    return Chart(
        title=f"Accuracy with {part(material.fractions(data)[0])}",
        x_title="test accuracy",
        y_title="",
        series=series,
        y_ticks=[(y, shortened(arm, 34)) for arm, y in place.items()],
        y_range=(-0.6, len(arms) - 0.4),
        x_range=(low, min(high, 101.0)),
        x_suffix=" %",
        height=100 + 34 * len(arms),
        **about,
    )


def heights_of(series: list[Series], rows: pd.DataFrame, axis: str) -> list[float]:
    """All accuracies that are drawn. Two seeds have an interval so wide that it would flatten everything else."""
    values = [float(value) for one in series for value in getattr(one, axis)]
    if (rows["n"] > 2).any():
        values += [float(v) for one in series if one.low is not None for v in (*one.low, *(one.high or ()))]
    return values


def runs_of(material: Material, data: str, arm: str) -> pd.DataFrame:
    return material.runs[(material.runs["data"] == data) & (material.runs["arm"] == arm)]


def seeds(arm: str, runs: pd.DataFrame) -> list[str]:
    return [f"{arm}, seed {row.seed}: {100 * row.accuracy:.1f} %" for row in each(runs)]


def theirs(row: Any) -> str:
    return f"<b>published</b>: {row.arm}, {row.data}, {part(row.train_fraction)}<br>{row.printed} %<br>{row.note}"


def hover(row: Any) -> str:
    """What a point of a cell says."""
    count = f"n = {row.n} seed{'s' if row.n > 1 else ''}"
    lines = [f"<b>{row.arm}</b>, {part(row.train_fraction)}", f"{100 * row.accuracy:.1f} %, {count}"]
    if row.n > 1:
        lines.append(f"over seeds {100 * row.seeds_low:.1f} to {100 * row.seeds_high:.1f} %")
    lines.append(f"over test pictures {100 * row.images_low:.1f} to {100 * row.images_high:.1f} %")
    return "<br>".join(lines)


def table_of(rows: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    table = rows[list(KEPT)].assign(kind="measured")
    if len(published):
        others = published[["data", "arm", "train_fraction"]].assign(accuracy=published["value"] / 100, kind="published")
        table = pd.concat([table.astype(object), others.astype(object)], ignore_index=True)
    return table
