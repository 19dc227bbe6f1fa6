"""Through training: what probes measured while the runs trained (`--probe-every`), over epochs.

An arm has one color. A strong line is its mean over layers, heads and seeds, a faint line one of its layers. A table says how
far training moved each arm.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from softbias.errors import SoftbiasError
from softbias.pages.charts import Axis, Cell, Chart, Series, Table, line
from softbias.pages.format import amount_text, count, of_the_data
from softbias.runs.live import read_live
from softbias.runs.run import Run
from softbias.stats import t_interval
from softbias.study.headline import each
from softbias.study.report.results import Material, ReportBlock, Results, amount_key, slug


@dataclass(frozen=True)
class Curve:
    """A measure of a probe that is drawn over epochs. digits: after the point, in the table."""

    probe: str
    measure: str
    title: str
    unit: str = ""
    digits: int = 2


CURVES = (
    Curve("locality", "non_locality", "Non-locality", "patches"),
    Curve("gates", "gate", "Gates σ(λ): share of position", digits=3),
    Curve("masks", "moved", "Masks: distance from the start"),
)


def training_blocks(results: Results, data: str) -> list[ReportBlock]:
    """A chart per measure and amount, and a table; nothing where no run was probed while it trained."""
    material = results.material
    charts: list[Chart] = []
    rows: list[list[Cell]] = []
    damaged: set[str] = set()
    for amount in material.amounts(data):
        for curve in CURVES:
            values, unreadable = live_values(material, data, amount, curve)
            damaged |= unreadable
            if len(values):
                charts.append(training_chart(layer_means(values), material, data, amount, curve))
                rows += change_rows(values, amount, curve)
    if not charts and not damaged:
        return []
    text = (
        "Strong: mean over layers, heads and seeds; faint: single layers. Measured with the weights of the step, on pictures "
        "that are not test pictures."
    )
    text += f" The records of {count(len(damaged), 'run')} are damaged, and left out." if damaged else ""
    head = ["model", "measure", "at the start", "at the end", "change", "95 % over seeds"]
    note = "Means over layers, heads and seeds."
    tables = [Table(f"training-{data}", f"What training changed, {data}", head, rows, note)] if rows else []
    return [ReportBlock(charts, text, tables, columns="charts four" if len(charts) == 4 else "charts")]


def live_values(material: Material, data: str, amount: float, curve: Curve) -> tuple[pd.DataFrame, set[str]]:
    """A row per run, layer, head and epoch; and the runs whose records are damaged."""
    rows: list[dict[str, object]] = []
    damaged = set()
    for arm in material.arms:
        for run in each(material.cell(data, amount, arm)):
            try:
                found = read_live(Run(run.run), curve.probe)
            except (OSError, SoftbiasError):
                damaged.add(str(run.run))
                continue
            rows += [
                {"arm": arm, "seed": run.seed, "epoch": row["epoch"], "layer": row["layer"], "value": row["value"]}
                for row in found
                if row["measure"] == curve.measure and row["head"] is not None
            ]
    table = pd.DataFrame(rows, columns=["arm", "seed", "epoch", "layer", "value"])
    if curve.measure == "moved":  # a mask that is not learned is no part of a mean over learned ones
        table = table[table.groupby(["arm", "layer"])["value"].transform("max") > 0]
    return table, damaged


def layer_means(values: pd.DataFrame) -> pd.DataFrame:
    """A row per arm, layer and epoch: the mean over heads and seeds."""
    means = values.groupby(["arm", "layer", "epoch"], sort=False, as_index=False)
    return means.agg(value=("value", "mean"), seeds=("seed", "nunique"))


def ends(values: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and seed: the means over layers and heads at the first and the last epoch. Columns: start, end."""
    means = values.groupby(["arm", "seed", "epoch"], sort=False)["value"].mean().reset_index()
    runs = means.sort_values("epoch").groupby(["arm", "seed"], sort=False)["value"]
    return pd.DataFrame({"start": runs.first(), "end": runs.last()}).reset_index()


def change_rows(values: pd.DataFrame, amount: float, curve: Curve) -> list[list[Cell]]:
    found = ends(values)
    rows = []
    for arm in dict.fromkeys(values["arm"]):
        own = found[found["arm"] == arm]
        change = own["end"] - own["start"]
        low, high = t_interval(change)
        low_text, high_text = signed(low, curve.digits), signed(high, curve.digits)
        rows.append(
            line(
                Cell(arm, (f"{of_the_data(amount)}, n = {len(own)}",)),
                Cell(curve.title, (curve.unit,) if curve.unit else ()),
                *(f"{own[name].mean():.{curve.digits}f}" for name in ("start", "end")),
                signed(float(change.mean()), curve.digits),
                f"{low_text} to {high_text}" if len(own) > 1 else "–",
            )
        )
    return rows


def signed(value: float, digits: int) -> str:
    """
    >>> signed(-0.0351, 3), signed(0.3, 2), signed(-0.001, 2)
    ('−0.035', '+0.30', '0.00')
    """
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if float(f"{value:.{digits}f}") else text[1:]


def training_chart(table: pd.DataFrame, material: Material, data: str, amount: float, curve: Curve) -> Chart:
    series, texts = [], []
    for arm in [arm for arm in material.arms if arm in set(table["arm"])]:
        number, own = material.number(arm), table[table["arm"] == arm]
        for layer, cell in own.groupby("layer"):
            epochs, values = cell["epoch"].tolist(), cell["value"].tolist()
            hover = [f"{arm}, layer {layer}, epoch {epoch:g}\n{value:.3g}" for epoch, value in zip(epochs, values, strict=True)]
            series.append(Series("thin", arm, epochs, values, number, hover=hover))
        mean = own.groupby("epoch")["value"].mean()
        hover = [f"{arm}, epoch {epoch:g}\n{value:.3g}, mean over layers" for epoch, value in mean.items()]
        series.append(Series("curve", arm, mean.index.tolist(), mean.tolist(), number, hover=hover))
        texts.append(f"{arm} from {mean.iloc[0]:.3g} to {mean.iloc[-1]:.3g}")
    return Chart(
        key=f"training-{slug(data)}-{amount_key(amount)}-{curve.measure.replace('_', '-')}",
        title=f"{curve.title} · {amount_text(amount)}",
        series=series,
        x=Axis("epoch", whole=True),
        y=Axis(curve.unit),
        alt=f"{curve.title} by epoch on {data} with {of_the_data(amount)}: {'; '.join(texts)}",
        names=material.arms,
        table=table.assign(data=data, amount=amount, measure=curve.measure),
    )
