"""An explanation as HTML: a page that opens offline and asks nobody for anything, or a part of a notebook."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.explanations.coloring import colored, overlay
from softbias.explanations.explanation import Explanation
from softbias.explanations.figure import TITLES
from softbias.pages.format import probability
from softbias.pages.html import data_uri, template

SIDE = 224  # of the picture, in CSS pixels


def page(seen: Explanation) -> str:
    return render(seen, whole=True)


def fragment(seen: Explanation) -> str:
    """For notebooks: the same without head and body."""
    return render(seen, whole=False)


def render(seen: Explanation, *, whole: bool) -> str:

    height, width = seen.picture.shape[:2]
    grid = next(iter(seen.grids.values()), None)
    return template("explanation.html.jinja").render(
        seen=seen,
        whole=whole,
        picture=uri(seen.picture),
        shape=(round(SIDE * width / max(height, width)), round(SIDE * height / max(height, width))),
        pixelated=max(height, width) <= SIDE // 2,
        pictures=[
            {
                "title": TITLES.get(method, method),
                "target": None if method.startswith("rollout") else seen.class_names[seen.target],
                "uri": uri(overlay(seen.picture, found)),
            }
            for method, found in seen.relevance.items()
        ],
        classes=[(name, probability(p), round(100 * p, 1)) for name, p in seen.top()],
        layers=layers(seen),
        signed=any(seen.signed(layer) for layer in seen.maps),
        box=None
        if seen.query is None or grid is None
        else [
            round(100 * value, 3)
            for value in (seen.query[1] / grid.width, seen.query[0] / grid.height, 1 / grid.width, 1 / grid.height)
        ],
    )


def layers(seen: Explanation) -> list[dict[str, Any]]:
    """Per layer the heads' maps of the query, their gates, and the mask or positional map around it."""
    biases = seen.biases()
    found = []
    for layer, looks in seen.looks().items():
        heads = []
        for head, values in enumerate(looks):
            strongest = np.unravel_index(int(np.abs(values).argmax()), values.shape)
            heads.append(
                {
                    "uri": uri(colored(values)),
                    "alt": f"Layer {layer}, head {head}: looks most at row {strongest[0]}, column {strongest[1]}",
                    "gate": f"place {seen.gates[layer][head]:.0%}" if layer in seen.gates else None,
                    "bias": uri(colored(biases[layer][head])) if layer in biases else None,
                }
            )
        kind = seen.mechanisms.get(layer, "")
        found.append(
            {"layer": layer, "kind": kind, "heads": heads, "mask": "learned mask" if kind == "masked" else "by place alone"}
        )
    return found


def uri(pixels: NDArray[np.uint8]) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG")
    return data_uri(stream.getvalue())
