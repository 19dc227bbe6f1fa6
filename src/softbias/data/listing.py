"""The pictures of a set and their classes, before any of them is opened.

    root/train/cat/1.jpg  root/val/…  root/test/…     splits as given ("valid" and "validation" are val)
    root/cat/1.jpg        root/dog/…                  no splits

`list_folder` lists folders, `list_unlabeled` those without classes, `tables.list_csv` a CSV file; arrays have no files and
become a Dataset at once (arrays.py). Files that are known to be no pictures are passed over; a note counts any other file that
is left out, and what is no file.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softbias.data.folders import FolderWalk, natural
from softbias.errors import NoClassesError, SoftbiasError
from softbias.files import escaped
from softbias.notes import Note

OTHER_SUFFIXES = frozenset(
    ".txt .json .csv .tsv .md .xml .yaml .yml .html .pdf .db .ini .log .py .ipynb .npy .npz .mat .zip".split()  # noqa: SIM905
)
SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Listing:
    """files, labels, split and groups have one entry per picture, in natural order (2 before 10).

    split    "train", "val", "test", or "" where a CSV row names none; None where nothing names any
    groups   pictures of one group must stay in one split; None where nothing was grouped
    root     the folder that paths are shown relative to
    notes    about files that were left out
    unlabeled   the pictures have no classes: all of them train, and they have one name
    """

    name: str
    files: tuple[Path, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    root: Path
    split: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    notes: tuple[Note, ...] = field(default=())
    unlabeled: bool = False

    def __post_init__(self) -> None:
        needed = f"{self.name}: a classifier needs at least two"
        if not self.files:
            raise SoftbiasError(f"{self.name}: there are no pictures")
        if len(self.files) == 1:
            raise SoftbiasError(f"{needed} pictures, but there is only one: {self.files[0]}")
        if len(self.class_names) == 1 and not self.unlabeled:
            raise NoClassesError(f"{needed} classes, but there is only one: {self.class_names[0]!r}")

    def __len__(self) -> int:
        return len(self.files)

    def relative(self) -> list[str]:
        """Each file's path below root, with slashes on every system."""
        return [Path(os.path.relpath(file, self.root)).as_posix() for file in self.files]

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Listing:
        """The pictures at these indices, in that order."""

        def chosen(values: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return None if values is None else tuple(values[index] for index in indices)

        files = tuple(self.files[index] for index in indices)
        return replace(self, files=files, labels=self.labels[indices], split=chosen(self.split), groups=chosen(self.groups))


def make_listing(
    source: Path, files: Sequence[Path], classes: Sequence[str], split: Sequence[str] | None, notes: Sequence[Note]
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


def list_folder(root: str | Path) -> Listing:
    """root/{train,val,test}/class/*, or root/class/*; a class folder may contain folders."""
    root = Path(root)
    try:
        if not root.is_dir():
            problem = "is not a folder" if root.exists() else "does not exist"
            raise SoftbiasError(
                f"{root} {problem}; give a folder that holds one per class, or train, val, test with those inside"
            )
        walk = FolderWalk(root)
        listing = _list(root, walk)
        return replace(listing, notes=(*listing.notes, *walk.notes()))
    except PermissionError as error:
        raise SoftbiasError(
            f"{error.filename} may not be read: permission denied; try chmod -R u+rX, or ask its owner"
        ) from error


def list_classes(root: Path, class_names: Iterable[str]) -> Listing:
    """The pictures in some of the class folders of root, which must exist."""
    walk = FolderWalk(root)
    found = {name: walk.below(root / name, Counter()) for name in class_names}
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise SoftbiasError(f"{root} has no pictures in {some(empty)}")
    classes = [name for name, files in found.items() for _ in files]
    return make_listing(root, [file for files in found.values() for file in files], classes, None, walk.notes())


def list_unlabeled(root: str | Path) -> Listing:
    """All pictures below a folder, whatever folders they are in, for learning without labels."""
    root = Path(root)
    walk = FolderWalk(root)
    others: Counter[str] = Counter()
    files = walk.below(root, others)
    unknown = {suffix: count for suffix, count in others.items() if suffix not in OTHER_SUFFIXES}
    notes = [Note("unlabeled", {"count": len(files), "folder": str(root)}), *walk.notes()]
    if unknown:
        notes.append(Note("other-files", {"count": sum(unknown.values()), "folder": str(root), "suffixes": sorted(unknown)}))
    labels = np.zeros(len(files), np.int64)
    name = root.resolve().name
    return Listing(name, tuple(files), labels, ("picture",), root, notes=tuple(notes), unlabeled=True)


def _list(root: Path, walk: FolderWalk) -> Listing:
    folders, loose = walk.entries(root)
    if not folders:
        found = f"{counted_images(len(loose))}, but no class folders" if loose else "no pictures and no folders"
        raise NoClassesError(f"{root} has {found}: sort the pictures into {root.name}/CLASS/, or list them in a CSV file")
    notes = [_left_out(root, loose)] if loose else []
    named = {folder: SPLIT_NAMES.get(folder.name.casefold()) for folder in folders}
    train = next((folder for folder, split in named.items() if split == "train"), None)
    if all(named.values()) and train is None:
        raise SoftbiasError(f"{root} has {some([folder.name for folder in folders])}, but no folder train")
    if train is None or (not all(named.values()) and not walk.entries(train)[0]):  # "train" may be a class, beside "bus"
        files, classes = _classes(root, folders, walk, notes)
        notes += _same_inside(root, folders, walk)
        return make_listing(root, files, classes, None, notes)
    files, classes, split = [], [], []
    for folder, name in named.items():
        inside, direct = walk.entries(folder)
        if name is None and walk.below(folder):
            raise SoftbiasError(
                f"{root} holds the split folder {train.name!r} beside {folder.name!r}, which has pictures but is no split "
                "(train, val, test): move it away, or into the splits as a class"
            )
        if name == "train" and not inside:
            found = "pictures, but no class folders" if direct else "nothing in it"
            raise NoClassesError(
                f"{folder} has {found}: sort the pictures into {folder.name}/CLASS/, or list them in a CSV file"
            )
        if direct:
            notes.append(_left_out(folder, direct))
        elif name is None or not inside:
            notes.append(Note("empty-folder", {"folder": str(folder)}))
        if name and inside:
            found_files, names = _classes(folder, inside, walk, notes, may_be_empty=name != "train")
            files += found_files
            classes += names
            split += [name] * len(found_files)
    refuse_unlearned_classes(root, classes, split)
    return make_listing(root, files, classes, split, notes)


def _left_out(folder: Path, files: Sequence[Path]) -> Note:
    return Note("pictures-without-class", {"count": len(files), "folder": str(folder)})


def _classes(
    root: Path, folders: Sequence[Path], walk: FolderWalk, notes: list[Note], may_be_empty: bool = False
) -> tuple[list[Path], list[str]]:
    """The pictures below each class folder, and the class of each. may_be_empty: val and test may lack a class."""
    files: list[Path] = []
    classes: list[str] = []
    others: Counter[str] = Counter()
    for folder in folders:
        seen: Counter[str] = Counter()
        found = walk.below(folder, seen)
        unknown = {suffix: count for suffix, count in seen.items() if suffix not in OTHER_SUFFIXES}
        others.update(unknown)
        if not found and not unknown and (seen or may_be_empty):
            notes.append(Note("empty-folder", {"folder": str(folder)}))
        elif not found:
            holds = f"it holds {some([f'{n} {suffix}' for suffix, n in unknown.items()])}" if unknown else "it is empty"
            raise SoftbiasError(f"the class folder {folder} has no pictures, {holds}: remove it, or put pictures in")
        files += found
        classes += [escaped(unicodedata.normalize("NFC", folder.name))] * len(found)
    if others:
        notes.append(Note("other-files", {"count": others.total(), "folder": str(root), "suffixes": sorted(others)}))
    if len(set(classes)) == 1 and not may_be_empty and walk.entries(folders[0])[0]:
        raise NoClassesError(f"{root}: there is only one class, {classes[0]!r}; did you mean {folders[0]}?")
    return files, classes


def _same_inside(root: Path, folders: Sequence[Path], walk: FolderWalk) -> list[Note]:
    """A note where the classes may be one level deeper: every class folder holds folders alone, of the same names."""
    inside = [walk.entries(folder) for folder in folders]
    names = [{below.name for below in below_it} for below_it, _ in inside]
    shared = set.intersection(*names) if names else set()
    if len(shared) < 2 or any(direct for _, direct in inside):
        return []
    classes = [folder.name for folder in folders]
    return [Note("classes-one-level-deeper", {"folder": str(root), "classes": classes, "inside": sorted(shared, key=natural)})]


def refuse_unlearned_classes(source: Path, classes: Sequence[str], split: Sequence[str]) -> None:
    """Refuse classes that are only in val or test, by name. Those that val or test lack are noted (`splits.require_usable`)."""
    have: dict[str, set[str]] = {}
    for label, name in zip(classes, split, strict=True):
        have.setdefault(name, set()).add(label)
    for name in ("val", "test") if "train" in have else ():
        only = sorted(have.get(name, set()) - have["train"], key=natural)
        if only:
            raise SoftbiasError(
                f"{source}: {len(only)} of the classes of {name} have no picture in train to learn from: "
                f"{some(only)}; add some to train, or take the class out of {name}"
            )


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted_images(count: int) -> str:
    """
    >>> counted_images(1), counted_images(2)
    ('1 picture', '2 pictures')
    """
    return "1 picture" if count == 1 else f"{count} pictures"
