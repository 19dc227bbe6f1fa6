"""The answers to the page: its models and pictures, an explanation in plain values, and its maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias._version import __version__
from softbias.app.state import AppState
from softbias.errors import SoftbiasError
from softbias.explanations.explanation import Explanation
from softbias.explanations.figure import TITLES
from softbias.pages.wording import text
from softbias.runs.start import describe


def describe_state(state: AppState) -> dict[str, Any]:
    return {
        "version": __version__,
        "notes": [text(note) for note in state.notes],
        "data": {"name": state.data.name, "pictures": len(state.order)},
        "models": [
            {
                "name": name,
                "architecture": getattr(model.classifier.model, "name", None) or type(model.classifier.model).__name__,
                "weights": model.classifier.weights,
                "start": None if model.run is None else describe(model.run.spec.start),
                "img_size": model.classifier.img_size,
                "run": model.run is not None,
                "finished": model.run is None or model.run.finished,
                "checkpoints": model.steps(),
                "report": model.report is not None,
            }
            for name, model in zip(state.names, state.models, strict=True)
        ],
    }


def describe_explanation(explanation: Explanation) -> dict[str, Any]:
    """All about an explanation but its maps."""
    grid = next(iter(explanation.grids.values()), None)
    if not np.isfinite(explanation.probabilities).all():
        raise SoftbiasError("the outputs of this model are not finite: its training diverged, or its weights are damaged")
    order = np.argsort(-explanation.probabilities, kind="stable")[:10]
    return {
        "label": explanation.label,
        "target": explanation.target,
        "target_name": explanation.class_names[explanation.target],
        "classes": [
            {"number": int(k), "name": explanation.class_names[k], "p": float(explanation.probabilities[k])} for k in order
        ],
        "size": list(explanation.picture.shape[:2]),
        "grid": None if grid is None else [grid.height, grid.width],
        "layers": [
            {
                "layer": layer,
                "kind": explanation.mechanisms.get(layer, ""),
                "heads": len(found),
                "signed": explanation.signed(layer),
                "token": explanation.grids[layer].prefix > 0,
                "gates": explanation.gates[layer].tolist() if layer in explanation.gates else None,
                "bias": layer in explanation.bias,
            }
            for layer, found in explanation.maps.items()
        ],
        "relevance": [
            {"method": name, "title": TITLES.get(name, name), "shape": list(found.shape), "values": finite(found)}
            for name, found in explanation.relevance.items()
        ],
        "notes": [text(note) for note in explanation.notes],
        "weights": explanation.weights,
    }


def finite(found: NDArray[np.float32]) -> list[float]:
    values: list[float] = np.nan_to_num(found.astype(np.float64), posinf=0, neginf=0).round(7).flatten().tolist()
    return values


def maps_of(explanation: Explanation, query: tuple[int, int] | None) -> list[NDArray[np.float32]]:
    """The attention of a patch in every layer, then the biases around it; None: the attention of the class token."""
    if query is None:
        return list(explanation.class_token_attention().values())
    return [*explanation.attention_from(query).values(), *explanation.bias_from(query).values()]
