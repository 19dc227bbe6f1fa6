"""The pictures on the page of a run: test pictures that a person should look at, and what a regularizer did to its layer,
attention maps before and after training beside its matrix.

Compute first, then draw: `most_confident_mistakes`, `labels_worth_checking` and `least_certain` take labels and
probabilities and return indices, the most interesting first. They take test pictures only: a model may have memorized a
wrong label that it was trained on. `record_maps` writes a small file at the start of a run and one at its end, `draw_maps`
makes the picture of them.

Shapes: n pictures, K classes, P patches (or regions of them).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softbias.data.array_files import ArrayFiles
from softbias.data.augment.apply import normalize
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.files import escaped, replacing
from softbias.models.inspect import inspect
from softbias.pages.format import probability
from softbias.pages.html import picture
from softbias.pages.static import new_figure, png_of, show_map
from softbias.pages.theme import PALETTE, QUERY
from softbias.regularizers import head_average
from softbias.regularizers.attach import Regularized
from softbias.runs.predictions import Predictions
from softbias.training.batches import SplitImages
from softbias.training.evaluate import Labels, Probabilities
from softbias.training.plan import TrainingPlan

PER_GALLERY = 24  # pictures per gallery
UNLIKELY, SURE = 0.02, 0.9  # a label is worth checking if it gets less than the first and another class more than the second


def below_common(files: Sequence[str]) -> list[str]:
    """The paths without the folders that they all share.

    >>> below_common(["my photos/test/cat/1.jpg", "my photos/test/dog/1.jpg"])
    ['cat/1.jpg', 'dog/1.jpg']
    """
    parents = [Path(file).parent.as_posix() for file in files]
    root = os.path.commonpath(parents) if parents else ""
    return [escaped(Path(os.path.relpath(file, root)).as_posix() if root else file) for file in files]


def most_confident_mistakes(labels: Labels, probabilities: Probabilities) -> NDArray[np.int64]:
    """Indices of wrong predictions, the most confident first."""
    wrong = np.flatnonzero(probabilities.argmax(1) != labels)
    return wrong[np.argsort(-probabilities.max(1)[wrong], kind="stable")]


def labels_worth_checking(labels: Labels, probabilities: Probabilities) -> NDArray[np.int64]:
    """Indices where the labeled class gets less than 2 % and another more than 90 %; the least likely label first."""
    labeled = probabilities[np.arange(len(labels)), labels]
    doubtful = np.flatnonzero((labeled < UNLIKELY) & (probabilities.max(1) > SURE))
    return doubtful[np.argsort(labeled[doubtful], kind="stable")]


def least_certain(probabilities: Probabilities) -> NDArray[np.int64]:
    """Indices of all predictions, the smallest margin between the first and the second class first."""
    ordered = np.sort(probabilities, axis=1)
    margin = ordered[:, -1] - ordered[:, -2] if ordered.shape[1] > 1 else ordered[:, -1]
    return np.argsort(margin, kind="stable")


def galleries(predictions: Predictions, names: Sequence[str], data: Dataset | None) -> list[dict[str, Any]]:
    """Title, explanation and cards of every gallery, for the template."""
    labels, probabilities = predictions.labels, predictions.probabilities
    mistakes, doubtful = most_confident_mistakes(labels, probabilities), labels_worth_checking(labels, probabilities)
    uncertain = least_certain(probabilities)
    both = len(set(mistakes[:PER_GALLERY]) & set(doubtful[:PER_GALLERY]))
    again = f" {both} of the pictures below are also among the mistakes above." if both else ""
    doubt = f"whose labeled class gets less than {100 * UNLIKELY:g} % while another gets more than {100 * SURE:g} %"
    found = {
        "Most confident mistakes": (
            mistakes,
            f"{len(mistakes):,} of {len(labels):,} test pictures are classified wrongly; the most confident come first.",
            "The model makes no mistake on the test pictures.",
        ),
        "Labels worth checking": (
            doubtful,
            f"{len(doubtful):,} test pictures {doubt}; the least likely label comes first. "
            f"Either the model is wrong or the label is: only a person can decide.{again}",
            f"There is no test picture {doubt}.",
        ),
        "Least certain predictions": (
            uncertain,
            "The test pictures with the smallest difference between the probabilities of the first and the second class.",
            "There are no test pictures.",
        ),
    }
    missing = reason_without_images(predictions, data)
    files = None if predictions.files is None else tuple(below_common(predictions.files))
    predictions = replace(predictions, files=files)
    return [
        {
            "title": title,
            "text": text if len(order) else empty,
            "missing": missing if len(order) else None,
            "cards": [
                card(predictions, int(index), names, None if missing else data, runner_up=order is uncertain)
                for index in order[:PER_GALLERY]
            ],
        }
        for title, (order, text, empty) in found.items()
    ]


def reason_without_images(predictions: Predictions, data: Dataset | None) -> str | None:
    """The reason why the pictures cannot be shown; None if they can."""
    if data is None:
        return "The pictures themselves are not shown: the data set was not available when this page was written."
    index = predictions.index
    if not len(index) or index.max() >= len(data) or not np.array_equal(data.labels[index], predictions.labels):
        return f"The pictures themselves are not shown: the data set {data.name} is not the one this run was tested on."
    return None


def card(
    predictions: Predictions, index: int, names: Sequence[str], data: Dataset | None, *, runner_up: bool
) -> dict[str, Any]:
    """One picture with its label and its prediction; runner_up: also with the class that comes second."""
    probabilities, label = predictions.probabilities[index], int(predictions.labels[index])
    best = int(probabilities.argmax())
    other = int(np.argsort(-probabilities, kind="stable")[1]) if len(probabilities) > 1 else best
    rows = [("first", best), ("second", other)] if runner_up else [("predicted", best)]
    rows = [(f"{caption}, as labeled" if number == label else caption, number) for caption, number in rows]
    rows += [("labeled", label)] if label not in (number for _, number in rows) else []
    number = int(predictions.index[index])
    return {
        "alt": f"A picture labeled {names[label]}, predicted as {names[best]}",
        "rows": [(caption, names[each], probability(probabilities[each])) for caption, each in rows],
        "file": predictions.files[index] if predictions.files is not None else f"picture {number}",
        "picture": None if data is None else picture(data.images[number]),
    }


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
    model = plan.in_use()
    training = model.training
    run = plan.regularized(model.eval(), data.img_size)
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
    with ArrayFiles(folder / AFTER) as after:
        for layer, name, _ in (key.split("/") for key in after.names if key.endswith("/value")):
            words = f"{layer}/{name}/words"
            found.append(RecordedMaps(name, int(layer), str(after.read(words)[1]) if words in after.names else ""))
    return sorted(found, key=lambda each: (each.name, each.layer))


def draw_maps(folder: Path, name: str, layer: int, theme: str = "light") -> bytes:
    """A PNG: a row per picture, with the matrix of the regularizer, where it has one, and the maps before and after.

    A row of a matrix is a query patch, a column a patch that it looks at. Beside each matrix stands one of its rows, laid
    out like the image. Attention is on a square-root scale, so that an even map is not mistaken for an empty one.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    key = f"{layer}/{name}"
    with ArrayFiles(folder / BEFORE) as before, ArrayFiles(folder / AFTER) as after:
        images = after.read("pictures")
        height, width = after.read(f"{layer}/grid")
        matrix = after.read(f"{key}/matrix") if f"{key}/matrix" in after.names else None
        title = str(after.read(f"{key}/words")[0]) if matrix is not None else ""
        maps = [file.read(f"{layer}/map") for file in (before, after)]
        values = [file.read(f"{key}/value") for file in (before, after)]
    paper, ink = PALETTE[theme]["paper"], PALETTE[theme]["ink"]
    columns = 5 if matrix is None else 7
    figure = new_figure(1.6 * columns, 1.75 * len(images) + 0.45, paper=paper)
    axes = figure.subplots(len(images), columns, squeeze=False)
    for row, image in enumerate(images):
        query = busiest(image, height, width)
        index = query[0] * width + query[1]
        top = max(DARKEST, *(float(np.quantile(each[row], 0.995)) for each in maps))
        look = max(DARKEST, *(float(each[row][index].max()) for each in maps))
        whole: dict[str, Any] = {"cmap": "magma", "norm": PowerNorm(0.5, 0, top)}
        one: dict[str, Any] = {"cmap": "magma", "norm": PowerNorm(0.5, 0, look)}
        panels: list[tuple[str, Any, dict[str, Any]]] = [("query patch", image, {})]
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
        side = (image.shape[1] / width, image.shape[0] / height)
        axes[row, 0].add_patch(
            Rectangle((query[1] * side[0] - 0.5, query[0] * side[1] - 0.5), *side, fill=False, color=QUERY, linewidth=1.8)
        )
    return png_of(figure)


def coarse(height: int, width: int, regions: int) -> tuple[int, int]:
    side = round((height * width / regions) ** 0.5)
    return int(height // side), int(width // side)


def busiest(image: NDArray[np.uint8], height: int, width: int) -> tuple[int, int]:
    """The patch with the most contrast: an empty one tells little."""
    rows, columns = image.shape[0] // height, image.shape[1] // width
    patches = image[: rows * height, : columns * width].reshape(height, rows, width, columns, -1).astype(np.float32)
    row, column = np.unravel_index(int(patches.std((1, 3, 4)).argmax()), (height, width))
    return int(row), int(column)
