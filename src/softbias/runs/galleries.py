"""Test pictures that a person should look at: which they are, and how they stand on the page.

Compute first, then draw: `most_confident_mistakes`, `labels_worth_checking` and `least_certain` take labels and
probabilities and return indices, the most interesting first. They take test pictures only: a model may have memorized a
wrong label that it was trained on.

Shapes: n test pictures, K classes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.data.dataset import Dataset
from softbias.pages.format import probability
from softbias.pages.html import picture
from softbias.runs.predictions import Predictions
from softbias.training.evaluate import Labels, Probabilities

PER_GALLERY = 24  # pictures per gallery
UNLIKELY, SURE = 0.02, 0.9  # a label is worth checking if it gets less than the first and another class more than the second


def below_common(files: Sequence[str]) -> list[str]:
    """The paths without the folders that they all share.

    >>> below_common(["my photos/test/cat/1.jpg", "my photos/test/dog/1.jpg"])
    ['cat/1.jpg', 'dog/1.jpg']
    """
    parents = [Path(file).parent.as_posix() for file in files]
    root = os.path.commonpath(parents) if parents else ""
    return [Path(os.path.relpath(file, root)).as_posix() if root else file for file in files]


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
