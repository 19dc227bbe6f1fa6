"""What the bias of a model says about its score: every run as a point, by what probes measured.

The measures are those of `training.CURVES` at the end of training, as means over layers and heads, and those of a bias profile
where the finished runs have one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from softbias.errors import SoftbiasError
from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line, padded
from softbias.pages.format import amount_text, of_the_data, p_value
from softbias.study.profiles import bias_items, read_profiles
from softbias.study.report.results import ReportBlock, Results, amount_key, slug
from softbias.study.report.training import CURVES, Curve, live_values

PROFILE = tuple(Curve("profile", item.key, item.title) for item in bias_items())
LEAST_ARMS = 4  # for a rank correlation: of three, one order in six is perfect by chance


def bias_blocks(results: Results, data: str) -> list[ReportBlock]:
    """A chart per measure and amount, where at least two arms were measured, and the rank correlations over arms."""
    profiles, problem = profile_table(results)
    charts, rows = [], []
    for amount in results.material.amounts(data):
        found = [(curve, final_values(results, data, amount, curve)) for curve in CURVES]
        found += [(curve, profile_values(results, profiles, data, amount, curve)) for curve in PROFILE]
        for curve, table in found:
            if table["arm"].nunique() > 1:
                charts.append(bias_chart(results, table, data, amount, curve))
                rows += correlation_row(table, curve.title, of_the_data(amount))
    if not charts:
        return [ReportBlock(text=problem)] if problem else []
    text = "Faint: single runs; strong: means over seeds, with intervals of the score."
    head = ["measure", "amount", "arms", "rank correlation", "p"]
    caption = f"Do arms with more of it score higher? {data}"
    note = (
        "Spearman's rank correlation of the means of the arms; p from permutations, not corrected for the number of measures. "
        "An arm may owe its score to something else"
    )
    tables = [Table(f"bias-{data}", caption, head, rows, note)] if rows else []
    return [ReportBlock(charts, f"{text} {problem}".strip(), tables, columns="charts")]


def profile_table(results: Results) -> tuple[pd.DataFrame, str]:
    """A row per profiled run and measure; and a sentence where the profiles cannot be read."""
    columns = ["model", "measure", "value"]
    rows: list[dict[str, Any]] = []
    for folder in results.material.given:
        try:
            rows += read_profiles(folder)
        except (OSError, SoftbiasError) as error:
            return pd.DataFrame(columns=columns), f"The profiles of the runs cannot be read: {error}."
    return pd.DataFrame(rows, columns=columns).dropna(subset=["value"]), ""


def profile_values(results: Results, profiles: pd.DataFrame, data: str, amount: float, curve: Curve) -> pd.DataFrame:
    """A row per run: a number of its profile (`bias`), and its score (`value`)."""
    runs = results.material.runs[(results.material.runs["data"] == data) & (results.material.runs["amount"] == amount)]
    runs = runs.assign(model=[Path(run).name for run in runs["run"]])[["model", "arm", "seed", "value"]]
    own = profiles[profiles["measure"] == curve.measure].rename(columns={"value": "bias"})
    return runs.merge(own[["model", "bias"]], on="model")[["arm", "seed", "bias", "value"]]


def final_values(results: Results, data: str, amount: float, curve: Curve) -> pd.DataFrame:
    """A row per run: the measure at its last epoch (`bias`), and its score (`value`)."""
    material = results.material
    table, _ = live_values(material, data, amount, curve)
    last = table[table["epoch"] == table.groupby(["arm", "seed"])["epoch"].transform("max")]
    bias = last.groupby(["arm", "seed"], sort=False, as_index=False).agg(bias=("value", "mean"))
    runs = material.runs[(material.runs["data"] == data) & (material.runs["amount"] == amount)]
    return bias.merge(runs[["arm", "seed", "value"]], on=["arm", "seed"])


def correlation_row(table: pd.DataFrame, title: str, amount: str) -> list[list[Cell]]:
    """How the order of the arms by their bias and by their score agree; no row for few arms, or equal ones."""
    means = table.groupby("arm")[["bias", "value"]].mean()
    if len(means) < LEAST_ARMS or (means.nunique() == 1).any():
        return []
    rho = stats.spearmanr(means["bias"], means["value"]).statistic
    return [line(title, amount, str(len(means)), f"{rho:.2f}".replace("-", "−"), p_value(permutation_p(means)))]


def permutation_p(means: pd.DataFrame) -> float:
    """The share of the orders of the scores whose rank correlation is at least as far from zero."""
    test = stats.permutation_test(
        (means["bias"],), lambda order: stats.spearmanr(order, means["value"]).statistic, permutation_type="pairings",
        n_resamples=9999, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.pvalue)


def bias_chart(results: Results, table: pd.DataFrame, data: str, amount: float, curve: Curve) -> Chart:
    metric, factor = results.metric, results.metric.factor
    cells = results.cells(data, amount).set_index("arm")
    series, ends = [], []
    for arm in dict.fromkeys(table["arm"]):
        own, cell, number = table[table["arm"] == arm], cells.loc[arm], results.number(arm)
        x = float(own["bias"].mean())
        dots = [f"{arm}, seed {row.seed}\n{row.bias:.3g}\n{metric.value(row.value)}" for row in own.itertuples()]
        series.append(Series("dots", arm, own["bias"].tolist(), (factor * own["value"]).tolist(), number, hover=dots))
        edges: dict[str, Any] = (
            {} if cell["n"] < 2 else {"low": [factor * cell["seeds_low"]], "high": [factor * cell["seeds_high"]]}
        )
        hover = [f"{arm}, mean of n = {cell['n']}\n{x:.3g}\n{metric.value(cell['value'])}"]
        series.append(Series("upright", arm, [x], [factor * cell["value"]], number, hover=hover, **edges))
        ends.append(f"{arm} {x:.3g} and {metric.value(cell['value'])}")
    heights = [y for one in series for y in (*one.y, *(one.low or ()), *(one.high or ()))]
    return Chart(
        key=f"bias-{slug(data)}-{amount_key(amount)}-{curve.measure.replace('_', '-')}",
        title=f"{curve.title} at the end · {amount_text(amount)}",
        series=series,
        x=Axis(", ".join(filter(None, (curve.title, curve.unit))), range=padded(table["bias"].tolist(), 0.1, least=1e-3)),
        y=Axis(metric.axis, range=padded(heights, 0.1, least=factor / 100), suffix=metric.suffix),
        alt=f"{metric.heading} against {curve.title} at the end, on {data} with {of_the_data(amount)}: {'; '.join(ends)}",
        names=results.material.arms,
        table=table.assign(data=data, amount=amount, measure=curve.measure),
    )
