"""An explanation as a figure of matplotlib: the decision above, where every head of every layer looks below.

All maps stand on one pair of axes, a cell each, and everything has its place in inches: hundreds of axes laid out by
matplotlib would take many seconds.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from typing import Any

from softbias.explanations.coloring import colored, overlay
from softbias.explanations.explanation import Explanation
from softbias.pages.format import probability

TITLES = {
    "rollout": "attention rollout",
    "gradient-rollout": "rollout weighted by gradients",
    "gradients": "gradient × pixels",
    "grad-cam": "Grad-CAM",
}
INK, SOFT, ONE, MARK, QUERY = "#1b1f24", "#57606a", "#0b5cad", "#b34700", "#52e0ff"
MOST_HEADS = 16
EDGE, SIDE, GAP, CELL = 0.15, 2.15, 0.12, 1.15  # inches: margin, a picture, what is between, a cell with its caption


def draw(seen: Explanation) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    looks = seen.looks()
    heads = min(MOST_HEADS, max((len(found) for found in looks.values()), default=0))
    span = 2 * heads + 1 if seen.bias else heads  # cells of a layer: its heads, and after a gap what they know of place
    pictures = 1 + len(seen.relevance)
    width = max(2 * EDGE + pictures * (SIDE + GAP) + SIDE, 2 * EDGE + 0.55 + CELL * span)
    abreast = max(1, int((width - 2 * EDGE + CELL - 0.1) / (CELL * (span + 1)))) if looks else 1
    rows = -(-len(looks) // abreast)
    noted = [line for note in seen.notes for line in textwrap.wrap(note, int(13 * width))]
    below = 0.4 + CELL * 1.1 * rows if looks else 0.0
    tall = 0.65 + SIDE + 0.3 + below + 0.17 * len(noted) + 0.15
    figure = Figure((width, tall), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    place = Inches(figure, width, tall)
    untrained = f" ({seen.weights})" if seen.weights.startswith("untrained") else ""
    place.text(EDGE, 0.25, f"{seen.name} · {seen.model}{untrained}", 11)
    draw_decision(place, seen)
    if looks:
        draw_heads(place, seen, looks, heads, span, abreast)
    for number, line in enumerate(noted):
        place.text(EDGE, tall - 0.17 * (len(noted) - number) - 0.02, line, 7.5, SOFT)
    return figure


class Inches:
    """A figure whose parts are placed in inches from its top left corner."""

    def __init__(self, figure: Any, width: float, tall: float) -> None:
        self.figure, self.width, self.tall = figure, width, tall

    def axes(self, left: float, top: float, wide: float, high: float) -> Any:
        made = self.figure.add_axes((left / self.width, 1 - (top + high) / self.tall, wide / self.width, high / self.tall))
        made.set_axis_off()
        return made

    def text(self, left: float, top: float, text: str, size: float, color: str = INK, **more: Any) -> None:
        style: dict[str, Any] = {"fontsize": size, "color": color, "parse_math": False, **more}
        self.figure.text(left / self.width, 1 - top / self.tall, text, **style)


def draw_decision(place: Inches, seen: Explanation) -> None:
    top = 0.65
    for number, method in enumerate([None, *seen.relevance]):
        left = EDGE + number * (SIDE + GAP)
        axes = place.axes(left, top, SIDE, SIDE)
        axes.imshow(seen.picture if method is None else overlay(seen.picture, seen.relevance[method]))
        title = "the picture, as the model saw it" if method is None else TITLES.get(method, method)
        place.text(left + SIDE / 2, top - 0.08, title, 8, ha="center")
        under = top + SIDE + 0.17
        if method is None and seen.query is not None:
            mark(axes, seen)
            place.text(left + SIDE / 2, under, f"query: row {seen.query[0]}, column {seen.query[1]}", 7, MARK, ha="center")
        elif method is not None and not method.startswith("rollout"):
            place.text(left + SIDE / 2, under, f"for {short(seen.class_names[seen.target])}", 7, SOFT, ha="center")
    left = EDGE + (1 + len(seen.relevance)) * (SIDE + GAP) + 0.05
    axes = place.axes(left, top, SIDE - 0.15, SIDE)
    best = seen.top()[::-1]
    for row, (name, p) in enumerate(best):
        axes.barh(row, 1, color="#eef1f4", height=0.28)
        axes.barh(row, p, color=ONE, height=0.28)
        axes.text(0, row + 0.24, short(name), fontsize=7.5, color=INK, va="bottom", parse_math=False)
        axes.text(1, row + 0.24, probability(p), fontsize=7.5, color=INK, va="bottom", ha="right")
    axes.set(xlim=(0, 1), ylim=(-0.4, max(len(best), 5) - 0.1))


def draw_heads(place: Inches, seen: Explanation, looks: dict[int, Any], heads: int, span: int, abreast: int) -> None:
    """Cells of one pair of axes: x counts cells, y counts layers downward; a map fills most of its cell."""
    biases, top = seen.biases(), 0.65 + SIDE + 0.3
    rows, columns = -(-len(looks) // abreast), abreast * (span + 1) - 1
    place.text(EDGE, top + 0.2, heads_title(seen, looks, heads), 8.5)
    axes = place.axes(EDGE + 0.45, top + 0.36, CELL * columns, CELL * 1.1 * rows)
    for number, (layer, found) in enumerate(looks.items()):
        x, y = number % abreast * (span + 1), number // abreast * 1.1
        name = f"layer {layer}\n{seen.mechanisms.get(layer, '')}"
        axes.text(
            x - 0.06, y + 0.45, name, fontsize=7.5, color=INK, rotation=90, ha="right", va="center", multialignment="center"
        )
        for head in range(min(heads, len(found))):
            show(axes, found[head], x + head, y, seen.query)
            caption = f"head {head}" + (f" · place {seen.gates[layer][head]:.0%}" if layer in seen.gates else "")
            axes.text(x + head + 0.46, y + 0.98, caption, fontsize=6.3, color=SOFT, ha="center", va="center")
            if layer in biases:
                show(axes, biases[layer][head], x + heads + 1 + head, y, seen.query)
                what = f"{bias_word(seen)} of head {head}"
                axes.text(x + heads + 1.46 + head, y + 0.98, what, fontsize=6.3, color=SOFT, ha="center", va="center")
    axes.set(xlim=(0, columns), ylim=(rows * 1.1, 0), aspect="auto")


def heads_title(seen: Explanation, looks: dict[int, Any], heads: int) -> str:
    more = max(map(len, looks.values()))
    cut = f"; the first {heads} of {more} heads" if more > heads else ""
    signs = "; blue is negative" if any(seen.signed(layer) for layer in looks) else ""
    what = "its learned mask" if bias_word(seen) == "mask" else "what it has learned about place alone"
    beside = f"; beside it {what}, whatever the picture" if seen.bias else ""
    return f"where each head looks from the query patch (each map by its own maximum{signs}{cut}){beside}"


def bias_word(seen: Explanation) -> str:
    return "mask" if "masked" in seen.mechanisms.values() else "place"


def show(axes: Any, values: Any, x: float, y: float, query: tuple[int, int] | None) -> None:
    from matplotlib.patches import Rectangle

    side = 0.92
    axes.imshow(colored(values), interpolation="nearest", extent=(x, x + side, y + side * 0.98, y))
    if query is not None:
        tall, wide = side * 0.98 / values.shape[0], side / values.shape[1]
        corner = (x + query[1] * wide, y + query[0] * tall)
        axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor=QUERY, linewidth=0.8))


def mark(axes: Any, seen: Explanation) -> None:
    from matplotlib.patches import Rectangle

    assert seen.query is not None
    grid = next(iter(seen.grids.values()))
    tall, wide = seen.picture.shape[0] / grid.height, seen.picture.shape[1] / grid.width
    corner = (seen.query[1] * wide - 0.5, seen.query[0] * tall - 0.5)
    axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor=QUERY, linewidth=1.6))


def short(name: str) -> str:
    return name if len(name) < 26 else name[:25] + "…"


def as_png(seen: Explanation) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a file's name; it is drawn as a box
        draw(seen).savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
