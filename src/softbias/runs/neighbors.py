"""What a model that learned features alone has learned: the nearest training pictures of a few pictures, for the page of its
run, and how often neighbors have the same class.

neighbors.npz has one writer and one reader, and both are here:

index        (n,) int64, pictures of the set: test pictures, or training pictures where there are no others
neighbors    (n, k) int64, training pictures, the nearest first
similarity   (n, k) float32, the cosine of the two features
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from softbias.checksums import verify_file
from softbias.data.array_files import ArrayFiles
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.errors import SoftbiasError
from softbias.files import replacing
from softbias.pages.html import picture
from softbias.training.batches import Batches
from softbias.training.linear import untrained
from softbias.training.neighbors import FeatureSpace, feature_space, neighbor_scores

ROWS, COLUMNS = 12, 6  # pictures whose neighbors the page shows, and neighbors of each
SIDE = 64  # CSS pixels of a picture there


@dataclass(frozen=True)
class NeighborRows:
    index: NDArray[np.int64]  # (n,)
    neighbors: NDArray[np.int64]  # (n, k)
    similarity: NDArray[np.float32]  # (n, k)

    @staticmethod
    def of(space: FeatureSpace) -> NeighborRows:
        rows = np.unique(np.linspace(0, len(space.asked) - 1, ROWS).round().astype(np.int64))
        found = space.nearest(COLUMNS, rows)
        return NeighborRows(space.asked[rows], space.train[found.rows], found.similarity)

    def write(self, path: Path) -> None:
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **vars(self))

    @staticmethod
    def read(path: Path) -> NeighborRows:
        with ArrayFiles(path) as file:
            found = NeighborRows(*(file.read(name) for name in ("index", "neighbors", "similarity")))
        whole = found.index.dtype.kind in "iu" and found.neighbors.dtype.kind in "iu" and found.similarity.dtype.kind == "f"
        shape = (len(found.index), *found.neighbors.shape[1:2]) if found.index.ndim == 1 else ()
        if not whole or found.neighbors.ndim != 2 or not found.neighbors.shape == found.similarity.shape == shape:
            raise SoftbiasError(f"{path}: neighbors and similarity must be a row of numbers for each picture of index")
        if min(found.index.min(initial=0), found.neighbors.min(initial=0)) < 0:
            raise SoftbiasError(f"{path}: a picture has a number from 0 on, but some are negative")
        return found


def compare_neighbors(
    model: nn.Module, data: Dataset, split: Split, batches: Batches, seed: int, path: Path
) -> dict[str, Any] | None:
    """Write the neighbors of a few pictures to `path`, and return the scores of all (see `neighbor_scores`)."""
    given = (data, split.train, split.test, batches.mean, batches.std)
    space = feature_space(model, *given)
    NeighborRows.of(space).write(path)
    fresh = untrained(model, seed) if len(data.class_names) > 1 else None
    device = next(model.parameters()).device
    return neighbor_scores(space, data, None if fresh is None else feature_space(fresh.to(device), *given))


def neighbors_section(path: Path, data: Dataset | None) -> dict[str, Any] | None:
    """For the page: a row per picture, with the picture itself and its neighbors; None for a run without them."""
    if not path.is_file():
        return None
    verify_file(path)
    found = NeighborRows.read(path)
    if data is None or max(found.index.max(initial=0), found.neighbors.max(initial=0)) >= len(data):
        return {"missing": "The pictures themselves are not shown: the data set was not available when this page was written."}
    names = data.class_names if len(data.class_names) > 1 else None

    def entry(index: int, similarity: float | None = None, like: int | None = None) -> dict[str, Any]:
        label = None if names is None else names[int(data.labels[index])]
        same = None if like is None or names is None else bool(data.labels[index] == data.labels[like])
        alt = f"A picture labeled {label}" if label else "A picture"
        return {
            "picture": picture(data.images[index], SIDE),
            "label": label,
            "similarity": similarity,
            "same": same,
            "alt": alt,
        }

    rows = [
        {
            "asked": entry(int(index)),
            "nearest": [
                entry(int(each), float(value), int(index))
                for each, value in zip(near, values, strict=True)
                if np.isfinite(value)
            ],
        }
        for index, near, values in zip(found.index, found.neighbors, found.similarity, strict=True)
    ]
    return {"rows": rows, "named": names is not None, "missing": None}
