"""Pictures worth a person's look: which predictions they are, and how they stand on the page.

Compute first, then draw: `most_confident_mistakes`, `labels_worth_checking` and `least_certain` take labels and
probabilities and return places, best first. They are given test pictures, which the model never learned from: a wrong label
that a model was trained on is one it may have learned by heart.

Shapes: n test pictures, K classes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.pages.format import probability
from softbias.pages.html import data_uri
from softbias.runs.predictions import Predictions
from softbias.training.evaluate import Labels, Probabilities

SHOWN = 24  # pictures per gallery
SIDE = 144  # of a picture on the page, in CSS pixels
STORED = 192  # larger pictures are made smaller than this before they go into the page
UNLIKELY, SURE = 0.02, 0.9  # a label is worth checking where it gets less than the first and another class over the second


def below_common(files: Sequence[str]) -> list[str]:
    """Paths from where they part, which is all that tells pictures apart on the page.

    >>> below_common(["my photos/test/cat/1.jpg", "my photos/test/dog/1.jpg"])
    ['cat/1.jpg', 'dog/1.jpg']
    """
    parents = [Path(file).parent.as_posix() for file in files]
    root = os.path.commonpath(parents) if parents else ""
    return [Path(os.path.relpath(file, root)).as_posix() if root else file for file in files]


def most_confident_mistakes(labels: Labels, probabilities: Probabilities) -> NDArray[np.int64]:
    """Wrong predictions, the surest first."""
    wrong = np.flatnonzero(probabilities.argmax(1) != labels)
    return wrong[np.argsort(-probabilities.max(1)[wrong], kind="stable")]


def labels_worth_checking(labels: Labels, probabilities: Probabilities) -> NDArray[np.int64]:
    """Where the labeled class gets less than 2 % and another more than 90 %; the least likely label first."""
    labeled = probabilities[np.arange(len(labels)), labels]
    doubtful = np.flatnonzero((labeled < UNLIKELY) & (probabilities.max(1) > SURE))
    return doubtful[np.argsort(labeled[doubtful], kind="stable")]


def least_certain(probabilities: Probabilities) -> NDArray[np.int64]:
    """All predictions, the smallest margin between the first and the second class first."""
    ordered = np.sort(probabilities, axis=1)
    margin = ordered[:, -1] - ordered[:, -2] if ordered.shape[1] > 1 else ordered[:, -1]
    return np.argsort(margin, kind="stable")


def galleries(predictions: Predictions, names: Sequence[str], data: Dataset | None) -> list[dict[str, Any]]:
    """Title, explanation and cards of every gallery, for the template."""
    labels, probabilities = predictions.labels, predictions.probabilities
    mistakes, doubtful = most_confident_mistakes(labels, probabilities), labels_worth_checking(labels, probabilities)
    both = len(set(mistakes[:SHOWN]) & set(doubtful[:SHOWN]))
    again = f" {both} of those shown here also stand among the mistakes above." if both else ""
    doubt = f"whose labeled class gets less than {100 * UNLIKELY:g} % while another gets more than {100 * SURE:g} %"
    found = {
        "Most confident mistakes": (
            mistakes,
            f"{len(mistakes):,} of {len(labels):,} test pictures are classified wrongly; the surest come first.",
            "The model makes no mistake on the test pictures.",
        ),
        "Labels worth checking": (
            doubtful,
            f"{len(doubtful):,} test pictures {doubt}; the least likely label comes first. "
            f"Either the model is wrong or the label is: only a look decides.{again}",
            f"There is no test picture {doubt}.",
        ),
        "Least certain predictions": (
            least_certain(probabilities),
            "Test pictures over which the model hesitates most: the first class and the second are closest to each other.",
            "There are no test pictures.",
        ),
    }
    missing = why_no_pictures(predictions, data)
    files = None if predictions.files is None else tuple(below_common(predictions.files))
    predictions = replace(predictions, files=files)
    return [
        {
            "title": title,
            "text": text if len(places) else empty,
            "missing": missing if len(places) else None,
            "cards": [
                card(predictions, int(place), names, None if missing else data, contest=title.startswith("Least"))
                for place in places[:SHOWN]
            ],
        }
        for title, (places, text, empty) in found.items()
    ]


def why_no_pictures(predictions: Predictions, data: Dataset | None) -> str | None:
    """A sentence where the pictures cannot be shown; None where they can."""
    if data is None:
        return "The pictures themselves are not shown: the data set was not at hand when this page was written."
    index = predictions.index
    if not len(index) or index.max() >= len(data) or not np.array_equal(data.labels[index], predictions.labels):
        return f"The pictures themselves are not shown: the data set {data.name} is not the one this run was tested on."
    return None


def card(predictions: Predictions, place: int, names: Sequence[str], data: Dataset | None, *, contest: bool) -> dict[str, Any]:
    """One picture with what it is and what the model says; in a contest also which class comes second."""
    probabilities, label = predictions.probabilities[place], int(predictions.labels[place])
    best = int(probabilities.argmax())
    other = int(np.argsort(-probabilities, kind="stable")[1]) if len(probabilities) > 1 else best
    rows = [("predicted", best)] if not contest else [("first", best), ("second", other)]
    rows = [(f"{caption}, as labeled" if number == label else caption, number) for caption, number in rows]
    rows += [("labeled", label)] if label not in (number for _, number in rows) else []
    shown: dict[str, Any] = {"alt": f"A picture labeled {names[label]}, predicted as {names[best]}"}
    shown["rows"] = [(caption, names[number], probability(probabilities[number])) for caption, number in rows]
    number = int(predictions.index[place])
    shown["file"] = predictions.files[place] if predictions.files is not None else f"picture {number}"
    return shown | (picture(data.images[number]) if data is not None else {"uri": None})


def picture(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """A picture as a PNG data URI with its size on the page; small ones are enlarged by a whole number, pixel by pixel."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    largest = max(image.size)
    scale = SIDE // largest if largest <= SIDE // 2 else SIDE / largest
    size = [max(1, round(side * scale)) for side in image.size]
    if largest > STORED:
        image.thumbnail((STORED, STORED), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return {"uri": data_uri(stream.getvalue()), "width": size[0], "height": size[1], "pixelated": largest <= SIDE // 2}
