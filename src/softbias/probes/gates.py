"""What gated and positional heads have learned about position: the gate σ(λ), and the center and width of each bump.

    v · r(δ) = −α ‖δ − Δ‖² + constant,   v = α (2 Δ_column, 2 Δ_row, −1)   so   α = −v₃,  Δ = v₁₂ / 2α,  width = 1 / √(2α)

The width is the standard deviation of the Gaussian, in patches. Where α ≤ 0 there is no bump, because the head prefers what is
far away; center and width are empty. These are weights, so there are no images and no interval.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.pages.static import heading, hue, panels, save
from softbias.probes.drawing import by_layer, latest, over_training, through_training
from softbias.probes.rows import Row, Rows, labeled, learned_rows

MEASURES = ("gate", "strength", "center_row", "center_column", "width")


@torch.no_grad()
def gates(model: nn.Module | Classifier, data: Any = None) -> Rows:
    """Rows per layer and head that knows positions: gate, strength, center and width. No pass over images."""
    classifier = Classifier.of(model)
    found = learned_rows(classifier.model, MEASURES)
    if not found:
        raise NotMeasurableError(f"{classifier.name} has no gated or positional attention, so it has no gates")
    return labeled(classifier, "gates", found)


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Gates by layer or over training, and where the bumps sit around the query."""
    if through_training(rows):
        made = over_training(rows, folder, "gates", "gate", "gate σ(λ): share of position")
    elif any(row["measure"] == "gate" for row in rows):
        made = by_layer(rows, folder, "gates", {"gate": "gate σ(λ): share of position"})
    else:
        made = []
    return made + draw_centers(rows, folder)


def draw_centers(rows: Rows, folder: Path) -> list[Path]:
    """A circle per head at its centre, of its width, one panel a layer; of the last model in time where there are several."""
    from matplotlib.patches import Circle

    made = []
    for name, of_model in latest(rows).items():
        heads: dict[tuple[int, int], Row] = {}
        for row in of_model:
            heads.setdefault((row["layer"], row["head"]), {})[row["measure"]] = row["value"]
        layers = sorted({layer for layer, _ in heads})
        figure, grid = panels(len(layers), side=2.2)
        shown = [one for one in heads.values() if math.isfinite(one["width"])]
        reach = max([1.5, *(abs(one[axis]) + one["width"] for one in shown for axis in ("center_row", "center_column"))])
        for axes, layer in zip(grid, layers, strict=False):
            for (at, head), one in heads.items():
                if at != layer or not math.isfinite(one["width"]):
                    continue
                center, color = (one["center_column"], one["center_row"]), hue(head)
                axes.add_patch(
                    Circle(center, one["width"], facecolor=color, edgecolor=color, alpha=0.15 + 0.6 * one.get("gate", 1.0))
                )
                axes.plot(*center, "o", color=color, markersize=3)
            axes.plot(0, 0, "+", color="black", markersize=9)
            axes.set_xlim(-reach, reach)
            axes.set_ylim(reach, -reach)
            axes.set_aspect("equal")
            axes.set_title(f"layer {layer}", fontsize=9)
        said = "in patches from the query +; a circle is one width, strong where the gate is open"
        heading(figure, f"{name}: where heads look by place, {said}")
        made.append(save(figure, folder, "gates_centers", name))
    return made
