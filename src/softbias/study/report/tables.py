"""The tables of a report, for the page and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from softbias.pages.format import duration, memory, p_value, share
from softbias.study.headline import each
from softbias.study.learning_curve import Fitted
from softbias.study.report.gathering import Material

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "≥": r"$\geq$", "<": "$<$", ">": "$>$",
    "×": r"$\times$", "–": "--", "…": r"\dots{}", "∞": r"$\infty$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """main, and what stands smaller below it."""

    main: str
    below: tuple[str, ...] = ()
    arm: int | None = None


@dataclass(frozen=True)
class Table:
    key: str
    caption: str
    head: list[str]
    rows: list[list[Cell]]
    note: str = ""
    named: int = 1  # columns of names, on the left
    marked: list[int] = field(default_factory=list)  # rows to stress


def line(*cells: str | Cell) -> list[Cell]:
    return [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]


def latex(table: Table) -> str:
    """The table with what is needed around it; needs \\usepackage{booktabs}."""
    columns = "l" * table.named + "r" * (len(table.head) - table.named)
    caption = f"{table.caption}. {table.note}" if table.note else table.caption
    lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{escaped(caption)}}}", f"  \\label{{tab:{table.key}}}"]
    lines += [f"  \\begin{{tabular}}{{{columns}}}", r"    \toprule", f"    {joined(table.head)}", r"    \midrule"]
    lines += [f"    {joined([one_line(cell) for cell in row])}" for row in table.rows]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def joined(texts: Sequence[str]) -> str:
    return " & ".join(escaped(text) for text in texts) + r" \\"


def one_line(cell: Cell) -> str:
    return f"{cell.main} ({'; '.join(cell.below)})" if cell.below else cell.main


def escaped(text: str) -> str:
    """
    >>> escaped("a_b 5 % ± 1")
    'a\\\\_b 5 \\\\% $\\\\pm$ 1'
    """
    return "".join(SPECIAL.get(letter, letter) for letter in text.replace("\N{NO-BREAK SPACE}", " "))


def plus_minus(value: float, low: float, high: float) -> str:
    """
    >>> plus_minus(0.7241, 0.71, 0.738), plus_minus(0.7, float("nan"), float("nan"))
    ('72.4 ± 1.4', '70.0')
    """
    half = 100 * (high - low) / 2
    return f"{100 * value:.1f} ± {half:.1f}" if np.isfinite(half) else f"{100 * value:.1f}"


def span(low: float, high: float, *, sign: bool = False) -> str:
    """
    >>> span(-0.02, 0.031, sign=True), span(0.7, 0.8), span(float("nan"), float("nan"))
    ('−2.0 to +3.1', '70.0 to 80.0', '–')
    """
    if not np.isfinite(low):
        return "–"
    return f"{points(low, sign)} to {points(high, sign)}"


def points(value: float, sign: bool = True) -> str:
    """
    >>> points(-0.021), points(-0.0001), points(0.5, sign=False), points(float("nan"))
    ('−2.1', '+0.0', '50.0', '–')
    """
    if not np.isfinite(value):
        return "–"
    return f"{100 * value:{'+' if sign else ''}z.1f}".replace("-", "−")


def accuracy_table(material: Material, summary: pd.DataFrame, data: str) -> Table:
    """Arms by fractions: mean ± over seeds, below it the interval over test pictures and what else was measured."""
    fractions = material.fractions(data)
    cells = {(row.arm, row.train_fraction): row for row in each(summary[summary["data"] == data])}
    rows = []
    for arm in material.arms:
        row_cells = [Cell(arm, arm=material.number(arm))]
        for fraction in fractions:
            row = cells.get((arm, fraction))
            if row is None:
                row_cells.append(Cell("–"))
                continue
            below = [f"pictures {span(row.images_low, row.images_high)}"]
            below += [f"top-5 {points(row.top5, sign=False)}"] if pd.notna(row.top5) else []
            row_cells.append(Cell(plus_minus(row.accuracy, row.seeds_low, row.seeds_high), (*below, f"n = {row.n}")))
        if any(cell.main != "–" for cell in row_cells[1:]):
            rows.append(row_cells)
    found = {fraction: [row.baseline_accuracy for (_, f), row in cells.items() if f == fraction] for fraction in fractions}
    pixels = [np.mean([value for value in found[f] if pd.notna(value)] or [np.nan]) for f in fractions]
    if np.isfinite(pixels).any():  # large sets have no baseline
        rows.append([Cell("raw-pixel baseline"), *(Cell(points(float(value), sign=False)) for value in pixels)])
    head = ["model", *("all data" if fraction >= 1 else f"{share(fraction)} of the data" for fraction in fractions)]
    note = "± is the 95 % t interval over n seeds, “pictures” the 95 % interval over test pictures (Wilson)."
    return Table(f"accuracy-{data}", f"Test accuracy on {data}, percent", head, rows, note)


def difference_table(comparisons: pd.DataFrame, data: str) -> Table:
    rows: list[list[Cell]] = []
    marked: list[int] = []
    for row in each(comparisons[comparisons["data"] == data]):
        marked += [len(rows)] if row.shown else []
        p = "–" if not np.isfinite(row.p_holm) else p_value(row.p_holm).removeprefix("p = ").removeprefix("p ")
        found = "yes" if row.shown else "no claim" if row.n < 3 else "no"
        relative = (f"{points(row.relative)} % relative",) if np.isfinite(row.relative) else ()
        family = (f"{points(row.detectable_family, sign=False)} in family",) if np.isfinite(row.detectable_family) else ()
        rows.append(
            line(
                Cell(f"{row.arm} − {row.other}", (f"{share(row.train_fraction)} of the data, n = {row.n}",)),
                Cell(points(row.difference), relative),
                span(row.seeds_low, row.seeds_high, sign=True),
                span(row.images_low, row.images_high, sign=True),
                p,
                Cell(points(row.detectable, sign=False), family),
                found,
            )
        )
    head = ["pair", "difference", "95 % over seeds", "95 % over pictures", "p (Holm)", "detectable", "shown"]
    caption = f"Paired differences in test accuracy on {data}, percentage points"
    tests = int(comparisons["family"].max()) if len(comparisons) else 0
    note = (
        "95 % t interval over seeds, in pairs; 95 % bootstrap interval over test pictures, in pairs; p of the paired t test "
        f"over seeds, corrected by Holm over {tests} comparison{'s' if tests != 1 else ''}; detectable with a power of 80 %."
    )
    return Table(f"differences-{data}", caption, head, rows, note, marked=marked)


def matching_table(matching: pd.DataFrame, data: str) -> Table:
    rows = []
    for row in each(matching[matching["data"] == data]):
        times = f"{row.needed / row.train_fraction:.1f} ×" if np.isfinite(row.needed) else "–"
        if row.needed == np.inf:
            times = f"> {row.largest / row.train_fraction:.3g} ×"
        rows.append(
            line(
                row.arm,
                share(row.train_fraction),
                points(row.target, sign=False),
                row.other,
                needed(row.needed, row),
                bounds(row),
                times,
            )
        )
    head = ["model", "with", "reaches", "other model", "needs", "95 % over seeds", "times as much"]
    return Table(f"matching-{data}", f"Data needed to match on {data}, interpolated", head, rows)


def needed(value: float, row: Any, digits: int = 3) -> str:
    if np.isnan(value):
        return "–"
    if np.isinf(value):
        return f"> {share(row.largest)}" if value > 0 else f"< {share(row.smallest)}"
    return f"{100 * value:.{digits if value < 0.995 else 3}g} %"


def bounds(row: Any) -> str:
    if np.isnan(row.low):
        return "–"
    low, high = (needed(edge, row, digits=2) for edge in (row.low, row.high))  # they are drawn, and no better known
    return low if low == high else f"{low} to {high}"


def fit_table(material: Material, fits: dict[tuple[str, str], Fitted], data: str) -> Table:
    rows = []
    for arm in material.arms:
        fit = fits.get((data, arm))
        if fit is not None:
            floor = f"{100 * fit.c:.1f} %" if fit.c else "0 (not fitted)"
            exponent = f"{fit.b:z.3f} ({fit.b_interval[0]:z.3f} to {fit.b_interval[1]:z.3f})".replace("-", "−")
            known = fit.b_interval[0] > 0 and not fit.c  # otherwise more data may not help at all, or not that far
            times = 2 ** min(1 / fit.b, 10) if known else float("nan")
            halved = "–" if not known else f"{times:.3g} ×" if times <= 100 else "> 100 ×"
            rows.append(line(Cell(arm, arm=material.number(arm)), exponent, floor, halved))
    head = ["model", "exponent b, 95 %", "floor c", "data to halve the error"]
    return Table(f"fitted-{data}", f"Fitted learning curves on {data}: error = c + a n^(−b)", head, rows)


def cost_table(material: Material, summary: pd.DataFrame, data: str) -> Table:
    fraction = material.fractions(data)[-1]
    rows = []
    for row in each(summary[(summary["data"] == data) & (summary["train_fraction"] == fraction)]):
        macs = f"{row.macs / 1e6:,.1f} M" if pd.notna(row.macs) else "–"
        used = memory(row.peak_memory) if pd.notna(row.peak_memory) else "–"
        rows.append(
            line(
                Cell(row.arm, arm=material.number(row.arm)),
                f"{row.parameters / 1e6:,.3g} M",
                macs,
                f"{row.images_per_second:,.0f}",
                used,
                duration(row.seconds),
                points(row.accuracy, sign=False),
            )
        )
    head = ["model", "parameters", "MACs", "pictures/s", "peak memory", "training", "accuracy, %"]
    return Table(f"cost-{data}", f"Cost and accuracy on {data} with {share(fraction)} of the data", head, rows)


def class_table(material: Material, table: pd.DataFrame, data: str) -> Table:
    """Class by arm: the recall, as in the chart, of all classes."""
    arms = [arm for arm in material.arms if arm in set(table["arm"])]
    rows = []
    for name, cell in table.groupby("name", sort=False):
        found = dict(zip(cell["arm"], cell["recall"], strict=True))
        recalls = [float(found.get(arm, np.nan)) for arm in arms]
        rows.append(
            line(
                str(name),
                str(int(cell["n"].iloc[0])),
                *(points(value, sign=False) for value in recalls),
                points(max(recalls) - min(recalls), sign=False),
            )
        )
    head = ["class", "n", *arms, "spread"]
    fraction = table["train_fraction"].iloc[0]
    return Table(
        f"classes-{data}-{100 * fraction:g}",
        f"Recall per class on {data} with {share(fraction)} of the data, percent",
        head,
        rows,
    )


def published_table(material: Material, published: pd.DataFrame, summary: pd.DataFrame) -> Table:
    """Numbers of the source beside ours, where we have the same cell."""
    ours = {(row.data, row.arm, row.train_fraction): row for row in each(summary)}
    rows = []
    for row in each(published):
        same = ours.get((row.data, row.arm, row.train_fraction))
        mine = "–"
        if same is not None and row.metric in ("accuracy", "top1", "top-1"):
            mine = plus_minus(same.accuracy, same.seeds_low, same.seeds_high)
        elif same is not None and row.metric in ("top5", "top-5") and pd.notna(same.top5):
            mine = points(same.top5, sign=False)
        number = material.number(row.arm) if row.arm in material.arms else None
        rows.append(
            line(
                Cell(str(row.arm), arm=number),
                str(row.data),
                share(row.train_fraction),
                str(row.metric),
                str(row.printed),
                mine,
                str(row.note),
            )
        )
    head = ["model", "data set", "data", "metric", "published", "ours", "note"]
    return Table("published", "Published numbers beside ours; accuracies in percent", head, rows)
