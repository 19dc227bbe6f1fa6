"""How much data the other model needs to match, as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.charts import Table, line
from softbias.pages.format import amount_text
from softbias.study.headline import each
from softbias.study.metric import ACCURACY, Metric
from softbias.study.report.results import ReportBlock, Results


def matching_blocks(results: Results, data: str) -> list[ReportBlock]:
    table = matching_table(results.matching, data, results.seeds, results.metric)
    return [ReportBlock(heading="How much data does the other model need to match?", tables=[table])] if table.rows else []


def matching_table(matching: pd.DataFrame, data: str, seeds: int = 3, metric: Metric = ACCURACY) -> Table:
    rows = []
    for row in each(matching[matching["data"] == data]):
        times = f"{row.needed / row.amount:.1f} ×" if np.isfinite(row.needed) else "–"
        if row.needed == np.inf:
            times = f"> {row.largest / row.amount:.3g} ×"
        reached = metric.number(row.target)
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
