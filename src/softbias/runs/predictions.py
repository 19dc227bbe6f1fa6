"""The predictions of a run on its test images: predictions.npz has one writer and one reader, and both are here.

    predictions = Run("runs/flowers-…").predictions()
    predictions.to_frame()                                  # a row per image, for pandas

index           (n,) int64, which images of the set
label           (n,) int64
probabilities   (n, K) float32
files           (n,) text, where the set consists of files
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softbias.errors import SoftbiasError, in_one_line
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

    @property
    def correct(self) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = self.predicted == self.labels
        return right

    def by_index(self) -> Predictions:
        """In the order of the set, so that two runs on the same images can be compared image by image."""
        order = np.argsort(self.index, kind="stable")
        files = None if self.files is None else tuple(self.files[number] for number in order)
        return replace(
            self,
            index=self.index[order],
            labels=self.labels[order],
            probabilities=self.probabilities[order],
            files=files,
        )

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
        try:
            with np.load(path, allow_pickle=False) as file:
                files = tuple(file["files"].tolist()) if "files" in file else None
                found = Predictions(file["index"], file["label"], file["probabilities"], files)
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise SoftbiasError(f"{path} cannot be read: {in_one_line(error)}") from error
        n = len(found.index)
        if found.labels.shape != (n,) or found.probabilities.shape[:1] != (n,) or (files is not None and len(files) != n):
            raise SoftbiasError(f"{path} cannot be read: its columns differ in length")
        return found
