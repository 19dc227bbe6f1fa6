"""Two figures that need no trained model: positional attention, and the kernels that learned masks start from.

    softbias probe convit_nano --data fashion --probes illustrations

Shapes: H heads, N tokens, P patches.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from softbias.attention.positional import Positional
from softbias.bounds import Count, Seed
from softbias.classifier import Classifier
from softbias.grid import Grid
from softbias.kernels.rolling import kernel_map
from softbias.models import create_model
from softbias.models.inspect import inspect
from softbias.pages.static import heading, panels, save, show_map
from softbias.probes.drawing import as_matrix
from softbias.probes.rows import Rows, labeled, without_interval
from softbias.probes.sampling import Source, sample

STRENGTHS = (0.1, 0.5, 1.0, 4.0)
KERNELS = ("conv3x3", "exp_l2", "gaussian(1.0)", "exp_l1")
FROM_FORMULA = "computed from a formula"


@torch.no_grad()
def illustrations(
    model: nn.Module | Classifier, data: Source, *, seed: Seed = 0, split: str = "test", heads: Count = 4
) -> Rows:
    """Maps of one query patch: untrained full attention beside positional attention at several α, and mask targets.

    The model determines the grid alone; `full` is the first layer of a fresh ViT on one image, `positional` has content=False.
    """
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=1, seed=seed, split=split)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = create_model("deit_nano", img_size=images.size, num_classes=10)
        grid: Grid = fresh.grid(0).with_prefix(0)  # type: ignore[operator]
        query = (grid.height // 2) * grid.width + grid.width // 2
        found: Rows = []
        batch, _ = next(iter(images.batches()))
        maps = inspect(fresh.eval(), Classifier.of(fresh).normalized(batch), layers=0).maps[0]
        full = grid.with_prefix(1).patches_only(maps, renormalize=True)[0]
        for head in range(heads):
            found += cell_rows("full attention, untrained", full[head % len(full), query], grid, head)
        for strength in STRENGTHS:
            attention = Positional(16, heads, grid, content=False, strength=strength).bias_map()
            for head in range(heads):
                found += cell_rows(f"positional, α = {strength:g}", attention[head, query], grid, head)
    for kernel in KERNELS:
        found += cell_rows(f"target {kernel}", kernel_map(grid, kernel)[query], grid, None)
    return labeled(classifier, "illustrations", found)


def cell_rows(measure: str, values: torch.Tensor, grid: Grid, head: int | None) -> Rows:
    about = {"measure": measure, "unit": "weight", "layer": None, "head": head}
    return [
        {**about, "row": row, "column": column, **without_interval(value, FROM_FORMULA)}
        for (row, column), value in zip(grid.positions().tolist(), values.tolist(), strict=True)
    ]


def draw(rows: Rows, folder: Path) -> list[Path]:
    """positional.png and targets.png; the query is marked."""
    first = [row for row in rows if row["model"] == rows[0]["model"]]
    maps_by_head: dict[tuple[str, int | None], dict[tuple[int, int], float]] = {}
    for row in first:
        maps_by_head.setdefault((row["measure"], row["head"]), {})[row["row"], row["column"]] = row["value"]
    made = []
    titles = {
        "positional": "Attention of one query (+); each panel from 0 to its largest weight",
        "targets": "Mask targets of one query (+): convolutional, and radial",
    }
    for stem, title in titles.items():
        wanted = [key for key in maps_by_head if (key[1] is None) == (stem == "targets")]
        columns = max(1 + (head or 0) for _, head in wanted) if stem == "positional" else len(wanted)
        figure, grid = panels(len(wanted), side=1.45, height=1.55, columns=columns)
        for axes, key in zip(grid, wanted, strict=True):
            values = as_matrix(maps_by_head[key])
            height, width = values.shape
            show_map(axes, values, cmap="viridis", vmin=0, vmax=float(values.max()))
            axes.plot(width // 2, height // 2, "+", color="white", markersize=7)
            if key[1] is None:
                axes.set_title(key[0].removeprefix("target "), fontsize=8)
            else:
                axes.set_title(f"head {key[1]}, largest {values.max():.2f}", fontsize=7)
                axes.set_ylabel(key[0].replace(", ", ",\n") if key[1] == 0 else "", fontsize=7)
        heading(figure, title)
        made.append(save(figure, folder, stem))
    return made
