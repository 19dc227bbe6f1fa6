"""Which pictures there are and what they show, before any of them is opened.

`list_folder` (folders.py) and `list_csv` (tables.py) make a listing; arrays have no files and become a Dataset (arrays.py).
Pictures are known by their suffix here; whether they are what they claim shows when they are decoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softbias.data.splits import group_of
from softbias.errors import SoftbiasError

TABLES = (".csv", ".tsv")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True, eq=False)
class Listing:
    """files, labels, split and groups have one entry per picture, in natural order (2 before 10).

    split    "train", "val", "test", or "" where a CSV row names none; None where nothing names any
    groups   pictures of one group must stay in one split; None where nothing was grouped
    root     what the files' paths are shown relative to
    notes    sentences for the user about what was left out
    """

    name: str
    files: tuple[Path, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    root: Path
    split: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        what = f"{self.name}: a classifier needs at least two"
        if not self.files:
            raise SoftbiasError(f"{self.name}: there are no pictures")
        if len(self.files) == 1:
            raise SoftbiasError(f"{what} pictures, but there is only one: {self.files[0]}")
        if len(self.class_names) == 1:
            raise SoftbiasError(f"{what} classes, but there is only one: {self.class_names[0]!r}")

    def __len__(self) -> int:
        return len(self.files)

    def relative(self) -> list[str]:
        """Each file's path below root, with slashes on every system."""
        return [Path(os.path.relpath(file, self.root)).as_posix() for file in self.files]

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Listing:
        """Only those pictures, in that order."""

        def those(values: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return None if values is None else tuple(values[index] for index in indices)

        files = tuple(self.files[index] for index in indices)
        return replace(self, files=files, labels=self.labels[indices], split=those(self.split), groups=those(self.groups))


def read_listing(path: str | Path, group_by: str | None = None) -> Listing:
    """The listing of a folder or a CSV file. group_by: a column of the CSV file, or else an expression, see `group_of`."""
    from softbias.data.folders import list_folder
    from softbias.data.tables import list_csv

    path = Path(path)
    listing = list_csv(path, group_by) if path.suffix.lower() in TABLES else list_folder(path)
    if group_by is None or listing.groups is not None:
        return listing
    return replace(listing, groups=group_of(listing.relative(), group_by))


def make_listing(
    source: Path, files: Sequence[Path], classes: Sequence[str], split: Sequence[str] | None, notes: Sequence[str]
) -> Listing:
    """A listing from the name of each picture's class; classes are numbered in natural order."""
    class_names = sorted(set(classes), key=natural)
    number = {name: index for index, name in enumerate(class_names)}
    folder = source.is_dir()
    return Listing(
        name=source.resolve().name if folder else source.stem,
        files=tuple(files),
        labels=np.array([number[name] for name in classes], np.int64),
        class_names=tuple(class_names),
        root=source if folder else source.parent,
        split=None if split is None else tuple(split),
        notes=tuple(notes),
    )


def natural(text: str) -> tuple[list[str | int], str]:
    """A sort key by which 2 comes before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text.casefold())], text


def same_classes(source: Path, classes: Sequence[str], split: Sequence[str]) -> None:
    """Refuse splits whose classes are not those of train, and say which."""
    have: dict[str, set[str]] = {}
    for label, name in zip(classes, split, strict=True):
        have.setdefault(name, set()).add(label)
    train = have.get("train", set())
    for name in ("val", "test"):
        only, missing = have.get(name, train) - train, train - have.get(name, train)
        if train and (only or missing):
            parts = [
                f"{some(sorted(names, key=natural))} {where}"
                for names, where in ((only, f"only in {name}"), (missing, f"not in {name}"))
                if names
            ]
            raise SoftbiasError(
                f"{source}: train and {name} have different classes: {'; '.join(parts)}. Every split needs all of them"
            )


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def pictures(count: int) -> str:
    return "1 picture" if count == 1 else f"{count} pictures"
