"""A chart as a PNG, for print, for files, and for a page whose script does not run."""

from __future__ import annotations

import io
import math
import warnings
from typing import Any

import numpy as np

from softbias.study.report.chart import (
    DASHES,
    MARKERS,
    PALETTE,
    Chart,
    Series,
    color_of,
    dash_of,
    marker_of,
    shade_of,
    shortened,
)
from softbias.study.report.interactive import label_places

DPI = 144
COLUMNS = 3  # of names
INK = PALETTE["light"]


def png(chart: Chart) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(inches(chart), dpi=DPI, facecolor=INK["paper"], layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name in ("x", "y"):
        set_axis(axes, chart, name)
    for series in chart.series:
        draw(axes, series, shade_of(len(chart.arms)))
    if chart.zero:
        axes.axvline(0, color=INK["soft"], linewidth=1.2, zorder=0)
        axes.grid(axis="x", color=INK["line"], linewidth=0.8, zorder=0)
    axes.grid(axis="y", color=INK["line"], linewidth=0.8, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK["line"])
    axes.tick_params(colors=INK["soft"], labelsize=9, length=0, which="both")
    labels = [series for series in chart.series if series.label]
    for series, place in zip(labels, label_places(chart, labels), strict=True):
        text = {"xytext": (9, 0), "textcoords": "offset points", "va": "center", "fontsize": 9, "parse_math": False}
        end: dict[str, Any] = {"color": INK[color_of(series.arm)], "annotation_clip": False}
        axes.annotate(shortened(series.label or ""), place, **text, **end)  # type: ignore[arg-type]
    legend(figure, chart)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # names in every script stand in the tables
        figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def in_legend(chart: Chart) -> list[int]:
    """Arms whose names stand above the drawing, because they do not stand beside their lines."""
    shown = sorted({series.arm for series in chart.series if series.arm is not None})
    return shown if len(shown) > 1 and chart.arms and not any(series.label for series in chart.series) else []


def legend(figure: Any, chart: Chart) -> None:
    from matplotlib.lines import Line2D

    shown = in_legend(chart)
    if not shown:
        return
    keys = [
        Line2D([], [], linestyle=DASHES[dash_of(arm)], linewidth=1.8, **dot_of(arm))  # type: ignore[arg-type]
        for arm in shown
    ]
    most = 34 if chart.wide or len(shown) < COLUMNS else 22
    names = [shortened(chart.arms[arm], most).replace("$", r"\$") for arm in shown]
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK["ink"], "handlelength": 3.4}
    figure.legend(keys, names, loc="outside upper left", ncols=min(len(shown), COLUMNS), **style)


def dot_of(arm: int | None) -> dict[str, Any]:
    """An arm's marker; a star or a cross fills less of its box than a square, and is drawn larger."""
    size = {"*": 11, "P": 9, "X": 9, "^": 8, "v": 8, "D": 6.5, "s": 6.5}.get(MARKERS[marker_of(arm)], 7)
    style = {"color": INK[color_of(arm)], "marker": MARKERS[marker_of(arm)], "markersize": size}
    return style | {"markeredgecolor": INK["paper"], "markeredgewidth": 0.8}


def set_axis(axes: Any, chart: Chart, name: str) -> None:
    log, ticks = getattr(chart, f"{name}_log"), getattr(chart, f"{name}_ticks")
    edges, suffix = getattr(chart, f"{name}_range"), getattr(chart, f"{name}_suffix")
    getattr(axes, f"set_{name}label")(getattr(chart, f"{name}_title"), color=INK["soft"], fontsize=9.5)
    axis = getattr(axes, f"{name}axis")
    if log:
        getattr(axes, f"set_{name}scale")("log")
        if ticks is None:
            from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

            axis.set_major_locator(LogLocator(10, (1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value) + suffix))
            axis.set_minor_formatter(NullFormatter())
    if ticks is not None:
        from matplotlib.ticker import NullLocator

        texts = [text.replace("<br>", "\n") for _, text in ticks]
        getattr(axes, f"set_{name}ticks")([value for value, _ in ticks], texts, parse_math=False)
        axis.set_minor_locator(NullLocator())
    elif not log:
        axis.set_major_formatter(lambda value, _: short_number(float(f"{value:.6g}")) + suffix)
    if edges is not None:
        getattr(axes, f"set_{name}lim")(*edges)


def short_number(value: float) -> str:
    """
    >>> [short_number(value) for value in (0.5, 20.0, 1350.0, 5e4, 2e6, 1e9)]
    ['0.5', '20', '1,350', '50k', '2M', '1G']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:g}{letter}"
    return f"{value:,g}"


def draw(axes: Any, series: Series, shade: float) -> None:
    color, marker, dash = INK[color_of(series.arm)], MARKERS[marker_of(series.arm)], DASHES[dash_of(series.arm)]
    x, y = np.asarray(series.x, float), np.asarray(series.y, float)
    low, high = (None if edge is None else np.asarray(edge, float) for edge in (series.low, series.high))
    dot = dot_of(series.arm)
    if series.kind in ("line", "curve", "fit"):
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=color, alpha=shade, linewidth=0, where=np.isfinite(low) & np.isfinite(high))
        style: dict[str, Any] = {"linewidth": 2.2, "linestyle": dash, **dot}
        if series.kind == "curve":
            style = {"linewidth": 2.0, "linestyle": dash, "color": color}
        elif series.kind == "fit":
            style = {"linewidth": 1.4, "linestyle": ":" if dash == "-" else dash, "color": color}
        axes.plot(x, y, **style, zorder=3)
    elif series.kind == "thin":
        axes.plot(x, y, color=color, alpha=0.35, linewidth=0.8, linestyle=dash)
    elif series.kind == "dots":
        axes.plot(x, y, color=color, alpha=0.35, marker=marker, markersize=4, linestyle="", markeredgewidth=0)
    elif series.kind == "reference":
        axes.plot(x, y, color=INK["soft"], linestyle="--", linewidth=1.3)
    elif series.kind == "published":
        edge = color if series.arm is not None else INK["ink"]
        axes.plot(
            x, y, linestyle="", marker="D", markerfacecolor="none", markeredgecolor=edge, markersize=8, markeredgewidth=1.6
        )
    elif series.kind == "span":
        axes.hlines(y, low, high, color=color, linewidth=1.2)
    else:
        if low is not None and high is not None:
            draw_line = axes.hlines if series.kind == "across" else axes.vlines
            draw_line(y if series.kind == "across" else x, low, high, color=color, alpha=0.55, linewidth=4)
        axes.plot(x, y, linestyle="", **dot, zorder=3)


def inches(chart: Chart) -> tuple[float, float]:
    """Names take their own room: further lines of them do not press the drawing together."""
    lines = math.ceil(len(in_legend(chart)) / COLUMNS)
    return 9.2 if chart.wide else 5.6, chart.height / 85 + 0.19 * max(0, lines - 1)


def size_on_page(chart: Chart) -> tuple[int, int]:
    """Width and height of the picture in CSS pixels."""
    width, height = inches(chart)
    return round(96 * width), math.floor(96 * height)
