"""Charts and maps as PNG files, drawn by matplotlib without its global state."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softbias.files import write_bytes
from softbias.pages.charts import LINES, Axis, Chart, Series, label_positions
from softbias.pages.format import shortened
from softbias.pages.theme import DASHES, DPI, LIGHT, MARKERS, PALETTE, color_of, dash_of, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3  # of a legend
NAMED, COUNTED = 150, 25  # the most classes whose names, and whose counts, stand in a confusion matrix
LONGEST = 28  # characters of a class name beside the matrix


def new_figure(
    width: float, height: float, *, dpi: float = DPI, paper: str = LIGHT["paper"], layout: Any = "constrained"
) -> Figure:
    """An empty figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=dpi, facecolor=paper, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png_of(figure: Figure, **options: Any) -> bytes:
    """The figure as a PNG file."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in another script; the page has it as text
        figure.savefig(stream, format="png", metadata={"Software": None}, facecolor=figure.get_facecolor(), **options)
    return stream.getvalue()


def png(chart: Chart) -> bytes:
    """The chart as a PNG file on white paper."""
    lines = math.ceil(len(in_legend(chart)) / COLUMNS)  # further lines of the legend do not make the plot smaller
    figure = new_figure(9.2 if chart.wide else 5.6, chart.height / 85 + 0.19 * max(0, lines - 1))
    axes = figure.add_subplot()
    draw_chart(axes, chart)
    add_legend(figure, chart)
    return png_of(figure)


def sheet(charts: Sequence[Chart], *, width: float = 4.2, height: float = 3.0, columns: int = 3, title: str = "") -> Figure:
    """Several charts in one figure, under one legend."""
    figure, axes = panels(len(charts), side=width, height=height, columns=columns)
    for one, chart in zip(axes, charts, strict=True):
        draw_chart(one, chart, size=8)
        one.set_title(chart.title, fontsize=9)
    heading(figure, title)
    add_legend(figure, charts[0], size=7.5, columns=max(columns, COLUMNS), always=True, below=bool(title))
    return figure


def panels(count: int, *, side: float = 2.6, height: float | None = None, columns: int = 6) -> tuple[Figure, list[Axes]]:
    """A figure of `count` pairs of axes, row by row."""
    columns = min(columns, count)
    lines = -(-count // columns)
    figure = new_figure(max(side * columns, 4.2), (height or side) * lines + 0.45, dpi=110)
    axes = [axes for line in figure.subplots(lines, columns, squeeze=False) for axes in line]
    for extra in axes[count:]:
        extra.set_axis_off()
    for one in axes[:count]:
        one.tick_params(labelsize=7)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes[:count]


def heading(figure: Figure, text: str) -> None:
    """A title that is broken where the figure ends."""
    if text:
        figure.suptitle("\n".join(textwrap.wrap(text, int(14 * figure.get_figwidth()))), fontsize=9)


def save(figure: Figure, folder: str | Path, stem: str, name: str | None = None) -> Path:
    """Write the figure as <stem>.png or <stem>-<name>.png into a folder."""
    tail = "" if name is None else "-" + re.sub(r"[^\w.]+", "_", name).strip("_")
    path = Path(folder) / f"{stem}{tail}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png_of(figure))
    return path


def show_map(axes: Axes, values: Any, *, frame: str | None = None, **options: Any) -> Any:
    """A map or a picture without ticks, one cell per value; frame: the color of a thin line around it."""
    drawn = axes.imshow(np.asarray(values), interpolation="nearest", **options)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(frame is not None)
    axes.spines[:].set_color(frame)
    axes.spines[:].set_linewidth(0.4)
    return drawn


def draw_chart(axes: Axes, chart: Chart, size: float = 9) -> None:
    x, y = chart.axes()
    for name, axis in (("x", x), ("y", y)):
        set_axis(axes, name, axis, size)
    for series in chart.series:
        draw_series(axes, series, chart.shade())
    if chart.zero:
        axes.axvline(0, color=LIGHT["soft"], linewidth=1.2, zorder=0)
        axes.grid(axis="x", color=LIGHT["line"], linewidth=0.8, zorder=0)
    axes.grid(axis="y", color=LIGHT["line"], linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LIGHT["line"])
    axes.tick_params(colors=LIGHT["soft"], labelsize=size, length=0, which="both")
    style: dict[str, Any] = {"xytext": (9, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    for series, position in label_positions(chart, y, max(chart.height - 60, 1)):
        color, end = LIGHT[color_of(series.number)], (float(series.x[-1]), y.value(position))
        axes.annotate(shortened(series.label), end, color=color, fontsize=size, parse_math=False, **style)


def set_axis(axes: Axes, name: str, axis: Axis, size: float) -> None:
    from matplotlib.ticker import NullLocator

    assert axis.ticks is not None and axis.range is not None
    getattr(axes, f"set_{name}label")(axis.title, color=LIGHT["soft"], fontsize=size + 0.5)
    if axis.log:
        getattr(axes, f"set_{name}scale")("log")
    getattr(axes, f"set_{name}ticks")([value for value, _ in axis.ticks], [text for _, text in axis.ticks], parse_math=False)
    getattr(axes, f"{name}axis").set_minor_locator(NullLocator())
    getattr(axes, f"set_{name}lim")(*axis.range)


def draw_series(axes: Axes, series: Series, shade: float) -> None:
    color, dash = LIGHT[color_of(series.number)], DASHES[dash_of(series.number)]
    x, y = np.asarray(series.x, float), np.asarray(series.y, float)
    low, high = (None if edge is None else np.asarray(edge, float) for edge in (series.low, series.high))
    mark = marker_style(series.number)
    if series.kind in ("line", "curve", "fit"):
        if low is not None and high is not None:
            there = np.isfinite(low) & np.isfinite(high)
            axes.fill_between(x, low, high, color=color, alpha=shade, linewidth=0, where=there.tolist())
        styles: Mapping[str, dict[str, Any]] = {
            "line": {"linewidth": 2.2, "linestyle": dash, **mark},
            "curve": {"linewidth": 2.0, "linestyle": dash, "color": color},
            "fit": {"linewidth": 1.4, "linestyle": ":" if dash == "-" else dash, "color": color},
        }
        inside = bool((x >= min(axes.get_xlim())).all() and (x <= max(axes.get_xlim())).all())
        axes.plot(x, y, **styles[series.kind], zorder=3, clip_on=not inside)
    elif series.kind == "mean":
        axes.plot(x, y, color=LIGHT["ink"], linewidth=2.4, zorder=4)
    elif series.kind == "thin":
        axes.plot(x, y, color=color, alpha=0.35, linewidth=0.8, linestyle=dash)
    elif series.kind == "dots":
        axes.plot(x, y, color=color, alpha=0.35, marker=mark["marker"], markersize=4, linestyle="", markeredgewidth=0)
    elif series.kind == "reference":
        axes.plot(x, y, color=LIGHT["soft"], linestyle="--", linewidth=1.3)
    elif series.kind == "published":
        edge = color if series.number is not None else LIGHT["ink"]
        axes.plot(x, y, "D", markerfacecolor="none", markeredgecolor=edge, markersize=8, markeredgewidth=1.6)
    elif series.kind == "columns":
        axes.bar(x, y, width=0.92 * float(np.diff(x).min()) if len(x) > 1 else 0.8, color=color)
    elif series.kind == "span" and low is not None and high is not None:
        axes.hlines(y, low, high, color=color, linewidth=1.2)
    else:
        if low is not None and high is not None:
            across = series.kind == "across"
            (axes.hlines if across else axes.vlines)(y if across else x, low, high, color=color, alpha=0.55, linewidth=4)
        axes.plot(x, y, linestyle="", **mark, zorder=3)
    if series.kind in LINES and series.lonely():
        alone = series.lonely()
        seen = {"color": LIGHT["ink"]} if series.kind == "mean" else {"alpha": 0.5} if series.kind == "thin" else {}
        axes.plot(x[alone], y[alone], linestyle="", **{**mark, **seen}, zorder=4)


def hue(number: int | None) -> str:
    """The color of a series on white paper; gray for None."""
    return LIGHT[color_of(number)]


def marker(number: int) -> str:
    """The marker of a series, as matplotlib names it."""
    return MARKERS[marker_of(number)][0]


def marker_style(number: int | None) -> dict[str, Any]:
    name, size, _ = MARKERS[marker_of(number)]
    style = {"color": LIGHT[color_of(number)], "marker": name, "markersize": size}
    return style | {"markeredgecolor": LIGHT["paper"], "markeredgewidth": 0.8}


def in_legend(chart: Chart) -> list[int]:
    """The series that need a legend, because their names do not stand beside their lines or rows."""
    found = chart.numbers()
    if len(found) < 2 or not chart.names or any(series.label for series in chart.series):
        return []
    rows = [label for _, label in chart.y.ticks or ()] if chart.y.categories else []
    return [] if all(any(chart.names[number] in row for row in rows) for number in found) else found


def add_legend(
    figure: Figure, chart: Chart, *, size: float = 9, columns: int = COLUMNS, always: bool = False, below: bool = False
) -> None:
    """The names of the series above the charts, or below them where a title stands above."""
    from matplotlib.lines import Line2D

    found = chart.numbers() if always and chart.names else in_legend(chart)
    if not found:
        return
    styles: list[dict[str, Any]] = [{"linestyle": DASHES[dash_of(number)], **marker_style(number)} for number in found]
    keys = [Line2D([], [], linewidth=1.8, **style) for style in styles]
    longest = 34 if chart.wide or len(found) < COLUMNS else 22
    names = [shortened(chart.names[number], longest).replace("$", r"\$") for number in found]
    look: dict[str, Any] = {"frameon": False, "fontsize": size, "labelcolor": LIGHT["ink"], "handlelength": 3.4}
    figure.legend(
        keys, names, loc="outside lower left" if below else "outside upper left", ncols=min(len(found), columns), **look
    )


def confusion_png(matrix: NDArray[np.int64], names: Sequence[str], theme: str = "light") -> bytes:
    """A confusion matrix: rows are the true classes, columns the predictions.  # (K, K)

    A cell's strength is the square root of its share of the row, so that single mistakes stay visible among a hundred
    classes. Right predictions have a color of their own.
    """
    from matplotlib.colors import to_rgb

    count = len(names)
    paper, ink, right, wrong = (np.array(to_rgb(PALETTE[theme][name])) for name in ("paper", "ink", "c0", "c1"))
    cell = float(np.clip(6.5 / count, 0.15, 0.6)) if count <= NAMED else 15 / count  # inches
    shares = np.sqrt(matrix / np.maximum(matrix.sum(1, keepdims=True), 1))[..., None]  # (K, K, 1)
    hue = np.where(np.eye(count, dtype=bool)[..., None], right, wrong)  # (K, K, 3)
    figure = new_figure(cell * count, cell * count, paper=PALETTE[theme]["paper"], layout=None)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(paper + shares * (hue - paper), interpolation="nearest")
    size = min(9.0, 72 * cell * 0.6)
    title: dict[str, Any] = {"color": tuple(ink), "fontsize": 10 if count <= NAMED else 14}
    axes.set_ylabel("true class", **title)
    axes.set_xlabel("predicted class", **title)
    axes.spines[:].set_color(tuple(0.65 * paper + 0.35 * ink))
    if count <= NAMED:
        short = [shortened(name, LONGEST) for name in names]
        style: dict[str, Any] = {"fontsize": size, "color": tuple(ink), "parse_math": False}
        axes.set_xticks(range(count), short, rotation=90, **style)
        axes.set_yticks(range(count), short, **style)
        axes.tick_params(length=0, labeltop=count > COUNTED)
        for edge in np.arange(9.5, count - 0.5, 10) if count > COUNTED else ():
            for draw_line in (axes.axhline, axes.axvline):
                draw_line(edge, color=tuple(ink), linewidth=0.4, alpha=0.35)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    for row, column in np.argwhere(matrix) if count <= COUNTED else ():
        color = tuple(paper if float(shares[row, column, 0]) > 0.62 else ink)
        axes.text(column, row, f"{matrix[row, column]}", ha="center", va="center", fontsize=size, color=color)
    return png_of(figure, bbox_inches="tight", pad_inches=0.1)
