"""Learning curves: the fitted error over the amount of data, and accuracy and loss over epochs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line, log_levels
from softbias.pages.format import amount_text, of_the_data, short_number
from softbias.study.headline import each
from softbias.study.report.results import ReportBlock, Results, amount_key, epochs_of, slug

POINTS = 150  # of a learning curve
TITLES = {
    "test_accuracy": "Test accuracy",
    "val_accuracy": "Validation accuracy",
    "accuracy": "Training accuracy",
    "loss": "Training loss",
}


def fitted_blocks(results: Results, data: str) -> list[ReportBlock]:
    chart = fitted_chart(results, data)
    if chart is None and (not results.metric.share or len(results.material.amounts(data)) == 1):
        return []
    if chart is None:
        return [ReportBlock(text="No curve is fitted: that takes at least three amounts of data and five runs of a model.")]
    floor = " With three amounts of data c is taken as 0." if len(results.material.amounts(data)) == 3 else ""
    text = (
        "Fitted: error = c + a n^(−b) over n training pictures, to all single runs; both axes are logarithmic. Bands: 95 % "
        f"interval of the curve. It contains the spread of the seeds and the misfit of the formula.{floor}"
    )
    return [ReportBlock([chart], text, [fitted_table(results, data)])]


def fitted_chart(results: Results, data: str) -> Chart | None:
    """Error against training pictures with the fitted curves and their bands, both axes logarithmic."""
    fits = {arm: results.fits[data, arm] for arm in results.material.arms if (data, arm) in results.fits}
    if not fits:
        return None
    runs = results.material.runs[results.material.runs["data"] == data]
    grid = np.geomspace(float(runs["n_train"].min()), float(runs["n_train"].max()), 40)
    series, tables = [], []
    for arm, fit in fits.items():
        number, ours = results.number(arm), runs[runs["arm"] == arm]
        errors = (100 * (1 - ours["value"])).tolist()
        hover = [f"{arm}, seed {row.seed}\nerror {error:.1f} %" for row, error in zip(each(ours), errors, strict=True)]
        series.append(Series("dots", arm, ours["n_train"].tolist(), errors, number, hover=hover))
        lowest, highest = fit.band(grid)  # of the accuracy
        error, low, high = 100 * fit.error(grid), 100 * (1 - highest), 100 * (1 - lowest)
        hover = [f"{arm}, {n:,.0f} pictures\nfitted error {value:.1f} %" for n, value in zip(grid, error, strict=True)]
        ends = (low.tolist(), high.tolist())
        series.append(Series("fit", arm, grid.tolist(), error.tolist(), number, *ends, hover, arm))
        columns = {"n_train": grid, "error": error / 100, "low": low / 100, "high": high / 100}
        tables.append(pd.DataFrame({"data": data, "arm": arm, **columns}))
    drawn = [value for one in series for value in one.y]
    edges = [value for one in series for edge in (one.low, one.high) for value in edge or ()]
    bottom, top = max(min(*drawn, *edges), 0.8 * min(drawn)), min(max(*drawn, *edges), 1.25 * max(drawn))
    slopes = "; ".join(f"{arm} falls with exponent {fit.b:.2f}" for arm, fit in fits.items())
    sizes = sorted({float(n) for n in runs.groupby("amount")["n_train"].first()})
    levels = [(level, f"{level:g} %") for level in log_levels(bottom, top)]
    return Chart(
        key=f"fitted-curve-{slug(data)}",
        title="Fitted error by amount of training data",
        series=series,
        x=Axis("training pictures", log=True, ticks=[(n, short_number(n)) for n in sizes]),
        y=Axis(f"1 − {results.metric.title}", log=True, ticks=levels, range=(bottom / 1.04, top * 1.04)),
        alt=f"Fitted learning curves on {data}: {slopes}",
        names=results.material.arms,
        table=pd.concat(tables, ignore_index=True),
        height=380,
        wide=True,
    )


def fitted_table(results: Results, data: str) -> Table:
    rows = []
    for arm in results.material.arms:
        fit = results.fits.get((data, arm))
        if fit is not None:
            floor = f"{100 * fit.c:.1f} %" if fit.c else "0 (not fitted)"
            exponent = f"{fit.b:z.3f} ({fit.b_interval[0]:z.3f} to {fit.b_interval[1]:z.3f})".replace("-", "−")
            known = fit.b_interval[0] > 0 and not fit.c  # else more data may not help, or may not halve the error
            times = 2 ** min(1 / fit.b, 10) if known else float("nan")
            halved = "–" if not known else f"{times:.3g} ×" if times <= 100 else "> 100 ×"
            rows.append(line(Cell(arm, number=results.number(arm)), exponent, floor, halved))
    head = ["model", "exponent b, 95 %", "floor c", "data to halve the error"]
    return Table(f"fitted-{data}", f"Fitted learning curves on {data}: error = c + a n^(−b)", head, rows)


def learning_blocks(results: Results, data: str) -> list[ReportBlock]:
    """For every amount the accuracy over epochs, on held-out pictures or else on training pictures, and the loss."""
    study = results.material.study
    held_out = "test_accuracy" if study is not None and study.test_curve else "val_accuracy"
    kinds = ((held_out, "accuracy"), ("loss", "loss"))
    pairs = [(kind, amount) for kind in kinds for amount in results.material.amounts(data)]
    charts = [learning_chart(results, data, amount, *kind) for kind, amount in pairs]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return [ReportBlock(text="The runs have left no record of their epochs.")]
    text = "Strong: mean over seeds; faint: single seeds. " if results.seeds > 1 else ""
    text += "Training figures are taken during training, on augmented pictures."
    if held_out == "test_accuracy":
        text += " Accuracy on test pictures is drawn because the document's figure shows it; it chose nothing."
    return [ReportBlock(drawn, text, columns="charts four" if len(drawn) == 4 else "charts")]


def learning_chart(results: Results, data: str, amount: float, wanted: str, instead: str) -> Chart | None:
    """A column of the metrics over the epochs: `wanted`, or `instead` if a run lacks it."""
    material = results.material
    found = [
        (arm, int(row.seed), epochs_of(row.run)) for arm in material.arms for row in each(material.cell(data, amount, arm))
    ]
    found = [(arm, seed, table) for arm, seed, table in found if len(table) and instead in table]
    if not found:
        return None
    column = wanted if all(wanted in table and table[wanted].notna().any() for *_, table in found) else instead
    scale, unit = (1.0, "") if column == "loss" else (100.0, " %")
    series, kept, ends = [], [], []
    for arm in material.arms:
        number, lines = material.number(arm), []
        for name, seed, table in found:
            if name == arm:
                lines.append(scale * table[["epoch", column]].dropna().set_index("epoch")[column])
                about = {"data": data, "amount": amount, "arm": arm, "seed": seed}
                kept.append(pd.DataFrame({**about, "epoch": table["epoch"], "step": table["step"], column: table[column]}))
        lines = [one for one in lines if len(one)]
        series += [Series("thin", arm, *thinned(one), number) for one in lines] if len(lines) > 1 else []
        mean = pd.concat(lines, axis=1, join="inner").mean(axis=1) if lines else pd.Series(dtype=float)
        if not len(mean):
            continue
        xs, ys = thinned(mean)
        hover = [f"{arm}, epoch {x:,.0f}\n{y:.3g}{unit}, mean of {len(lines)}" for x, y in zip(xs, ys, strict=True)]
        series.append(Series("curve", arm, xs, ys, number, hover=hover))
        ends.append(f"{arm} ends at {ys[-1]:.3g}")
    return Chart(
        key=f"learning-{slug(data)}-{amount_key(amount)}-{column.replace('_', '-')}",
        title=f"{TITLES[column]} · {amount_text(amount)}",
        series=series,
        x=Axis("epoch", whole=True),
        y=Axis(suffix=unit),
        alt=f"{TITLES[column]} by epoch on {data} with {of_the_data(amount)}: {'; '.join(ends)}",
        names=material.arms,
        table=pd.concat(kept, ignore_index=True),
    )


def thinned(values: pd.Series[float]) -> tuple[list[float], list[float]]:
    """At most `POINTS` points of a curve, the first and the last among them."""
    count = len(values)
    chosen = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
    return [float(epoch) for epoch in values.index[chosen]], [float(value) for value in values.iloc[chosen]]
