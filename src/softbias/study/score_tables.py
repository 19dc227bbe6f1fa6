"""The main metric of every arm at every amount, with its interval, as a table of text for a terminal and for a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.format import amount_text
from softbias.study.comparison import prepare, summarize
from softbias.study.metric import ACCURACY, Metric
from softbias.terminal import make_console


@dataclass(frozen=True)
class ScoreTable:
    """The metric on one data set as text, for a terminal and for a notebook: a row per arm, a column per amount.

    below   a row for comparison, its name first: the regression on raw pixels, or random answers
    """

    data: str
    title: str
    head: list[str]
    rows: list[list[str]]
    below: list[str] | None


def score_tables(
    frame: pd.DataFrame, metric: Metric = ACCURACY, chance_level: float | None = None
) -> tuple[list[ScoreTable], str]:
    """A table per data set, and the meaning of its intervals; no table where no run has the score."""
    if prepare(frame, metric).empty:
        return [], "no run has a test score"
    cells = summarize(frame, metric)
    tables = []
    for data in dict.fromkeys(cells["data"]):
        part = cells[cells["data"] == data]
        amounts = sorted(set(part["amount"]))
        by_amount = {amount: part[part["amount"] == amount] for amount in amounts}
        head = [f"{amount_text(amount)} ({rows['n_train'].iloc[0]:,} pictures)" for amount, rows in by_amount.items()]
        rows = []
        for arm in dict.fromkeys(part["arm"]):
            found = {row["amount"]: row for _, row in part[part["arm"] == arm].iterrows()}
            rows.append([arm, *(cell_text(found[amount], metric) if amount in found else "–" for amount in amounts)])
        below = None
        if chance_level is not None:
            below = ["random answers", *[metric.value(chance_level).replace(" %", "%")] * len(amounts)]
        elif metric.name == "accuracy" and part["baseline_accuracy"].notna().any():
            fitted = [rows["baseline_accuracy"].dropna() for rows in by_amount.values()]
            below = ["raw pixels", *(f"{values.mean():.1%}" if len(values) else "–" for values in fitted)]
        tables.append(ScoreTable(data, f"{data}: {metric.title} with", head, rows, below))
    kinds = []
    if metric.repeated == "rounds":
        return tables, f"±: half of the quartiles' distance over {metric.over}"
    if (cells["n"] > 1).any():
        kinds.append("95 % t interval of the mean over n seeds")
    if ((cells["n"] == 1) & cells["images_low"].notna()).any():
        kinds.append(f"n = 1: 95 % interval over {metric.over} only, which says nothing about another seed")
    return tables, "±: " + "; ".join(kinds) if kinds else "one seed, and no interval"


def cell_text(row: Any, metric: Metric = ACCURACY) -> str:
    """ "81.2% ± 1.3%, n = 3": half the interval over seeds, or with one seed half of that over test images."""
    low, high = (row["seeds_low"], row["seeds_high"]) if row["n"] > 1 else (row["images_low"], row["images_high"])
    if not metric.share:
        seeds = "" if metric.repeated == "rounds" else f", n = {row['n']}"
        return f"{metric.plus_minus(row['value'], low, high)}{metric.suffix}{seeds}"
    half = (high - low) / 2
    values = [row["value"], half] if np.isfinite(half) else [row["value"]]
    return f"{' ± '.join(f'{value:.1%}' for value in values)}, n = {row['n']}"


def print_scores(frame: pd.DataFrame, metric: Metric = ACCURACY, chance_level: float | None = None) -> None:
    """The metric of every arm at every amount with its interval, and what it is compared with below, in a terminal."""
    from rich.table import Table

    console = make_console()
    tables, legend = score_tables(frame, metric, chance_level)
    for one in tables:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(one.title)
        for title in one.head:
            table.add_column(title, justify="right", no_wrap=True)
        for row in one.rows:
            table.add_row(*row)
        if one.below is not None:
            table.add_row(*one.below, style="dim")
        console.print(table)
    console.print(legend, style="dim" if tables else None)
