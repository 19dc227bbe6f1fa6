"""The predictions of a run on its test images: predictions.npz has one writer and one reader, and both are here.

    predictions = Run("runs/flowers-…").predictions()
    predictions.to_frame()                                  # a row per image, for pandas

index           (n,) int64, which images of the set
label           (n,) int64
probabilities   (n, K) float32
files           (n,) text, where the set consists of files
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softbias.data.array_files import ArrayFiles
from softbias.data.arrays import as_text
from softbias.errors import SoftbiasError
from softbias.files import replacing

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Predictions:
    """Shapes: n test images, K classes."""

    index: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64]  # (n,)
    probabilities: NDArray[np.float32]  # (n, K)
    files: tuple[str, ...] | None = None

    @property
    def predicted(self) -> NDArray[np.int64]:
        best: NDArray[np.int64] = self.probabilities.argmax(1)
        return best

    def to_frame(self) -> pandas.DataFrame:
        """Columns index, label, predicted, p0, p1, …, and file where the set consists of files."""
        import pandas

        columns: dict[str, object] = {"index": self.index, "label": self.labels, "predicted": self.predicted}
        columns |= {} if self.files is None else {"file": list(self.files)}
        columns |= {f"p{number}": self.probabilities[:, number] for number in range(self.probabilities.shape[1])}
        return pandas.DataFrame(columns)

    def write(self, path: Path) -> None:
        columns: dict[str, NDArray[Any]] = {
            "index": self.index,
            "label": self.labels,
            "probabilities": self.probabilities.astype(np.float32),
        }
        if self.files is not None:
            columns["files"] = np.array(self.files, np.str_)
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **columns)

    @staticmethod
    def read(path: Path) -> Predictions:
        with ArrayFiles(path) as file:
            index, labels, probabilities = (file.read(name) for name in ("index", "label", "probabilities"))
            files = tuple(as_text(file.read("files"), f"{path}: files")) if "files" in file.names else None
        n = len(index) if index.ndim else 0
        for name, array, kinds, shape in (
            ("index", index, "iu", (n,)),
            ("label", labels, "iu", (n,)),
            ("probabilities", probabilities, "f", (n, *probabilities.shape[1:2])),
        ):
            if array.dtype.kind not in kinds or array.shape != shape or array.ndim != (2 if name == "probabilities" else 1):
                what = "numbers, one row" if name == "probabilities" else "whole numbers, one"
                raise SoftbiasError(f"{path}: {name} must be {what} per picture, but is {array.dtype} of shape {array.shape}")
        if files is not None and len(files) != n:
            raise SoftbiasError(f"{path}: files must be one name per picture, {n}, but are {len(files)}")
        if n and not 0 <= labels.min() <= labels.max() < probabilities.shape[1]:
            raise SoftbiasError(f"{path}: labels must be numbers of its {probabilities.shape[1]} classes, but some are not")
        return Predictions(index, labels, probabilities, files)
