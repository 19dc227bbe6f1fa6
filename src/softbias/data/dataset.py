"""A decoded image set: what everything after reading works with.

Shapes: N pictures of S_h × S_w pixels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from softbias.errors import SoftbiasError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Dataset:
    """Pictures, labels and who belongs to which split.

    images        (N, S_h, S_w, 3) uint8, in memory or a memory map
    labels        (N,) int64, counted from 0
    class_names   one per label
    splits        "train", "val", "test" -> indices into images; disjoint. "val" may be absent: training then takes a part
                  of "train" for choosing. "test" takes part in no choice
    files         where each picture came from, if it came from a file
    notes         sentences about what was done on the way (split made here, aspect ratio, skipped files), to be shown
    split_notes   those of them that are about the splits, and mean nothing to whoever takes all pictures
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    splits: dict[str, NDArray[np.int64]]
    files: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    split_notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        count = len(self.labels)
        if self.images.shape[0] != count or self.images.ndim != 4 or self.images.shape[-1] != 3:
            raise SoftbiasError(
                f"{self.name}: {count} labels need images of shape ({count}, height, width, 3), got {self.images.shape}"
            )
        if count and not (self.labels.min() >= 0 and self.labels.max() < len(self.class_names)):
            raise SoftbiasError(
                f"{self.name}: labels must lie between 0 and {len(self.class_names) - 1}, "
                f"but go from {self.labels.min()} to {self.labels.max()}"
            )
        for split in self.splits:
            if split not in SPLITS:
                raise SoftbiasError(f"{self.name}: splits are {', '.join(SPLITS)}, but got {split!r}")
        together = np.concatenate([*self.splits.values(), np.empty(0, np.int64)])
        if len(np.unique(together)) != len(together):
            raise SoftbiasError(f"{self.name}: a picture stands in two splits, or twice in one")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def img_size(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]

    def with_splits(self, splits: dict[str, NDArray[np.int64]], *notes: str) -> Dataset:
        return replace(self, splits=splits, notes=(*self.notes, *notes), split_notes=(*self.split_notes, *notes))

    def fingerprint(self) -> str:
        """A hash of pictures, labels, names and splits: the same content has the same fingerprint wherever it lies."""
        digest = hashlib.sha256()
        for start in range(0, len(self), 4096):
            digest.update(self.images[start : start + 4096].tobytes())
        digest.update(self.labels.tobytes())
        digest.update("\0".join(self.class_names).encode())
        for split in SPLITS:
            digest.update(self.splits.get(split, np.empty(0, np.int64)).tobytes())
        return digest.hexdigest()[:16]
