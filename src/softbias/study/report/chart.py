"""A chart as plain data, drawn twice from the same numbers: interactive (`interactive`) and as a picture (`static`).

Every arm keeps its color, its marker and its dash in all charts. The colors are told apart by people with any color vision
and have enough contrast for text on their paper; the marker says the same once more. From the ninth arm on the colors come
again, with another marker and another dash, so that no two of 32 arms look alike where they are drawn as points, nor as lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

PALETTE = {
    "light": {
        "paper": "#ffffff", "panel": "#f5f7f9", "ink": "#1b1f24", "soft": "#57606a", "line": "#d8dee4",
        "arm0": "#0b5cad", "arm1": "#b34700", "arm2": "#00705a", "arm3": "#95298a", "arm4": "#7d6100", "arm5": "#3d4fc4",
        "arm6": "#a3223f", "arm7": "#4a5560",
    },
    "dark": {
        "paper": "#14171b", "panel": "#1d2228", "ink": "#e6e8eb", "soft": "#a7b1bc", "line": "#363d46",
        "arm0": "#6cb2ff", "arm1": "#ffa366", "arm2": "#45d3b4", "arm3": "#f29be4", "arm4": "#e2c54f", "arm5": "#a9b4ff",
        "arm6": "#ff94a6", "arm7": "#b9c3cd",
    },
}  # fmt: skip
COLORS = 8
MARKERS = {  # plotly's name -> matplotlib's
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "cross": "P", "x": "X", "star": "*",
}  # fmt: skip
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}

Kind = Literal["line", "curve", "thin", "dots", "bars", "across", "span", "reference", "published", "fit"]


def color_of(arm: int | None) -> str:
    """The name of an arm's color."""
    return "soft" if arm is None else f"arm{arm % COLORS}"


def marker_of(arm: int | None) -> str:
    """The next round of colors has the markers three places further, which are all others for eight rounds."""
    return "circle" if arm is None else list(MARKERS)[(arm + 3 * (arm // COLORS)) % len(MARKERS)]


def dash_of(arm: int | None) -> str:
    """Solid for the first eight arms: color and marker tell them apart."""
    return "solid" if arm is None else list(DASHES)[arm // COLORS % len(DASHES)]


def shade_of(arms: int) -> float:
    """How strong a band is drawn; many of them lie upon each other."""
    return 0.15 if arms <= COLORS else 0.05


@dataclass(frozen=True)
class Series:
    """One thing that is drawn.

    kind   line        markers, joined, with a band from low to high
           curve       a line alone, for many points
           thin        a faint line: a single seed
           dots        faint markers: single seeds
           bars        markers with a bar from low to high
           across      the same, lying: low to high along x
           span        a thin lying line from low to high, without a marker
           reference   a dashed gray line, such as the baseline
           published   open diamonds: numbers that are not ours
           fit         a fine line with a band, dotted for the first arms
    arm    its number, for the color; None: gray
    also   the number of a second arm without which it makes no sense, such as the other of a difference
    label  written beside the last point
    """

    kind: Kind
    name: str
    x: Sequence[float]
    y: Sequence[float]
    arm: int | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    hover: Sequence[str] | None = None
    label: str | None = None
    also: int | None = None


@dataclass(frozen=True)
class Chart:
    """key: its name as a file; table: the numbers, as they go into the CSV file; alt: what it shows, in words."""

    key: str
    title: str
    x_title: str
    y_title: str
    series: list[Series]
    table: pd.DataFrame
    alt: str
    note: str = ""
    x_log: bool = False
    y_log: bool = False
    x_ticks: list[tuple[float, str]] | None = None
    y_ticks: list[tuple[float, str]] | None = None
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_suffix: str = ""
    y_suffix: str = ""
    zero: bool = False  # a line at x = 0
    height: int = 340
    wide: bool = False
    arms: list[str] = field(default_factory=list)  # names by number, for the legend of the picture


def spread(values: Sequence[float], least: float) -> list[float]:
    """Places for labels near the values, at least so far from each other, in the same order.

    >>> spread([1.0, 1.1, 5.0], 1.0)
    [0.55, 1.55, 5.0]
    """
    order = sorted(range(len(values)), key=lambda place: values[place])
    groups: list[list[int]] = [[place] for place in order]

    def middle(group: list[int]) -> float:
        return sum(values[place] for place in group) / len(group)

    merged = True
    while merged:
        merged = False
        for number in range(len(groups) - 1):
            a, b = groups[number], groups[number + 1]
            if middle(b) - middle(a) < least * (len(a) + len(b)) / 2 - 1e-12:
                groups[number : number + 2] = [a + b]
                merged = True
                break
    places = [0.0] * len(values)
    for group in groups:
        for rank, place in enumerate(group):
            places[place] = round(middle(group) + (rank - (len(group) - 1) / 2) * least, 10)
    return places


def shortened(name: str, most: int = 22) -> str:
    """
    >>> shortened("deit_tiny@regularize=distance:layer=2,weight=0.01")
    'deit_tiny@regularize=…'
    """
    return name if len(name) <= most else name[: most - 1] + "…"
