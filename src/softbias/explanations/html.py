"""An explanation as HTML: a page that opens offline without any outside request, or a part of a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np

from softbias.explanations.explanation import Explanation
from softbias.explanations.figure import TITLES, colored, overlay
from softbias.pages.format import probability
from softbias.pages.html import image_uri, picture, render, style
from softbias.pages.wording import text

SIDE = 200  # of the picture, in CSS pixels


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
        "picture": picture(explanation.picture, SIDE, 2 * SIDE),
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
