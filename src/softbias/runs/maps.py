"""What a regularizer did to its layer: attention maps before and after training, beside the matrix that it asks for.

Compute first, then draw: `record_maps` writes a small file at the start of a run and one at its end, `draw_maps` makes the
picture that stands on the run's page.

Shapes: n pictures, P patches (or regions of them).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softbias.data.augment.apply import normalize
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.models.inspect import attention_sites, inspect, unwrap
from softbias.pages.static import new_figure, png_of, show_map
from softbias.pages.theme import PALETTE
from softbias.regularizers import Regularized, head_average
from softbias.training.batches import SplitImages
from softbias.training.plan import TrainingPlan

BEFORE, AFTER = "attention-before.npz", "attention-after.npz"
SHOWN = 3  # pictures


@torch.no_grad()
def record_maps(plan: TrainingPlan, data: Dataset, split: Split, path: Path) -> None:
    """The head-averaged maps of the regularized layers on a few pictures, what is asked of them, and the sum of both.

    Pictures of the validation split, so that the test pictures are looked at by nobody; of the training split without one.
    """
    chosen = (split.train if split.val is None else split.val)[:SHOWN]
    device = plan.accelerator.device
    model = unwrap(plan.model)
    training = model.training
    run = plan.regularized(model.eval())
    assert isinstance(run, Regularized)
    images = normalize(
        SplitImages(data, chosen, device).load(torch.arange(len(chosen), device=device)), plan.batches.mean, plan.batches.std
    )
    found: dict[str, NDArray[Any]] = {"pictures": data.images[chosen]}
    names = list(run.requests)
    for layer in run.layers:
        seen = inspect(model, images, layers=layer_of(run, layer))
        (number, attention), grid = next(iter(seen.maps.items())), layer.site.grid
        found[f"{number}/map"] = head_average(attention, grid).cpu().numpy()
        found[f"{number}/grid"] = np.array([grid.height, grid.width])
        for seat in layer.seats:
            found[f"{number}/{names[seat.number]}/wanted"] = seat.regularizer.wanted(images).float().cpu().numpy()
            found[f"{number}/{names[seat.number]}/value"] = seat.regularizer(attention, images).float().cpu().numpy()
    model.train(training)
    aside = path.with_name(path.name + ".tmp")
    with aside.open("wb") as stream:
        np.savez_compressed(stream, **found)  # type: ignore[arg-type]
    aside.replace(path)


def layer_of(run: Regularized, layer: Any) -> int:
    modules = [site.module for site in attention_sites(run.module, None)]
    return next(number for number, module in enumerate(modules) if module is layer.module)


def recorded(folder: Path) -> list[tuple[str, int]]:
    """Regularizers and layers that a run has maps of, before and after."""
    if not ((folder / BEFORE).is_file() and (folder / AFTER).is_file()):
        return []
    with np.load(folder / AFTER) as after:
        keys = [key.split("/") for key in after.files if key.endswith("/wanted")]
    return sorted((name, int(layer)) for layer, name, _ in keys)


def draw_maps(folder: Path, name: str, layer: int, theme: str = "light") -> bytes:
    """A PNG: a row per picture, with the matrix that is asked for and the maps before and after.

    The three matrices have the query patch down and the patch it looks at across; beside them, the same for one query patch,
    laid out as the picture is. Attention is on a square-root scale, so that an even map is not mistaken for an empty one.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    with np.load(folder / BEFORE) as before, np.load(folder / AFTER) as after:
        pictures = after["pictures"]
        height, width = after[f"{layer}/grid"]
        wanted = after[f"{layer}/{name}/wanted"]
        maps = [file[f"{layer}/map"] for file in (before, after)]
        values = [file[f"{layer}/{name}/value"] for file in (before, after)]
    paper, ink = PALETTE[theme]["paper"], PALETTE[theme]["ink"]
    figure = new_figure(11.2, 1.75 * len(pictures) + 0.45, paper=paper)
    axes = figure.subplots(len(pictures), 7, squeeze=False)
    regions = (height, width) if wanted.shape[-1] == height * width else coarse(height, width, wanted.shape[-1])
    for row, picture in enumerate(pictures):
        query = busiest(picture, height, width)
        place = query[0] * width + query[1]
        at_region = query[0] * regions[0] // height * regions[1] + query[1] * regions[1] // width
        top = max(float(np.quantile(each[row], 0.995)) for each in maps)
        look = max(float(each[row][place].max()) for each in maps)
        scale: dict[str, Any] = {"cmap": "coolwarm", "vmin": -np.abs(wanted).max(), "vmax": np.abs(wanted).max()}
        if wanted.min() >= 0:
            scale = {"cmap": "magma", "vmin": 0, "vmax": 1}
        shown: list[tuple[Any, dict[str, Any]]] = [
            (picture, {}),
            (wanted[row], scale),
            (maps[0][row], {"cmap": "magma", "norm": PowerNorm(0.5, 0, top)}),
            (maps[1][row], {"cmap": "magma", "norm": PowerNorm(0.5, 0, top)}),
            (wanted[row][at_region].reshape(regions), scale),
            (maps[0][row][place].reshape(height, width), {"cmap": "magma", "norm": PowerNorm(0.5, 0, look)}),
            (maps[1][row][place].reshape(height, width), {"cmap": "magma", "norm": PowerNorm(0.5, 0, look)}),
        ]
        for axis, (array, style) in zip(axes[row], shown, strict=True):
            show_map(axis, array, frame=ink, **style)
        side = (picture.shape[1] / width, picture.shape[0] / height)
        axes[row, 0].add_patch(
            Rectangle((query[1] * side[0] - 0.5, query[0] * side[1] - 0.5), *side, fill=False, color="red", linewidth=1.5)
        )
        for column, value in ((2, values[0]), (3, values[1])):
            axes[row, column].set_xlabel(f"value {value[row]:.3g}", fontsize=8, color=ink)
    matrix = "similarity" if name.startswith("style") else "penalty"
    titles = (
        "query patch",
        f"{matrix} matrix",
        "map before",
        "map after",
        f"{matrix} of the query",
        "where it looks, before",
        "where it looks, after",
    )
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9, color=ink)
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
