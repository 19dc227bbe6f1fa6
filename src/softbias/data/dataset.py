"""A decoded image set, and the contract that every set keeps.

Shapes: N pictures of S_h × S_w pixels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from softbias.bounds import ValueRange
from softbias.data.splits import SPLIT_NOTES, SPLITS
from softbias.errors import SoftbiasError
from softbias.notes import Note


@dataclass(frozen=True)
class WholeImages:
    """Pictures from which crops for training are cut: each one whole, and stretched or squashed to a square.

    images    (N, L, L, 3) uint8
    aspects   (N,) width / height of each picture itself, so that a crop gets the aspect ratio that it has there
    """

    images: NDArray[np.uint8]
    aspects: NDArray[np.float32]


@dataclass(frozen=True)
class Dataset:
    """Pictures, labels and splits.

    images        (N, S_h, S_w, 3) uint8, in memory or a memory map
    labels        (N,) int64, counted from 0
    class_names   one per label
    splits        "train", "val", "test" -> indices into images; disjoint. "val" may be absent: training then takes a part
                  of "train" for choosing. "test" takes part in no choice
    files         the file of each picture, if it came from a file
    groups        a number per picture that those share which stay together in splits that are made; None if no two do
    whole         the same pictures whole, for crops; None: crops are cut from `images`
    small         the same pictures before they were enlarged, (N, s_h, s_w, 3); None where they were not, or came from files
    value_range   what was black and white before they became bytes; None where they had eight bits
    notes         what was done on the way (split made here, aspect ratio, skipped files), to be shown to the user
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    splits: dict[str, NDArray[np.int64]]
    files: tuple[str, ...] | None = None
    notes: tuple[Note, ...] = field(default=())
    groups: NDArray[np.int64] | None = None
    whole: WholeImages | None = None
    small: NDArray[np.uint8] | None = None
    value_range: ValueRange | None = None

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
        if self.groups is not None and self.groups.shape != (count,):
            raise SoftbiasError(f"{self.name}: groups must be one number per picture, ({count},), got {self.groups.shape}")
        if self.whole is not None and not len(self.whole.images) == len(self.whole.aspects) == count:
            raise SoftbiasError(f"{self.name}: there must be {count} whole pictures, but there are {len(self.whole.images)}")
        if self.small is not None and len(self.small) != count:
            raise SoftbiasError(f"{self.name}: there must be {count} small pictures, but there are {len(self.small)}")
        together = np.concatenate([*self.splits.values(), np.empty(0, np.int64)])
        if len(np.unique(together)) != len(together):
            raise SoftbiasError(f"{self.name}: a picture is in two splits, or twice in one")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def img_size(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]

    @property
    def notes_without_splits(self) -> tuple[Note, ...]:
        """The notes that hold for all pictures together, whatever their split."""
        return tuple(note for note in self.notes if note.kind not in SPLIT_NOTES)

    def with_notes(self, *notes: Note) -> Dataset:
        return replace(self, notes=(*self.notes, *notes))

    def as_small(self) -> Dataset:
        """The set with its pictures as they were before they were enlarged."""
        return self if self.small is None else replace(self, images=self.small, small=None)

    def with_splits(self, splits: dict[str, NDArray[np.int64]]) -> Dataset:
        return replace(self, splits=splits)

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


def check_dataset(data: Dataset) -> None:
    """The contract of a data set: a SoftbiasError says what is wrong. Run it on a set that you register.

    Constructing a Dataset checks shapes, the range of labels and disjoint splits. In addition: bytes and 64-bit labels,
    training and test pictures, every class among the training pictures, class names that differ, indices that exist, one
    file per picture, and the same content each time it is read.
    """
    replace(data)  # the checks of the constructor

    def require(right: bool, rule: str) -> None:
        if not right:
            raise SoftbiasError(f"{data.name}: {rule}")

    require(data.images.dtype == np.uint8, f"images must be uint8, but are {data.images.dtype}")
    require(data.labels.dtype == np.int64, f"labels must be int64, but are {data.labels.dtype}")
    require(min(data.images.shape) > 0, f"images must not be empty, but have the shape {data.images.shape}")
    for split in ("train", "test"):
        require(len(data.splits.get(split, ())) > 0, f"there must be pictures for {split}")
    for split, indices in data.splits.items():
        require(indices.dtype == np.int64, f"indices of {split} must be int64, but are {indices.dtype}")
        inside = not len(indices) or (indices.min() >= 0 and indices.max() < len(data))
        require(bool(inside), f"indices of {split} must lie between 0 and {len(data) - 1}")
    names = data.class_names
    require(len(set(names)) == len(names) and all(names), "class names must differ and must not be empty")
    unseen = sorted(set(range(len(names))) - set(data.labels[data.splits["train"]].tolist()))
    require(not unseen, f"train has no picture of {', '.join(names[label] for label in unseen[:5])}")
    require(data.files is None or len(data.files) == len(data), "there must be one file per picture")
    require(data.fingerprint() == data.fingerprint(), "the pictures change from one reading to the next")
