"""An explanation drawn: as a figure of matplotlib, and as HTML for a page that opens offline or for a notebook.

A figure has the decision above and the attention of every head of every layer below. All its maps share one pair of axes, a
cell each, at positions in inches: matplotlib needs many seconds to lay out hundreds of axes.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.explanations.explanation import Explanation
from softbias.pages.format import probability, shortened
from softbias.pages.html import image_uri, picture, render, style
from softbias.pages.static import new_figure, png_of
from softbias.pages.theme import COLD, HEAT, LIGHT, QUERY
from softbias.pages.wording import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Colors = NDArray[np.uint8]
TITLES = {
    "rollout": "attention rollout",
    "gradient-rollout": "rollout weighted by gradients",
    "gradients": "gradient × pixels",
    "grad-cam": "Grad-CAM",
}
INK, SOFT, BAR, MARK = LIGHT["ink"], LIGHT["soft"], LIGHT["c0"], LIGHT["c1"]
MOST_HEADS = 16
EDGE, SIDE, GAP, CELL = 0.15, 2.15, 0.12, 1.15  # inches: margin, a picture, a gap, a cell with its caption


def draw(explanation: Explanation) -> Figure:
    maps = explanation.attention_from()
    heads = min(MOST_HEADS, max((len(found) for found in maps.values()), default=0))
    span = 2 * heads + 1 if explanation.bias else heads  # cells of a layer: its heads, and after a gap their biases
    overlays = 1 + len(explanation.relevance)
    width = max(2 * EDGE + overlays * (SIDE + GAP) + SIDE, 2 * EDGE + 0.55 + CELL * span)
    abreast = max(1, int((width - 2 * EDGE + CELL - 0.1) / (CELL * (span + 1)))) if maps else 1
    rows = -(-len(maps) // abreast)
    noted = [line for note in explanation.notes for line in textwrap.wrap(text(note), int(13 * width))]
    below = 0.4 + CELL * 1.1 * rows if maps else 0.0
    tall = 0.65 + SIDE + 0.3 + below + 0.17 * len(noted) + 0.15
    figure = new_figure(width, tall, dpi=130, layout=None)
    canvas = Canvas(figure, width, tall)
    untrained = f" ({explanation.weights})" if explanation.weights.startswith("untrained") else ""
    canvas.text(EDGE, 0.25, f"{explanation.name} · {explanation.model}{untrained}", 11)
    draw_decision(canvas, explanation)
    if maps:
        draw_heads(canvas, explanation, maps, heads, span, abreast)
    for number, line in enumerate(noted):
        canvas.text(EDGE, tall - 0.17 * (len(noted) - number) - 0.02, line, 7.5, SOFT)
    return figure


class Canvas:
    """A figure whose parts are placed in inches from its top left corner."""

    def __init__(self, figure: Figure, width: float, tall: float) -> None:
        self.figure, self.width, self.tall = figure, width, tall

    def axes(self, left: float, top: float, wide: float, high: float) -> Axes:
        box = (left / self.width, 1 - (top + high) / self.tall, wide / self.width, high / self.tall)
        made = self.figure.add_axes(box)
        made.set_axis_off()
        return made

    def text(self, left: float, top: float, text: str, size: float, color: str = INK, **more: Any) -> None:
        style: dict[str, Any] = {"fontsize": size, "color": color, "parse_math": False, **more}
        self.figure.text(left / self.width, 1 - top / self.tall, text, **style)


def draw_decision(canvas: Canvas, explanation: Explanation) -> None:
    top = 0.65
    for number, method in enumerate([None, *explanation.relevance]):
        left = EDGE + number * (SIDE + GAP)
        axes = canvas.axes(left, top, SIDE, SIDE)
        axes.imshow(explanation.picture if method is None else overlay(explanation.picture, explanation.relevance[method]))
        title = "the picture, as the model's input" if method is None else TITLES.get(method, method)
        canvas.text(left + SIDE / 2, top - 0.08, title, 8, ha="center")
        under = top + SIDE + 0.17
        if method is None and explanation.query is not None:
            mark(axes, explanation)
            canvas.text(
                left + SIDE / 2,
                under,
                f"query: row {explanation.query[0]}, column {explanation.query[1]}",
                7,
                MARK,
                ha="center",
            )
        elif method is not None and not method.startswith("rollout"):
            canvas.text(
                left + SIDE / 2,
                under,
                f"for {shortened(explanation.class_names[explanation.target], 26)}",
                7,
                SOFT,
                ha="center",
            )
    left = EDGE + (1 + len(explanation.relevance)) * (SIDE + GAP) + 0.05
    axes = canvas.axes(left, top, SIDE - 0.15, SIDE)
    best = explanation.top()[::-1]
    for row, (name, p) in enumerate(best):
        axes.barh(row, 1, color=LIGHT["panel"], height=0.28)
        axes.barh(row, p, color=BAR, height=0.28)
        axes.text(0, row + 0.24, shortened(name, 26), fontsize=7.5, color=INK, va="bottom", parse_math=False)
        axes.text(1, row + 0.24, probability(p), fontsize=7.5, color=INK, va="bottom", ha="right")
    axes.set(xlim=(0, 1), ylim=(-0.4, max(len(best), 5) - 0.1))


def draw_heads(canvas: Canvas, explanation: Explanation, maps: dict[int, Any], heads: int, span: int, abreast: int) -> None:
    """Cells of one pair of axes: x counts cells, y counts layers downward; a map fills most of its cell."""
    biases, top = explanation.bias_from(), 0.65 + SIDE + 0.3
    rows, columns = -(-len(maps) // abreast), abreast * (span + 1) - 1
    canvas.text(EDGE, top + 0.2, heads_title(explanation, maps, heads), 8.5)
    axes = canvas.axes(EDGE + 0.45, top + 0.36, CELL * columns, CELL * 1.1 * rows)
    for number, (layer, found) in enumerate(maps.items()):
        x, y = number % abreast * (span + 1), number // abreast * 1.1
        name = f"layer {layer}\n{explanation.mechanisms.get(layer, '')}"
        axes.text(
            x - 0.06, y + 0.45, name, fontsize=7.5, color=INK, rotation=90, ha="right", va="center", multialignment="center"
        )
        for head in range(min(heads, len(found))):
            show(axes, found[head], x + head, y, explanation.query)
            caption = f"head {head}" + (
                f" · position {explanation.gates[layer][head]:.0%}" if layer in explanation.gates else ""
            )
            axes.text(x + head + 0.46, y + 0.98, caption, fontsize=6.3, color=SOFT, ha="center", va="center")
            if layer in biases:
                show(axes, biases[layer][head], x + heads + 1 + head, y, explanation.query)
                caption = f"{explanation.bias_names[layer]} of head {head}"
                axes.text(x + heads + 1.46 + head, y + 0.98, caption, fontsize=6.3, color=SOFT, ha="center", va="center")
    axes.set(xlim=(0, columns), ylim=(rows * 1.1, 0), aspect="auto")


def heads_title(explanation: Explanation, maps: dict[int, Any], heads: int) -> str:
    most = max(map(len, maps.values()))
    cut = f"; the first {heads} of {most} heads" if most > heads else ""
    signs = "; blue is negative" if any(explanation.signed(layer) for layer in maps) else ""
    names = " or ".join(dict.fromkeys(explanation.bias_names.values()))
    beside = f"; beside it its {names}, which is the same for every picture" if names else ""
    return f"attention of each head from the query patch (each map by its own maximum{signs}{cut}){beside}"


def show(axes: Axes, values: Any, x: float, y: float, query: tuple[int, int] | None) -> None:
    from matplotlib.patches import Rectangle

    side = 0.92
    axes.imshow(colored(values), interpolation="nearest", extent=(x, x + side, y + side * 0.98, y))
    if query is not None:
        tall, wide = side * 0.98 / values.shape[0], side / values.shape[1]
        corner = (x + query[1] * wide, y + query[0] * tall)
        axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor=QUERY, linewidth=0.8))


def mark(axes: Axes, explanation: Explanation) -> None:
    from matplotlib.patches import Rectangle

    assert explanation.query is not None
    grid = next(iter(explanation.grids.values()))
    tall, wide = explanation.picture.shape[0] / grid.height, explanation.picture.shape[1] / grid.width
    corner = (explanation.query[1] * wide - 0.5, explanation.query[0] * tall - 0.5)
    axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor=QUERY, linewidth=1.6))


def as_png(explanation: Explanation) -> bytes:
    return png_of(draw(explanation))


# Maps as colors


def ramp(values: NDArray[np.float64], stops: tuple[str, ...]) -> NDArray[np.float64]:
    """Colors between the stops.  # (…,) in [0, 1] -> (…, 3) in [0, 255]"""
    colors = np.array([[int(stop[start : start + 2], 16) for start in (0, 2, 4)] for stop in stops], np.float64)
    at = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(values, at, colors[:, channel]) for channel in range(3)], -1)


def colored(values: NDArray[np.floating], most: float | None = None) -> Colors:
    """A map in colors: dark to light for positive values, blue for negative ones.  # (h, w) -> (h, w, 3)

    most   the value of the lightest color; the largest absolute value if not given
    """
    found = np.nan_to_num(np.asarray(values, np.float64))
    top = max(float(np.abs(found).max()) if most is None else most, 1e-12)
    scaled = np.clip(np.abs(found) / top, 0, 1)
    return np.where(found[..., None] < 0, ramp(scaled, COLD), ramp(scaled, HEAT)).round().astype(np.uint8)


def overlay(picture: Colors, relevance: NDArray[np.floating]) -> Colors:
    """The picture in gray with the relevance as heat over it, softly enlarged.  # (H, W, 3), (h, w) -> about (320, 320, 3)"""
    scale = max(1, round(320 / max(picture.shape[:2])))
    size = (picture.shape[1] * scale, picture.shape[0] * scale)
    large = Image.fromarray(picture).resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)
    heat = np.asarray(Image.fromarray(np.asarray(relevance, np.float32)).resize(size, Image.Resampling.BICUBIC), np.float64)
    low, high = float(np.min(relevance)), float(np.max(relevance))
    heat = np.clip((heat - low) / max(high - low, 1e-12), 0, 1)
    gray = np.asarray(large.convert("L"), np.float64)[..., None].repeat(3, -1)
    strength = (0.12 + 0.78 * heat)[..., None]
    return ((1 - strength) * gray + strength * ramp(heat, HEAT)).round().astype(np.uint8)


PX = 200  # CSS pixels: the side of the picture on a page


def page(explanation: Explanation) -> str:
    return render("explanation.html.jinja", with_script=False, **values_of(explanation))


def fragment(explanation: Explanation) -> str:
    """The same for notebooks, without head and body."""
    content = render("explanation_content.html.jinja", **values_of(explanation))
    return f'<div class="softbias"><style>{style()}</style>{content}</div>'


def values_of(explanation: Explanation) -> dict[str, Any]:
    """What the template takes."""
    grid = next(iter(explanation.grids.values()), None)
    box = None  # of the query patch, in percent: left, top, width, height
    if explanation.query is not None and grid is not None:
        (row, column), width, height = explanation.query, 100 / grid.width, 100 / grid.height
        box = [round(value, 3) for value in (column * width, row * height, width, height)]
    return {
        "explanation": explanation,
        "notes": [text(note) for note in explanation.notes],
        "picture": picture(explanation.picture, PX, 2 * PX),
        "pictures": [
            {
                "title": TITLES.get(method, method),
                "target": None if method.startswith("rollout") else explanation.class_names[explanation.target],
                "uri": image_uri(overlay(explanation.picture, found)),
            }
            for method, found in explanation.relevance.items()
        ],
        "classes": [(name, probability(p), round(100 * p, 1)) for name, p in explanation.top()],
        "layers": layers(explanation),
        "signed": any(explanation.signed(layer) for layer in explanation.maps),
        "box": box,
    }


def layers(explanation: Explanation) -> list[dict[str, Any]]:
    """Per layer the maps of its heads from the query, their gates, and the bias around it."""
    biases = explanation.bias_from()
    found = []
    for layer, maps in explanation.attention_from().items():
        heads = []
        for head, values in enumerate(maps):
            strongest = np.unravel_index(int(np.abs(values).argmax()), values.shape)
            heads.append(
                {
                    "uri": image_uri(colored(values)),
                    "alt": f"Layer {layer}, head {head}: most attention to row {strongest[0]}, column {strongest[1]}",
                    "gate": f"position {explanation.gates[layer][head]:.0%}" if layer in explanation.gates else None,
                    "bias": image_uri(colored(biases[layer][head])) if layer in biases else None,
                }
            )
        about = {"kind": explanation.mechanisms.get(layer, ""), "bias_name": explanation.bias_names.get(layer, "")}
        found.append({"layer": layer, "heads": heads, **about})
    return found
