"""A study's accuracies as a table in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from softbias.pages.format import share

if TYPE_CHECKING:
    import pandas


def print_table(frame: pandas.DataFrame) -> None:
    """Accuracy of every arm at every fraction, with its interval, and the raw-pixel baseline below."""
    from rich.console import Console
    from rich.table import Table

    from softbias.study.statistics import summarize

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    scored = frame[frame["accuracy"].notna() & ~frame["pretext"].astype(bool)]
    if scored.empty:
        console.print("no run has test pictures to be scored on")
        return
    cells = summarize(scored)
    for data in dict.fromkeys(cells["data"]):
        part = cells[cells["data"] == data]
        fractions = sorted(set(part["train_fraction"]))
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(f"{data}: accuracy with")
        for fraction in fractions:
            pictures = part[part["train_fraction"] == fraction]["n_train"].iloc[0]
            table.add_column(f"{share(fraction)} ({pictures:,} pictures)", justify="right", no_wrap=True)
        for arm in dict.fromkeys(part["arm"]):
            rows = {row["train_fraction"]: row for _, row in part[part["arm"] == arm].iterrows()}
            table.add_row(arm, *(cell(rows[fraction]) if fraction in rows else "–" for fraction in fractions))
        base = [part[part["train_fraction"] == fraction]["baseline_accuracy"].dropna() for fraction in fractions]
        if any(len(values) for values in base):
            table.add_row("raw pixels", *(f"{values.mean():.1%}" if len(values) else "–" for values in base), style="dim")
        console.print(table)
    console.print(legend(cells), style="dim")


def cell(row: Any) -> str:
    """ "81.2% ± 1.3%, n = 3": half the interval over seeds; of one seed Wilson's over test pictures."""
    low, high = (row["seeds_low"], row["seeds_high"]) if row["n"] > 1 else (row["images_low"], row["images_high"])
    return f"{row['accuracy']:.1%} ± {(high - low) / 2:.1%}, n = {row['n']}"


def legend(cells: pandas.DataFrame) -> str:
    kinds = []
    if (cells["n"] > 1).any():
        kinds.append("95 % t interval of the mean over n seeds")
    if (cells["n"] == 1).any():
        kinds.append("n = 1: 95 % interval over test pictures only, which says nothing about another seed")
    return "±: " + "; ".join(kinds)
