"""Two pictures that need no trained model: what positional attention is, and what learned masks start from.

    softbias probe convit_nano --data fashion --probes illustrations

Shapes: H heads, N tokens, P patches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from softbias.attention.positional import Positional
from softbias.classifier import Classifier
from softbias.grid import Grid
from softbias.kernels.rolling import kernel_map
from softbias.models import create_model
from softbias.models.inspect import inspect
from softbias.probes.pictures import Source, sample
from softbias.probes.rows import Rows, exactly, stamp

STRENGTHS = (0.1, 0.5, 1.0, 4.0)
KERNELS = ("conv3x3", "exp_l2", "gaussian(1.0)", "exp_l1")


@torch.no_grad()
def illustrations(model: nn.Module | Classifier, data: Source, *, seed: int = 0, split: str = "test", heads: int = 4) -> Rows:
    """Maps of one query patch: untrained full attention beside positional attention at several α, and mask targets.

    The model gives the grid alone; `full` is the first layer of a fresh ViT on one picture, `positional` has content=False.
    """
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=1, seed=seed, split=split)
    torch.manual_seed(seed)
    fresh = create_model("deit_nano", img_size=pictures.size, num_classes=10)
    grid: Grid = fresh.grid(0).with_prefix(0)  # type: ignore[operator]
    query = (grid.height // 2) * grid.width + grid.width // 2
    found: Rows = []
    images, _ = next(iter(pictures.batches()))
    maps = inspect(fresh.eval(), Classifier.of(fresh).normalized(images), layers=0).maps[0]
    full = grid.with_prefix(1).patches_only(maps, renormalize=True)[0]
    for head in range(heads):
        found += cells("full attention, untrained", full[head % len(full), query], grid, head)
    for strength in STRENGTHS:
        attention = Positional(16, heads, grid, content=False, strength=strength).place.map()
        for head in range(heads):
            found += cells(f"positional, α = {strength:g}", attention[head, query], grid, head)
    for kernel in KERNELS:
        found += cells(f"target {kernel}", kernel_map(grid, kernel)[query], grid, None)
    return stamp(classifier, "illustrations", found)


def cells(measure: str, values: torch.Tensor, grid: Grid, head: int | None) -> Rows:
    about = {"measure": measure, "unit": "weight", "layer": None, "head": head}
    places = grid.positions().tolist()
    return [
        {**about, "row": row, "column": column, **exactly(value)}
        for (row, column), value in zip(places, values.tolist(), strict=True)
    ]


def draw(rows: Rows, folder: Any) -> list[Path]:
    """positional.png and targets.png; the query is marked."""
    from softbias.probes.drawing import heading, panels, picture, save

    first = [row for row in rows if row["model"] == rows[0]["model"]]
    shown: dict[tuple[str, int | None], dict[tuple[int, int], float]] = {}
    for row in first:
        shown.setdefault((row["measure"], row["head"]), {})[row["row"], row["column"]] = row["value"]
    made = []
    titles = {
        "positional": "Where one query (+) looks; each panel from 0 to its largest weight",
        "targets": "Mask targets of one query (+): convolutional, and radial",
    }
    for stem, said in titles.items():
        wanted = [key for key in shown if (key[1] is None) == (stem == "targets")]
        columns = max(1 + (head or 0) for _, head in wanted) if stem == "positional" else len(wanted)
        figure, grid = panels(len(wanted), side=1.45, height=1.55, columns=columns)
        for axes, key in zip(grid, wanted, strict=True):
            at = shown[key]
            height, width = (1 + max(place[side] for place in at) for side in (0, 1))
            values = np.array([[at[row, column] for column in range(width)] for row in range(height)])
            picture(axes, values, cmap="viridis", vmin=0, vmax=float(values.max()))
            axes.plot(width // 2, height // 2, "+", color="white", markersize=7)
            if key[1] is None:
                axes.set_title(key[0].removeprefix("target "), fontsize=8)
            else:
                axes.set_title(f"head {key[1]}, largest {values.max():.2f}", fontsize=7)
                axes.set_ylabel(key[0].replace(", ", ",\n") if key[1] == 0 else "", fontsize=7)
        heading(figure, said)
        made.append(save(figure, folder, stem))
    return made
