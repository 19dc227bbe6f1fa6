"""Learned masks through training: their distance from the kernel they started as, the ranks they use, and their pictures.

`softbias.attention.masked.mask_measures` defines the measures moved, kernel_fit, rank, rank_1%, negative and reach. The measure
mask is M[i, ·] of the query patch in the middle, a row for every patch, which the pictures show. All of it is read off the
weights, so there are no images and no interval.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from softbias.attention.masked import UNITS
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.pages.static import heading, panels, save, show_map
from softbias.probes.drawing import by_model, over_training, through_training
from softbias.probes.rows import Rows, labeled, learned_rows

MEASURES = tuple(UNITS)


@torch.no_grad()
def masks(model: nn.Module | Classifier, data: Any = None) -> Rows:
    """Rows per layer and head that has a mask. No pass over images."""
    classifier = Classifier.of(model)
    found = learned_rows(classifier.model, MEASURES)
    if not found:
        raise NotMeasurableError(f"{classifier.name} has no learned masks")
    return labeled(classifier, "masks", found)


def draw(rows: Rows, folder: Path) -> list[Path]:
    """The mask of the middle patch: a line per layer and head, a column per epoch (or just one)."""
    made = over_training(rows, folder, "masks", "moved", "distance from the initial mask") if through_training(rows) else []
    for name, of_model in by_model(rows).items():
        shown: dict[tuple[int, int], dict[float, dict[tuple[int, int], float]]] = defaultdict(lambda: defaultdict(dict))
        for row in of_model:
            if row["measure"] == "mask":
                shown[row["layer"], row["head"]][row.get("epoch", 0)][row["row"], row["column"]] = row["value"]
        times = sorted(next(iter(shown.values())))
        times = [times[round(place * (len(times) - 1) / 5)] for place in range(6)] if len(times) > 6 else times
        heads = list(shown)
        if len(times) == 1:
            columns = 1 + max(head for _, head in heads)
            figure, grid = panels(len(heads), side=1.3, height=1.35, columns=columns)
            wanted = [(key, times[0]) for key in heads]
        else:
            figure, grid = panels(len(heads) * len(times), side=1.3, height=1.35, columns=len(times))
            wanted = [(key, time) for key in heads for time in times]
        for axes, (key, time) in zip(grid, wanted, strict=True):
            cells = shown[key][time]
            height, width = (1 + max(place[side] for place in cells) for side in (0, 1))
            values = np.array([[cells[row, column] for column in range(width)] for row in range(height)])
            limit = float(np.abs(values).max())
            show_map(axes, values, cmap="RdBu_r", vmin=-limit, vmax=limit)
            first = len(times) == 1 or time == times[0]
            axes.set_ylabel(f"layer {key[0]}\nhead {key[1]}" if first else "", fontsize=7)
            if len(times) > 1 and key == heads[0]:
                axes.set_title(f"epoch {time:g}", fontsize=8)
        heading(figure, f"{name}: learned masks of the middle patch (red > 0, blue < 0; each panel on its own scale)")
        made.append(save(figure, folder, "masks", name))
    return made
