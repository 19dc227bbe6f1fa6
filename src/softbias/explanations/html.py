"""An explanation as HTML: a page that opens offline without any outside request, or a part of a notebook."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.explanations.explanation import Explanation
from softbias.explanations.figure import TITLES, colored, overlay
from softbias.pages.format import probability
from softbias.pages.html import data_uri, template
from softbias.pages.wording import text

SIDE = 224  # of the picture, in CSS pixels


def page(explanation: Explanation) -> str:
    return render(explanation, whole=True)


def fragment(explanation: Explanation) -> str:
    """For notebooks: the same without head and body."""
    return render(explanation, whole=False)


def render(explanation: Explanation, *, whole: bool) -> str:
    height, width = explanation.picture.shape[:2]
    grid = next(iter(explanation.grids.values()), None)
    return template("explanation.html.jinja").render(
        explanation=explanation,
        notes=[text(note) for note in explanation.notes],
        whole=whole,
        picture=uri(explanation.picture),
        shape=(round(SIDE * width / max(height, width)), round(SIDE * height / max(height, width))),
        pixelated=max(height, width) <= SIDE // 2,
        overlays=[
            {
                "title": TITLES.get(method, method),
                "target": None if method.startswith("rollout") else explanation.class_names[explanation.target],
                "uri": uri(overlay(explanation.picture, found)),
            }
            for method, found in explanation.relevance.items()
        ],
        classes=[(name, probability(p), round(100 * p, 1)) for name, p in explanation.top()],
        layers=layers(explanation),
        signed=any(explanation.signed(layer) for layer in explanation.maps),
        box=None
        if explanation.query is None or grid is None
        else [
            round(100 * value, 3)
            for value in (
                explanation.query[1] / grid.width,
                explanation.query[0] / grid.height,
                1 / grid.width,
                1 / grid.height,
            )
        ],
    )


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
                    "uri": uri(colored(values)),
                    "alt": f"Layer {layer}, head {head}: most attention to row {strongest[0]}, column {strongest[1]}",
                    "gate": f"position {explanation.gates[layer][head]:.0%}" if layer in explanation.gates else None,
                    "bias": uri(colored(biases[layer][head])) if layer in biases else None,
                }
            )
        about = {"kind": explanation.mechanisms.get(layer, ""), "bias_name": explanation.bias_names.get(layer, "")}
        found.append({"layer": layer, "heads": heads, **about})
    return found


def uri(image: NDArray[np.uint8]) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(stream, "PNG")
    return data_uri(stream.getvalue())
