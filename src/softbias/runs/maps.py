"""What a regularizer did to its layer: attention maps before and after training, beside its matrix.

Compute first, then draw: `record_maps` writes a small file at the start of a run and one at its end, `draw_maps` makes the
picture that stands on the run's page.

Shapes: n pictures, P patches (or regions of them).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softbias.data.augment.apply import normalize
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.files import replacing
from softbias.models.inspect import inspect, unwrap
from softbias.pages.static import new_figure, png_of, show_map
from softbias.pages.theme import PALETTE, QUERY
from softbias.regularizers import head_average
from softbias.regularizers.attach import Regularized
from softbias.training.batches import SplitImages
from softbias.training.plan import TrainingPlan

BEFORE, AFTER = "attention-before.npz", "attention-after.npz"
COUNT = 3  # pictures
DARKEST = 1e-6  # the least upper end of a scale: learned masks can make a whole row negative


@dataclass(frozen=True)
class RecordedMaps:
    """A regularizer at a layer; `legend` explains its matrix, and is empty where it has none."""

    name: str
    layer: int
    legend: str


@torch.no_grad()
def record_maps(plan: TrainingPlan, data: Dataset, split: Split, path: Path) -> None:
    """Write the head-averaged maps of the regularized layers on a few images, with the matrix and the values of regularizers.

    The images are of the validation split, or of the training split where there is none; nobody looks at test images.
    """
    chosen = (split.train if split.val is None else split.val)[:COUNT]
    device = plan.accelerator.device
    model = unwrap(plan.model)
    training = model.training
    run = plan.regularized(model.eval())
    assert isinstance(run, Regularized)
    images = normalize(
        SplitImages(data, chosen, device).load(torch.arange(len(chosen), device=device)), plan.batches.mean, plan.batches.std
    )
    found: dict[str, NDArray[Any]] = {"pictures": data.images[chosen]}
    for layer in run.layers:
        attention, grid = inspect(model, images, layers=layer.index).maps[layer.index], layer.site.grid
        found[f"{layer.index}/map"] = head_average(attention, grid).cpu().numpy()
        found[f"{layer.index}/grid"] = np.array([grid.height, grid.width])
        for each in layer.attached:
            key, regularizer = f"{layer.index}/{each.label}", each.regularizer
            found[f"{key}/value"] = regularizer(attention, images).float().cpu().numpy()
            matrix = regularizer.matrix(images)
            if matrix is not None:
                found[f"{key}/matrix"] = matrix.float().cpu().numpy()
                found[f"{key}/words"] = np.array([regularizer.matrix_name, regularizer.matrix_legend])
    model.train(training)
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **found)  # type: ignore[arg-type]


def recorded(folder: Path) -> list[RecordedMaps]:
    """The regularized layers whose maps the run recorded both before and after training."""
    if not ((folder / BEFORE).is_file() and (folder / AFTER).is_file()):
        return []
    found = []
    with np.load(folder / AFTER) as after:
        for layer, name, _ in (key.split("/") for key in after.files if key.endswith("/value")):
            words = f"{layer}/{name}/words"
            found.append(RecordedMaps(name, int(layer), str(after[words][1]) if words in after.files else ""))
    return sorted(found, key=lambda each: (each.name, each.layer))


def draw_maps(folder: Path, name: str, layer: int, theme: str = "light") -> bytes:
    """A PNG: a row per picture, with the matrix of the regularizer, where it has one, and the maps before and after.

    A row of a matrix is a query patch, a column a patch that it looks at. Beside each matrix stands one of its rows, laid
    out like the image. Attention is on a square-root scale, so that an even map is not mistaken for an empty one.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    key = f"{layer}/{name}"
    with np.load(folder / BEFORE) as before, np.load(folder / AFTER) as after:
        images = after["pictures"]
        height, width = after[f"{layer}/grid"]
        matrix = after[f"{key}/matrix"] if f"{key}/matrix" in after.files else None
        title = str(after[f"{key}/words"][0]) if matrix is not None else ""
        maps = [file[f"{layer}/map"] for file in (before, after)]
        values = [file[f"{key}/value"] for file in (before, after)]
    paper, ink = PALETTE[theme]["paper"], PALETTE[theme]["ink"]
    columns = 5 if matrix is None else 7
    figure = new_figure(1.6 * columns, 1.75 * len(images) + 0.45, paper=paper)
    axes = figure.subplots(len(images), columns, squeeze=False)
    for row, picture in enumerate(images):
        query = busiest(picture, height, width)
        index = query[0] * width + query[1]
        top = max(DARKEST, *(float(np.quantile(each[row], 0.995)) for each in maps))
        look = max(DARKEST, *(float(each[row][index].max()) for each in maps))
        whole: dict[str, Any] = {"cmap": "magma", "norm": PowerNorm(0.5, 0, top)}
        one: dict[str, Any] = {"cmap": "magma", "norm": PowerNorm(0.5, 0, look)}
        panels: list[tuple[str, Any, dict[str, Any]]] = [("query patch", picture, {})]
        for when, each in zip(("before", "after"), maps, strict=True):
            panels.append((f"map {when}", each[row], whole))
        for when, each in zip(("before", "after"), maps, strict=True):
            panels.append((f"where it looks, {when}", each[row][index].reshape(height, width), one))
        if matrix is not None:
            most, signed = np.abs(matrix).max(), matrix.min() < 0
            scale = {"cmap": "coolwarm", "vmin": -most, "vmax": most} if signed else {"cmap": "magma", "vmin": 0, "vmax": 1}
            regions = (height, width) if matrix.shape[-1] == height * width else coarse(height, width, matrix.shape[-1])
            region = query[0] * regions[0] // height * regions[1] + query[1] * regions[1] // width
            panels.insert(3, (f"{title} of the query", matrix[row][region].reshape(regions), scale))
            panels.insert(1, (f"{title} matrix", matrix[row], scale))
        for axis, (heading, array, style) in zip(axes[row], panels, strict=True):
            show_map(axis, array, frame=ink, **style)
            if row == 0:
                axis.set_title(heading, fontsize=9, color=ink)
            if heading in ("map before", "map after"):
                axis.set_xlabel(f"value {values[heading == 'map after'][row]:.3g}", fontsize=8, color=ink)
        side = (picture.shape[1] / width, picture.shape[0] / height)
        axes[row, 0].add_patch(
            Rectangle((query[1] * side[0] - 0.5, query[0] * side[1] - 0.5), *side, fill=False, color=QUERY, linewidth=1.8)
        )
    return png_of(figure)


def coarse(height: int, width: int, regions: int) -> tuple[int, int]:
    side = round((height * width / regions) ** 0.5)
    return int(height // side), int(width // side)


def busiest(picture: NDArray[np.uint8], height: int, width: int) -> tuple[int, int]:
    """The patch with the most contrast: an empty one tells little."""
    rows, columns = picture.shape[0] // height, picture.shape[1] // width
    patches = picture[: rows * height, : columns * width].reshape(height, rows, width, columns, -1).astype(np.float32)
    row, column = np.unravel_index(int(patches.std((1, 3, 4)).argmax()), (height, width))
    return int(row), int(column)
