"""What a run answered on its test images: class and confidence. That is enough to compare runs image by image.

A run has them in its predictions. A packed run (`study.packing`) has them alone, in two files:

labels.npz    index (n,), which images of the set; label (n,). Runs on the same images have the same file
answers.npz   rank (n,), 0 where the prediction is right, 1 where the right class is among the five most likely, and 5 where it
              is not; instead, the predicted classes where it is wrong, in their order; percent (n,), probability of the
              predicted class, rounded to a multiple of five. Finer numbers would be most of such a file

Older packed studies have ranks in full, predicted (n,) and confidence (n,), in 255ths, and some have all in answers.npz.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.checksums import verify_file
from softbias.data.array_files import ArrayFiles
from softbias.errors import SoftbiasError
from softbias.files import replacing
from softbias.runs.predictions import Predictions

ANSWERS, LABELS = "answers.npz", "labels.npz"
STEP = 5  # percent
KEPT_RANKS = (0, 1, 5)  # where accuracy and top-5 accuracy change; a rank is kept as the one below it
COLUMNS = ("index", "label", "rank", "instead", "percent")
OLDER = ("index", "label", "rank", "predicted", "confidence")


@dataclass(frozen=True)
class Answers:
    """Shapes: n test images. files: names of the images, where they are known.

    rank   number of classes that are more likely than the right one; of a packed run, one of KEPT_RANKS
    """

    index: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64]  # (n,)
    predicted: NDArray[np.int64]  # (n,)
    rank: NDArray[np.int64]  # (n,), 0 where the prediction is right
    confidence: NDArray[np.float32]  # (n,)
    files: tuple[str, ...] | None = None

    @staticmethod
    def of(found: Predictions) -> Answers:
        p = found.probabilities
        own = p[np.arange(len(p)), found.labels][:, None]
        before = (p > own) | (
            (p == own) & (np.arange(p.shape[1]) < found.labels[:, None])
        )  # of equal classes the first, as in argmax
        return Answers(found.index, found.labels, found.predicted, before.sum(1), p.max(1), found.files)

    @property
    def correct(self) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = self.predicted == self.labels
        return right

    def by_index(self) -> Answers:
        """In the order of the set, so that two runs on the same images can be compared image by image."""
        order = np.argsort(self.index, kind="stable")
        files = None if self.files is None else tuple(self.files[number] for number in order)
        ordered = {name: getattr(self, name)[order] for name in ("index", "labels", "predicted", "rank", "confidence")}
        return replace(self, **ordered, files=files)

    def write(self, folder: Path) -> None:
        """Without the names of files, which may be private. The same answers always make the same bytes."""
        files: dict[str, dict[str, NDArray[Any]]] = {
            LABELS: {"index": self.index.astype(np.int32), "label": small(self.labels)},
            ANSWERS: {
                "rank": small(np.array(KEPT_RANKS)[np.searchsorted(KEPT_RANKS, self.rank, side="right") - 1]),
                "instead": small(self.predicted[~self.correct]),
                "percent": (np.rint(self.confidence * (100 / STEP)) * STEP).astype(np.uint8),
            },
        }
        for name, columns in files.items():
            with replacing(folder / name) as temporary, temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **columns)

    @staticmethod
    def read(folder: Path) -> Answers:
        """Each file is compared with its checksum first."""
        arrays: dict[str, NDArray[Any]] = {}
        path = folder / ANSWERS
        for name in (ANSWERS, LABELS):
            if name == LABELS and "label" in arrays:
                break
            verify_file(folder / name)
            with ArrayFiles(folder / name) as file:
                arrays |= {column: file.read(column) for column in {*COLUMNS, *OLDER} & set(file.names)}
        names = OLDER if "predicted" in arrays else COLUMNS
        missing = [name for name in names if name not in arrays]
        if missing:
            raise SoftbiasError(f"{path}: the array {missing[0]} is missing")
        n = len(arrays["index"]) if arrays["index"].ndim else 0
        wrong = int(np.count_nonzero(arrays["rank"]))
        for name in names:
            array, wanted = arrays[name], wrong if name == "instead" else n
            if array.dtype.kind not in "iu" or array.shape != (wanted,):
                what = "one per wrong prediction" if name == "instead" else "one per picture"
                raise SoftbiasError(
                    f"{path}: {name} must be whole numbers, {what}, but is {array.dtype} of shape {array.shape}"
                )
            if wanted and array.min() < 0:
                raise SoftbiasError(f"{path}: {name} has a number below 0")
        index, labels, rank = (arrays[name].astype(np.int64) for name in ("index", "label", "rank"))
        if names is OLDER:
            predicted, confidence = arrays["predicted"].astype(np.int64), arrays["confidence"] / 255
        else:
            predicted, confidence = labels.copy(), arrays["percent"] / 100
            predicted[rank > 0] = arrays["instead"]
        return Answers(index, labels, predicted, rank, confidence.astype(np.float32))


def small(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole numbers, none below 0, in as few bytes as they need."""
    found: NDArray[np.int64] = classes.astype(np.min_scalar_type(int(classes.max(initial=0))))
    return found
