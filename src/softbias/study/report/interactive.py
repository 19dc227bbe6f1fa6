"""A chart for plotly.js, as the JSON it takes. Colors are names ("@arm0", "@arm0/0.2"), which the page fills in per theme.

`meta` tells the page what a trace is: its arm or arms, which the reader can hide, and whether it is a label, for which a
phone has no room.
"""

from __future__ import annotations

import math
from typing import Any

from softbias.study.report.chart import Chart, Series, color_of, dash_of, marker_of, shade_of, shortened, spread

FAINT = 0.35


def plotly(chart: Chart) -> dict[str, Any]:
    """{"data", "layout"} of the chart."""
    traces = [trace for series in chart.series for trace in draw(series, shade_of(len(chart.arms)))]
    labels = [series for series in chart.series if series.label]
    traces += label_traces(chart, labels)
    axis = {"gridcolor": "@line", "linecolor": "@line", "zeroline": False, "automargin": True, "tickcolor": "@line"}
    layout: dict[str, Any] = {
        "height": chart.height,
        "margin": {"l": 8, "r": 8 + (7 * max((len(shortened(s.label or "")) for s in labels), default=0)), "t": 10, "b": 8},
        "paper_bgcolor": "@paper",
        "plot_bgcolor": "@paper",
        "font": {"color": "@soft", "size": 12, "family": "system-ui, sans-serif"},
        "hoverlabel": {"bgcolor": "@panel", "bordercolor": "@line", "font": {"color": "@ink"}},
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": {**axis, "title": {"text": chart.x_title, "standoff": 8}, **side(chart, "x"), "showgrid": chart.zero},
        "yaxis": {**axis, "title": {"text": chart.y_title, "standoff": 8}, **side(chart, "y")},
    }
    if chart.zero:
        line = {"color": "@soft", "width": 1.5}
        layout["shapes"] = [
            {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}
        ]
    return {"data": traces, "layout": layout}


def side(chart: Chart, name: str) -> dict[str, Any]:
    """Scale, range and ticks of an axis."""
    log, ticks = getattr(chart, f"{name}_log"), getattr(chart, f"{name}_ticks")
    edges, suffix = getattr(chart, f"{name}_range"), getattr(chart, f"{name}_suffix")
    found: dict[str, Any] = {"ticksuffix": suffix} if suffix else {}
    if log:
        found |= {"type": "log", "dtick": "D2"} if ticks is None else {"type": "log"}
    if ticks is not None:
        found |= {"tickmode": "array", "tickvals": [value for value, _ in ticks], "ticktext": [text for _, text in ticks]}
    if edges is not None:
        found["range"] = [math.log10(edge) for edge in edges] if log else list(edges)
    return found


def draw(series: Series, shade: float) -> list[dict[str, Any]]:
    color, dash = color_of(series.arm), dash_of(series.arm)
    x, y = clean(series.x), clean(series.y)
    common: dict[str, Any] = {"type": "scatter", "x": x, "y": y, "name": series.name}
    common["meta"] = {"arm": series.arm, "also": series.also}
    if series.hover is not None:
        common |= {"hovertext": list(series.hover), "hoverinfo": "text"}
    else:
        common["hoverinfo"] = "skip"
    solid = {
        "color": f"@{color}",
        "symbol": marker_of(series.arm),
        "size": size_of(series.arm),
        "line": {"color": "@paper", "width": 1.5},
    }
    low, high = clean(series.low or []), clean(series.high or [])
    if series.kind in ("line", "curve", "fit"):
        line = {"color": f"@{color}", "width": 1.5 if series.kind == "fit" else 2.5, "dash": dash}
        line |= {"dash": "dot"} if series.kind == "fit" and dash == "solid" else {}
        shown = common | {"mode": "lines+markers" if series.kind == "line" else "lines", "line": line, "marker": solid}
        return [*band(series, x, low, high, f"{color}/{shade}"), shown]
    if series.kind == "thin":
        return [common | {"mode": "lines", "line": {"color": f"@{color}/{FAINT}", "width": 1, "dash": dash}}]
    if series.kind == "dots":
        marker = {"color": f"@{color}/{FAINT}", "size": 5, "symbol": marker_of(series.arm)}
        return [common | {"mode": "markers", "marker": marker}]
    if series.kind == "reference":
        return [common | {"mode": "lines", "line": {"color": "@soft", "width": 1.5, "dash": "dash"}}]
    if series.kind == "published":
        edge = {"color": f"@{color}" if series.arm is not None else "@ink", "width": 2}
        return [
            common | {"mode": "markers", "marker": {"symbol": "diamond-open", "size": 12, "line": edge, "color": edge["color"]}}
        ]
    if series.kind == "span":
        xs = [value for a, b in zip(low, high, strict=True) for value in (a, b, None)]
        ys = [value for place in y for value in (place, place, None)]
        line = {"color": f"@{color}", "width": 1.5}
        return [common | {"x": xs, "y": ys, "mode": "lines", "line": line, "hoverinfo": "skip"}]
    return [common | {"mode": "markers", "marker": solid, **whiskers(series, x, y, low, high, color)}]


def size_of(arm: int | None) -> int:
    """Markers that look equally large: a triangle fills less of its box than a square."""
    return {"square": 9, "circle": 10, "diamond": 10}.get(marker_of(arm), 12)


def whiskers(series: Series, x: list[Any], y: list[Any], low: list[Any], high: list[Any], color: str) -> dict[str, Any]:
    along = "error_x" if series.kind == "across" else "error_y"
    middle = x if series.kind == "across" else y
    if not low:
        return {}
    up = [None if b is None or m is None else b - m for b, m in zip(high, middle, strict=True)]
    down = [None if a is None or m is None else m - a for a, m in zip(low, middle, strict=True)]
    thick = 5 if series.kind == "across" else 2
    return {along: {"array": up, "arrayminus": down, "color": f"@{color}/0.55", "thickness": thick, "width": 0}}


def band(series: Series, x: list[Any], low: list[Any], high: list[Any], color: str) -> list[dict[str, Any]]:
    """The area between low and high as one closed line, in pieces where a value is missing."""
    if not low:
        return []
    pieces: list[list[tuple[Any, Any, Any]]] = [[]]
    for point in zip(x, low, high, strict=True):
        if None in point:
            pieces.append([])
        else:
            pieces[-1].append(point)
    made = []
    for piece in pieces:
        if len(piece) > 1:
            xs = [p[0] for p in piece] + [p[0] for p in reversed(piece)]
            ys = [p[1] for p in piece] + [p[2] for p in reversed(piece)]
            made.append(
                {"type": "scatter", "x": xs, "y": ys, "mode": "lines", "fill": "toself", "fillcolor": f"@{color}"}
                | {"line": {"width": 0}, "hoverinfo": "skip", "meta": {"arm": series.arm}, "name": series.name}
            )
    return made


def label_traces(chart: Chart, labels: list[Series]) -> list[dict[str, Any]]:
    """Names at the ends of lines, moved apart where they would cover each other."""
    made = []
    for series, (x, y) in zip(labels, label_places(chart, labels), strict=True):
        color = f"@{color_of(series.arm)}"
        text = {"text": [f"  {shortened(series.label or '')}"], "textposition": "middle right", "textfont": {"color": color}}
        made.append(
            {"type": "scatter", "x": [x], "y": [y], "mode": "text", "cliponaxis": False, "hoverinfo": "skip", **text}
            | {"meta": {"arm": series.arm, "label": True}}
        )
    return made


def label_places(chart: Chart, labels: list[Series]) -> list[tuple[float, float]]:
    """Where the labels stand, in the coordinates of the data."""
    if not labels:
        return []
    ends = [(float(series.x[-1]), float(series.y[-1])) for series in labels]
    edges = chart.y_range or (min(y for _, y in ends), max(y for _, y in ends))
    heights = [math.log(y) if chart.y_log else y for _, y in ends]
    top, bottom = (math.log(edge) if chart.y_log else edge for edge in (edges[1], edges[0]))
    apart = spread(heights, 16 / max(chart.height - 60, 1) * (top - bottom))
    return [(x, math.exp(y) if chart.y_log else y) for (x, _), y in zip(ends, apart, strict=True)]


def clean(values: Any) -> list[float | None]:
    """JSON knows no nan; six digits are enough for a screen."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.6g}") for value in values]
