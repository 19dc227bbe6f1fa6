"""Charts and tables as plain data. Of a chart, `pages.interactive` draws a part of a page and `pages.static` a picture.

losses = Series("curve", "training", [1, 2, 3], [2.3, 1.9, 1.7], 0)
Chart("loss", "Loss", [losses], Axis("epoch", whole=True), Axis(range=(0, 2.5)), alt="Loss by epoch: 2.3 to 1.7")

A table stands on pages (a macro of `parts.html.jinja`) and is written as LaTeX (booktabs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from softbias.pages.format import short_number

if TYPE_CHECKING:
    import pandas as pd


Kind = Literal[
    "line", "curve", "thin", "mean", "dots", "upright", "across", "span", "columns", "reference", "published", "fit"
]  # fmt: skip
LINES = ("curve", "thin", "mean", "fit", "reference")  # kinds that draw nothing but a line
Range = tuple[float, float]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Series:
    """One series of points.

    kind    line        markers, joined by a line, with a band from low to high
            curve       a line without markers, for many points
            thin        a faint line: a single seed, or a single layer
            mean        a strong black line without markers: the mean of the other series
            dots        faint markers: single seeds
            upright     markers with a vertical whisker from low to high
            across      markers with a horizontal whisker from low to high
            span        thin horizontal lines from low to high, without markers
            columns     columns from zero to y
            reference   a dashed gray line, such as a baseline
            published   open diamonds: numbers that others have published
            fit         a fine line with a band, dotted for the first series
    number  selects color, marker and dash; None is gray
    hover   a text for each point; a line break separates its lines
    label   written beside the last point
    other   the number of a second series without which this one makes no sense, as in a difference of two

    A point of a line without a neighbor to join it with gets a marker, so that it can be seen.
    """

    kind: Kind
    name: str
    x: Sequence[float]
    y: Sequence[float]
    number: int | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    hover: Sequence[str] | None = None
    label: str = ""
    other: int | None = None

    def lonely(self) -> list[int]:
        """The points of a line that have no neighbor: a marker shows them.

        >>> Series("curve", "a", [1, 2, 3, 4], [5.0, math.nan, 6.0, 7.0]).lonely()
        [0]
        """
        there = [False, *(is_finite(x) and is_finite(y) for x, y in zip(self.x, self.y, strict=True)), False]
        return [index for index in range(len(self.x)) if there[index : index + 3] == [False, True, False]]


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


@dataclass(frozen=True)
class Axis:
    """range and ticks follow from the data where they are not given.

    whole       ticks at whole numbers only
    categories  the ticks are names of rows, not numbers
    """

    title: str = ""
    log: bool = False
    range: Range | None = None
    ticks: Ticks | None = None
    suffix: str = ""
    whole: bool = False
    categories: bool = False

    def position(self, value: float) -> float:
        """Where a value lies on the axis: 0 at its start, 1 at its end."""
        assert self.range is not None
        low, high, at = (math.log(number) if self.log else number for number in (*self.range, value))
        return (at - low) / (high - low)

    def value(self, position: float) -> float:
        """The inverse of `position`."""
        assert self.range is not None
        low, high = (math.log(number) if self.log else number for number in self.range)
        at = low + position * (high - low)
        return math.exp(at) if self.log else at


@dataclass(frozen=True)
class Chart:
    """key: its name as a file; names: what the numbers of series are called; table: its numbers as they go into a CSV file.

    alt     what the chart shows, in words
    zero    draws a line at x = 0
    height  in CSS pixels, for a chart in a column of its own width
    wide    takes the whole width of a page
    """

    key: str
    title: str
    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    alt: str = ""
    names: Sequence[str] = ()
    table: pd.DataFrame | None = field(default=None, compare=False)
    zero: bool = False
    height: int = 260
    wide: bool = False

    def numbers(self) -> list[int]:
        """The numbers of its series."""
        return sorted({series.number for series in self.series if series.number is not None})

    def axes(self) -> tuple[Axis, Axis]:
        """Both axes with range and ticks."""
        return resolved(self.x, values_of(self, "x")), resolved(self.y, values_of(self, "y"))

    def shade(self) -> float:
        """The opacity of a band; many bands lie upon each other."""
        return 0.15 if len(self.numbers()) <= 8 else 0.05


def values_of(chart: Chart, name: Literal["x", "y"]) -> list[float]:
    """All finite values along an axis, those of whiskers included."""
    lying = ("across", "span")
    found: list[float] = []
    for series in chart.series:
        found += getattr(series, name)
        if series.low is not None and series.high is not None and (series.kind in lying) == (name == "x"):
            found += [*series.low, *series.high]
        found += [0.0] if series.kind == "columns" and name == "y" else []
    return [float(value) for value in found if value is not None and math.isfinite(value)]


def resolved(axis: Axis, values: Sequence[float]) -> Axis:
    """The axis with range and ticks."""
    edges = axis.range
    if edges is None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if low == high:
            low, high = (low / 2, 2 * high) if axis.log else (low - 1, high + 1)
        edges = (low, high)
    if axis.ticks is not None:
        return replace(axis, range=edges)
    levels = log_levels(*edges) if axis.log else linear_levels(*edges, whole=axis.whole)
    return replace(axis, range=edges, ticks=[(level, f"{short_number(level)}{axis.suffix}") for level in levels])


def linear_levels(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round values in a range, about `count` of them.

    >>> linear_levels(0, 1), linear_levels(1, 3, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 2.0, 3.0])
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= 0.999 * rough)
    step = max(1.0, math.ceil(step)) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def log_levels(low: float, high: float) -> list[float]:
    """Round values in a range on a logarithmic axis.

    >>> log_levels(18, 45)
    [20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)):
        found = [s * 10.0**power for power in powers for s in steps if low / 1.02 <= s * 10.0**power <= high * 1.02]
        if len(found) >= 4:
            break
    every = -(-len(found) // 8)
    return found[::every] or [low, high]


def padded(values: Sequence[float], share: float = 0.08, least: float = 1.0) -> Range:
    """A range that holds the values and a margin of at least `least`; it does not become negative because of its margin."""
    kept = [value for value in values if math.isfinite(value)]
    low, high = min(kept), max(kept)
    margin = max(share * (high - low), least)
    return max(low - margin, 0.0) if low >= 0 else low - margin, high + margin


def label_positions(chart: Chart, y: Axis, height: float) -> list[tuple[Series, float]]:
    """The labeled series, and the height of each label from 0 to 1: near the end of its line, at least 16 pixels apart."""
    labeled = [series for series in chart.series if series.label]
    ends = [y.position(float(series.y[-1])) for series in labeled]
    return list(zip(labeled, spread(ends, 16 / height), strict=True))


def spread(values: Sequence[float], least: float) -> list[float]:
    """Positions near the values, in the same order, at least `least` apart.

    >>> spread([1.0, 1.1, 5.0], 1.0)
    [0.55, 1.55, 5.0]
    """
    groups = [[index] for index in sorted(range(len(values)), key=lambda index: values[index])]

    def middle(group: list[int]) -> float:
        return sum(values[index] for index in group) / len(group)

    number = 0
    while number < len(groups) - 1:
        first, second = groups[number], groups[number + 1]
        if middle(second) - middle(first) < least * (len(first) + len(second)) / 2 - 1e-12:
            groups[number : number + 2] = [first + second]
            number = max(number - 1, 0)  # the larger group may touch the one before it
        else:
            number += 1
    found = [0.0] * len(values)
    for group in groups:
        for rank, index in enumerate(group):
            found[index] = round(middle(group) + (rank - (len(group) - 1) / 2) * least, 10)
    return found


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "≥": r"$\geq$", "<": "$<$", ">": "$>$",
    "×": r"$\times$", "–": "--", "…": r"\dots{}", "∞": r"$\infty$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """main, with smaller lines below it; number: the series whose marker stands before it."""

    main: str
    below: tuple[str, ...] = ()
    number: int | None = None


MOST_ROWS = 24  # of a table that is shown whole


@dataclass(frozen=True)
class Table:
    """key: its name as a file; marked: the rows to stress.

    The first column holds names, all others hold numbers.
    """

    key: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    marked: Sequence[int] = field(default_factory=tuple)

    @property
    def tall(self) -> bool:
        """Whether it is shown in its full height, and not scrolled."""
        return len(self.rows) <= MOST_ROWS


def line(*cells: str | Cell) -> list[Cell]:
    return [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]


def latex(table: Table) -> str:
    """The table in its environment; it needs \\usepackage{booktabs}."""
    caption = f"{table.caption}. {table.note}" if table.note else table.caption
    lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{escaped(caption)}}}", f"  \\label{{tab:{table.key}}}"]
    lines += [f"  \\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"    \toprule", f"    {joined(table.head)}"]
    lines += [r"    \midrule", *(f"    {joined([one_line(cell) for cell in row])}" for row in table.rows)]
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
