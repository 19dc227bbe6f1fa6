"""What layers have learned about positions, read off the weights: gates and bumps of heads, and masks.

    gates   the gate σ(λ), and strength α, center Δ and width of each head's bump −α ‖δ − Δ‖²; the width is the standard
            deviation of the Gaussian, 1 / √(2α), in patches. Where α ≤ 0 there is no bump, because the head prefers distant
            patches; center and width are then empty
    masks   `softbias.attention.masked.mask_measures`: the distance from the initial mask, the ranks used, the reach; and the
            mask of the query patch in the middle, a row for every patch

The mechanisms compute these numbers (`Attention.bias_rows`). They need no images and have no interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import nn

from softbias.attention.masked import UNITS
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.models.inspect import attention_sites
from softbias.pages.static import heading, hue, panels, save, show_map
from softbias.probes.drawing import as_matrix, by_layer, by_model, latest, over_training, some_epochs, through_training
from softbias.probes.rows import Row, Rows, labeled, without_interval
from softbias.probes.sampling import Source

GATES = ("gate", "strength", "center_row", "center_column", "width")
MASKS = tuple(UNITS)
MOST_EPOCHS = 6  # columns of the figure of masks through training


def gates(model: nn.Module | Classifier, data: Source | None = None) -> Rows:
    """Rows per layer and head with positional attention. No pass over images."""
    return learned_rows(Classifier.of(model), "gates", GATES, "no gated or positional attention")


def masks(model: nn.Module | Classifier, data: Source | None = None) -> Rows:
    """Rows per layer and head that has a mask. No pass over images."""
    return learned_rows(Classifier.of(model), "masks", MASKS, "no learned masks")


@torch.no_grad()
def learned_rows(classifier: Classifier, probe: str, measures: Collection[str], missing: str) -> Rows:
    rows: Rows = []
    for layer, site in enumerate(attention_sites(classifier.model)):
        if set(measures).isdisjoint(site.attention.bias_measures):
            continue  # its rows may take time to compute
        for row in site.attention.bias_rows():
            if row["measure"] in measures:
                about: Row = {"measure": row["measure"], "unit": row["unit"], "layer": layer, "head": row["head"]}
                undefined = {} if math.isfinite(row["value"]) else {"note": "not defined for this head"}
                rows.append({**about, **row, **without_interval(row["value"]), **undefined})
    if not rows:
        raise NotMeasurableError(f"{classifier.name} has {missing}")
    return labeled(classifier, probe, rows)


def draw_gates(rows: Rows, folder: Path) -> list[Path]:
    """Gates by layer or over training, and the bumps around the query."""
    title = "gate σ(λ): share of position"
    made: list[Path] = []
    if through_training(rows):
        made = over_training(rows, folder, "gates", "gate", title)
    elif any(row["measure"] == "gate" for row in rows):
        made = by_layer(rows, folder, "gates", {"gate": title})
    return made + [draw_centers(name, of_model, folder) for name, of_model in latest(rows).items()]


def draw_centers(name: str, rows: Rows, folder: Path) -> Path:
    """A circle per head at its center, of its width, one panel a layer."""
    from matplotlib.patches import Circle

    heads: dict[tuple[int, int], Row] = defaultdict(dict)
    for row in rows:
        heads[row["layer"], row["head"]][row["measure"]] = row["value"]
    layers = sorted({layer for layer, _ in heads})
    figure, grid = panels(len(layers), side=2.2)
    bumps = {key: one for key, one in heads.items() if math.isfinite(one["width"])}
    reach = max([1.5, *(abs(one[axis]) + one["width"] for one in bumps.values() for axis in ("center_row", "center_column"))])
    for axes, layer in zip(grid, layers, strict=True):
        for (of_layer, head), one in bumps.items():
            if of_layer != layer:
                continue
            center, color, alpha = (one["center_column"], one["center_row"]), hue(head), 0.15 + 0.6 * one.get("gate", 1.0)
            axes.add_patch(Circle(center, one["width"], facecolor=color, edgecolor=color, alpha=alpha))
            axes.plot(*center, "o", color=color, markersize=3)
        axes.plot(0, 0, "+", color="black", markersize=9)
        axes.set_xlim(-reach, reach)
        axes.set_ylim(reach, -reach)
        axes.set_aspect("equal")
        axes.set_title(f"layer {layer}", fontsize=9)
    legend = "in patches from the query +; a circle is one width, strong where the gate is open"
    heading(figure, f"{name}: centers of positional attention, {legend}")
    return save(figure, folder, "gates_centers", name)


def draw_masks(rows: Rows, folder: Path) -> list[Path]:
    """The mask of the middle patch: a line per layer and head, a column per epoch; without epochs a column per head."""
    made = over_training(rows, folder, "masks", "moved", "distance from the initial mask") if through_training(rows) else []
    for name, of_model in by_model(rows).items():
        cells: dict[tuple[int, int, float], dict[tuple[int, int], float]] = defaultdict(dict)
        for row in of_model:
            if row["measure"] == "mask":
                cells[row["layer"], row["head"], row.get("epoch", 0)][row["row"], row["column"]] = row["value"]
        heads = list(dict.fromkeys((layer, head) for layer, head, _ in cells))
        epochs = some_epochs((epoch for _, _, epoch in cells), MOST_EPOCHS)
        columns = len(epochs) if len(epochs) > 1 else 1 + max(head for _, head in heads)
        wanted = [(*key, epoch) for key in heads for epoch in epochs]
        figure, grid = panels(len(wanted), side=1.3, height=1.35, columns=columns)
        for axes, (layer, head, epoch) in zip(grid, wanted, strict=True):
            values = as_matrix(cells[layer, head, epoch])
            limit = float(np.abs(values).max())
            show_map(axes, values, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axes.set_ylabel(f"layer {layer}\nhead {head}" if epoch == epochs[0] else "", fontsize=7)
            if len(epochs) > 1 and (layer, head) == heads[0]:
                axes.set_title(f"epoch {epoch:g}", fontsize=8)
        heading(figure, f"{name}: learned masks of the middle patch (red > 0, blue < 0; each panel on its own scale)")
        made.append(save(figure, folder, "masks", name))
    return made
