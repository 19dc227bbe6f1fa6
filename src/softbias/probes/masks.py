"""Learned masks through training: how far from the kernel they started as, how much of their rank they use, how they look.

    moved       ‖M − M₀‖ / ‖M₀‖                       M₀ the mask as it was initialized
    kernel_fit  ⟨M, K⟩ / ‖M‖ ‖K‖                      cosine with the target kernel K itself, on the patches
    rank        exp(−Σ p log p), p = s / Σ s          effective rank of the rolled W = Aᵀ B, s its singular values (≤ r)
    rank_1%     how many s exceed 1 % of the largest
    negative    share of entries below zero
    reach       Σ |M| ‖δ‖ / Σ |M|                     mean distance of what the mask lets through, in patches
    mask        M[i, ·] of the query patch in the middle, a row for every place: what the pictures show

Read off the weights, so there are no pictures and no interval.

Shapes: H heads, N tokens, P patches, r rank.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softbias.attention.masked import Masked
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.kernels.rolling import fitted_factors, kernel_map, unroll
from softbias.models.inspect import attention_sites
from softbias.probes.drawing import by_model, draw_map, heading, over_training, panels, save, through_training
from softbias.probes.rows import Rows, labeled, without_interval

UNITS = {"moved": "relative", "kernel_fit": "cosine", "rank": "effective rank", "rank_1%": "rank", "negative": "share"}
UNITS |= {"reach": "patches"}


@torch.no_grad()
def masks(model: nn.Module | Classifier, data: Any = None) -> Rows:
    """Rows per layer and head that has a mask. No pass over pictures."""
    classifier = Classifier.of(model)
    found: Rows = []
    for layer, site in enumerate(attention_sites(classifier.model)):
        if isinstance(site.module, Masked):
            found += of_layer(site.module, layer)
    if not found:
        raise NotMeasurableError(f"{classifier.name} has no learned masks")
    return labeled(classifier, "masks", found)


def of_layer(attention: Masked, layer: int) -> Rows:
    grid = attention.grid
    mask = attention.mask().float().cpu()  # (H, N, N)
    rolled = (attention.mask_a.mT @ attention.mask_b).float().cpu()
    scalars = measures(mask, rolled, initial_mask(attention), kernel_map(grid, attention.kernel), grid)
    rows: Rows = [
        {"measure": name, "unit": UNITS[name], "layer": layer, "head": head, **without_interval(value)}
        for name, values in scalars.items()
        for head, value in enumerate(values)
    ]
    query = grid.prefix + (grid.height // 2) * grid.width + grid.width // 2
    places = [(int(row), int(column)) for row, column in grid.positions()]
    for head in range(len(mask)):
        values = mask[head, query, grid.prefix :].tolist()
        rows += [
            {
                "measure": "mask",
                "unit": "weight",
                "layer": layer,
                "head": head,
                "row": row,
                "column": column,
                **without_interval(value),
            }
            for (row, column), value in zip(places, values, strict=True)
        ]
    return rows


def initial_mask(attention: Masked) -> Tensor:
    """The mask the layer started from.  # (N, N)"""
    a, b = fitted_factors(attention.grid, attention.kernel, attention.rank, attention.fit, attention.roll)
    return unroll(a.mT.float() @ b.float(), attention.grid.prefix, attention.roll)


def measures(mask: Tensor, rolled: Tensor, start: Tensor, kernel: Tensor, grid: Any) -> dict[str, list[float]]:
    """One number per head for every measure.  # (H, N, N), (H, N, N), (N, N), (N, N)"""
    patches, target = grid.patches_only(mask), grid.patches_only(kernel)
    strengths = torch.linalg.svdvals(rolled.double())  # (H, N)
    parts = strengths / strengths.sum(-1, keepdim=True)
    weight = patches.abs()
    return {
        "moved": (torch.linalg.matrix_norm(mask - start) / torch.linalg.matrix_norm(start)).tolist(),
        "kernel_fit": torch.cosine_similarity(patches.flatten(1), target.flatten()[None], dim=1).tolist(),
        "rank": torch.exp(-(parts * parts.clamp_min(1e-30).log()).sum(-1)).tolist(),
        "rank_1%": (strengths > 0.01 * strengths[:, :1]).sum(-1).tolist(),
        "negative": (patches < 0).float().mean((-2, -1)).tolist(),
        "reach": ((weight * grid.distances()).sum((-2, -1)) / weight.sum((-2, -1)).clamp_min(1e-12)).tolist(),
    }


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
            draw_map(axes, values, cmap="RdBu_r", vmin=-limit, vmax=limit)
            first = len(times) == 1 or time == times[0]
            axes.set_ylabel(f"layer {key[0]}\nhead {key[1]}" if first else "", fontsize=7)
            if len(times) > 1 and key == heads[0]:
                axes.set_title(f"epoch {time:g}", fontsize=8)
        heading(figure, f"{name}: learned masks of the middle patch (red > 0, blue < 0; each panel on its own scale)")
        made.append(save(figure, folder, "masks", name))
    return made
