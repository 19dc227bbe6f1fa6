"""A chart as SVG inside a page: style sheets color it in light and dark and hide series, the page's script shows its values.

The drawing is complete without the script. It has no inline styles and no identifiers, so that any policy allows it and a
page may hold any number of them. A wide chart is drawn twice, for a wide page and for a phone; the style sheet chooses.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from softbias.pages.charts import LINES, Axis, Chart, Series, label_positions
from softbias.pages.format import shortened
from softbias.pages.theme import DASHES, MARKERS, color_of, dash_of, marker_of

BROAD, SMALL, SLIM = 1080, 400, 380  # widths: of a wide chart, of one in a column, and of a wide one on a phone
LETTER, LINE, EDGE = 6.7, 15, 12  # pixels: the width of a letter, the height of a line of text, and a margin
BLEED = 7  # markers at the edge of the plot are drawn whole


@dataclass(frozen=True)
class Frame:
    """Where the plot lies inside the drawing, with its axes."""

    x: Axis
    y: Axis
    left: float
    top: float
    width: float
    height: float
    whole: tuple[int, int]
    slim: bool

    def across(self, value: float) -> float:
        return round(self.width * self.x.position(value), 1)

    def down(self, value: float) -> float:
        return round(self.height * (1 - self.y.position(value)), 1)


def figure_sizes(chart: Chart) -> list[tuple[str, int]]:
    """The drawings of a chart in a page: class and width of each."""
    return [("broad", BROAD), ("slim", SLIM)] if chart.wide else [("only", SMALL)]


def svg(chart: Chart, width: int = SMALL, name: str = "only") -> Markup:
    """The chart as an SVG of this width; it grows and shrinks with the page. `name`: its class, of `figure_sizes`."""
    frame = lay_out(chart, width)
    parts = [*grid(chart, frame), *plot(chart, frame), *([] if frame.slim else labels(chart, frame))]
    whole = f"0 0 {frame.whole[0]} {frame.whole[1]}"
    start = Markup('<svg class="plot {}" viewBox="{}" role="img" tabindex="0" aria-label="{}">').format(
        name, whole, chart.alt or chart.title
    )
    return start + Markup("").join(parts) + Markup("</svg>")


def lay_out(chart: Chart, width: int) -> Frame:
    x, y = chart.axes()
    slim = width <= SMALL
    assert x.ticks is not None and y.ticks is not None
    longest = max((len(text) for _, text in y.ticks), default=0)
    left = EDGE if slim and y.categories else min(LETTER * longest + EDGE + 4, 0.42 * width) + (20 if y.title else 0)
    named = max((len(shortened(series.label)) for series in chart.series if series.label), default=0)
    right = EDGE + (LETTER * named + 10 if named and not slim else 10)
    lines = max((text.count("\n") + 1 for _, text in x.ticks), default=0)
    top, bottom = EDGE + (LINE if slim and y.categories else 0), LINE * lines + EDGE + (18 if x.title else 0)
    tall = chart.height
    if slim and chart.wide:
        tall = round(top + bottom + 40 * len(y.ticks)) if y.categories else min(chart.height, 320)
    return Frame(x, y, left, top, width - left - right, tall - top - bottom, (width, tall), slim)


def text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> Markup:
    start = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>').format(
        x, y, anchor, Markup(' class="{}"').format(kind) if kind else ""
    )
    return start + escape(content) + Markup("</text>")


def grid(chart: Chart, frame: Frame) -> Iterable[Markup]:
    """Lines across at the ticks of y, the texts of both axes, and the line at zero."""
    rule = Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>')
    right, bottom = frame.left + frame.width, frame.top + frame.height
    for value, name in frame.y.ticks or ():
        y = frame.top + frame.down(value)
        yield rule.format("grid", frame.left, right, y, y)
        if frame.slim and frame.y.categories:
            yield text(frame.left, y - 11, shortened(name, int(frame.width / LETTER)))
        else:
            yield text(frame.left - 8, y + 4, name, "end")
    last = -math.inf
    for value, name in frame.x.ticks or ():
        x, half = frame.left + frame.across(value), LETTER * max(map(len, name.split("\n"))) / 2
        if chart.zero:
            yield rule.format("grid", x, x, frame.top, bottom)
        if x - half < last:
            continue  # it would cover the one before
        last = x + half + 6
        center = min(max(x, half), frame.whole[0] - half - 2)  # the whole text stays inside the drawing
        for number, line in enumerate(name.split("\n")):
            yield text(center, bottom + LINE * (number + 1) + 2, line, "middle")
    if chart.zero:
        x = frame.left + frame.across(0)
        yield rule.format("zero", x, x, frame.top, bottom)
    if frame.x.title:
        yield text(frame.left + frame.width / 2, frame.whole[1] - 5, frame.x.title, "middle", "axis")
    if frame.y.title:
        turned = Markup('<g transform="translate(11 {:.1f}) rotate(-90)">').format(frame.top + frame.height / 2)
        yield turned + text(0, 0, frame.y.title, "middle", "axis") + Markup("</g>")


def plot(chart: Chart, frame: Frame) -> Iterable[Markup]:
    """The series. An inner SVG cuts off what leaves the axes, such as the wide interval of two seeds."""
    yield Markup('<svg x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><g transform="translate({} {})">').format(
        frame.left - BLEED, frame.top - BLEED, frame.width + 2 * BLEED, frame.height + 2 * BLEED, BLEED, BLEED
    )
    for series in chart.series:
        yield group(series, frame, points=series.hover is not None)
        for shape in draw(series, frame, chart.shade()):
            yield Markup(shape)
        yield Markup("</g>")
    yield Markup("</g></svg>")


def group(series: Series, frame: Frame, *, points: bool) -> Markup:
    """The start of a group: classes for color, kind and hiding; the texts of its points, for the script."""
    names = [f"k-{series.kind}", color_of(series.number), *(f"s{n}" for n in (series.number, series.other) if n is not None)]
    names += [f"d{list(DASHES).index(dash_of(series.number))}"] if series.number is not None else []
    data = Markup("")
    if points and series.hover is not None:
        found = [[x, y, words] for x, y, words in zip(*coordinates(series, frame), series.hover, strict=True) if finite(x, y)]
        data = Markup(' data-points="{}"').format(json.dumps(found, separators=(",", ":"), ensure_ascii=False))
    return Markup('<g class="{}"{}>').format(" ".join(names), data)


def coordinates(series: Series, frame: Frame) -> tuple[list[float], list[float]]:
    return [at(frame.across, x, frame.x) for x in series.x], [at(frame.down, y, frame.y) for y in series.y]


def at(scale: object, value: float | None, axis: Axis) -> float:
    """A coordinate; nan where there is no value, or none that a logarithmic axis has."""
    if value is None or not math.isfinite(value) or (axis.log and value <= 0):
        return math.nan
    assert callable(scale)
    return min(max(float(scale(value)), -1e4), 1e4)


def finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def draw(series: Series, frame: Frame, shade: float) -> Iterable[str]:
    """The shapes of a series. They hold nothing but numbers, and need no escaping."""
    xs, ys = coordinates(series, frame)
    across = series.kind in ("across", "span")
    scale, axis = (frame.across, frame.x) if across else (frame.down, frame.y)
    edges = [[at(scale, value, axis) for value in side or ()] for side in (series.low, series.high)]
    if series.kind in ("line", "curve", "fit") and edges[0]:
        for piece in pieces(zip(xs, *edges, strict=True)):
            there, back = ([f"{point[0]:g} {point[side]:g}" for point in piece] for side in (1, 2))
            yield f'<path class="band" fill-opacity="{shade}" d="M{"L".join([*there, *reversed(back)])}z"/>'
    if series.kind in ("line", *LINES):
        for piece in pieces(zip(xs, ys, strict=True)):
            yield f'<path class="stroke" d="M{"L".join(f"{x:g} {y:g}" for x, y in piece)}"/>'
    if across or series.kind == "upright":
        for number, (low, high) in enumerate(zip(*edges, strict=True)):
            if finite(low, high):
                ends = f"M{low:g} {ys[number]:g}H{high:g}" if across else f"M{xs[number]:g} {low:g}V{high:g}"
                yield f'<path class="whisker" d="{ends}"/>'
    if series.kind == "columns":
        step = min((b - a for a, b in itertools.pairwise(xs)), default=frame.width / 8)
        for x, y in zip(xs, ys, strict=True):
            yield f'<rect x="{x - 0.46 * step:g}" y="{y:g}" width="{0.92 * step:g}" height="{frame.down(0) - y:g}"/>'
    marked: Sequence[int] = () if series.kind in ("span", "columns") else range(len(xs))
    if series.kind in LINES:
        marked = series.lonely()
    if marked:
        path, size = MARKERS["diamond" if series.kind == "published" else marker_of(series.number)][2], 0.5
        size = size if series.kind == "dots" else 1.0
        for x, y in ((xs[index], ys[index]) for index in marked):
            if finite(x, y):
                scaled = "" if size == 1 else f" scale({size})"
                yield f'<path class="mark" transform="translate({x - 6 * size:.1f} {y - 6 * size:.1f}){scaled}" d="{path}"/>'


def pieces(points: Iterable[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    """Stretches of at least two points, between those that are missing.

    >>> pieces([(0, 1), (1, 2), (2, math.nan), (3, 4)])
    [[(0, 1), (1, 2)]]
    """
    found: list[list[tuple[float, ...]]] = [[]]
    for point in points:
        if finite(*point):
            found[-1].append(point)
        else:
            found.append([])
    return [piece for piece in found if len(piece) > 1]


def labels(chart: Chart, frame: Frame) -> Iterable[Markup]:
    """Names at the ends of lines."""
    for series, position in label_positions(chart, frame.y, frame.height):
        x = frame.left + frame.across(float(series.x[-1])) + 12
        name = text(x, frame.top + frame.height * (1 - position) + 4, shortened(series.label), kind="own")
        yield group(series, frame, points=False) + name + Markup("</g>")


def key_mark(number: int, lined: bool = False) -> Markup:
    """The marker of a series for legends and tables, on a piece of its line where `lined`."""
    path, names = MARKERS[marker_of(number)][2], f"{color_of(number)} d{list(DASHES).index(dash_of(number))}"
    if not lined:
        return Markup('<svg class="key-mark {}" viewBox="0 0 12 12" aria-hidden="true"><path d="{}"/></svg>').format(
            names, path
        )
    return Markup(
        '<svg class="key-mark lined {}" viewBox="0 0 32 12" aria-hidden="true"><path class="stroke" d="M0 6h9M32 6h-9"/>'
        '<path d="{}" transform="translate(10 0)"/></svg>'
    ).format(names, path)


def ordered_names(chart: Chart) -> Sequence[tuple[int, str]]:
    """Numbers and names for the legend of a chart that stands alone."""
    return [(number, chart.names[number]) for number in chart.numbers() if number < len(chart.names)]
