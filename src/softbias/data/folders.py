"""Pictures in folders.

    root/train/cat/1.jpg  root/val/…  root/test/…     splits as given ("valid" and "validation" are val)
    root/cat/1.jpg        root/dog/…                  no splits

What is hidden and what is known to be no picture is passed over; anything else that is left out is counted in a note.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from softbias.data.listing import SPLIT_NAMES, Listing, make_listing, natural, pictures, same_classes, some
from softbias.errors import SoftbiasError

SUFFIXES = frozenset(  # of pictures
    ".jpg .jpeg .jpe .jfif .png .webp .tif .tiff .bmp .dib .gif .heic .heif .avif .jp2 .ppm .pgm .pbm .pnm".split()  # noqa: SIM905
)
NO_PICTURES = frozenset(
    ".txt .json .csv .tsv .md .xml .yaml .yml .html .pdf .db .ini .log .py .ipynb .npy .npz .mat .zip".split()  # noqa: SIM905
)
CLUTTER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


def list_folder(root: str | Path) -> Listing:
    """root/{train,val,test}/class/*, or root/class/*; a class folder may have folders in it."""
    root = Path(root)
    try:
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise SoftbiasError(f"{root} {what}; give a folder that holds one per class, or train, val, test with those inside")
        return _list(root)
    except PermissionError as error:
        raise SoftbiasError(
            f"{error.filename} may not be read: permission denied; try chmod -R u+rX, or ask its owner"
        ) from error


def _list(root: Path) -> Listing:
    folders, loose = _entries(root)
    if not folders:
        what = f"{pictures(len(loose))}, but no class folders" if loose else "no pictures and no folders"
        raise SoftbiasError(f"{root} has {what}: sort the pictures into {root.name}/CLASS/, or list them in a CSV file")
    notes = [f"{pictures(len(loose))} directly in {root}, without a class: left out"] if loose else []
    named = {folder: SPLIT_NAMES.get(folder.name.casefold()) for folder in folders}
    train = next((folder for folder, split in named.items() if split == "train"), None)
    if all(named.values()) and train is None:
        raise SoftbiasError(f"{root} has {some([folder.name for folder in folders])}, but no folder train")
    if train is None or (not all(named.values()) and not _entries(train)[0]):  # "train" may be a class, beside "bus"
        files, classes = _classes(root, folders, notes)
        notes += _same_inside(root, folders)
        return make_listing(root, files, classes, None, notes)
    files, classes, split = [], [], []
    for folder, name in named.items():
        inside, direct = _entries(folder)
        if name is None and _walk(folder, Counter()):
            raise SoftbiasError(
                f"{root} holds the split folder {train.name!r} beside {folder.name!r}, which has pictures but is no split "
                "(train, val, test): move it away, or into the splits as a class"
            )
        if name == "train" and not inside:
            what = "pictures, but no class folders" if direct else "nothing in it"
            raise SoftbiasError(f"{folder} has {what}: sort the pictures into {folder.name}/CLASS/, or list them in a CSV file")
        if direct:
            notes.append(f"{pictures(len(direct))} directly in {folder}, without a class: left out")
        elif name is None or not inside:
            notes.append(f"the folder {folder} has no pictures: left out")
        if name and inside:
            found, names = _classes(folder, inside, notes)
            files += found
            classes += names
            split += [name] * len(found)
    same_classes(root, classes, split)
    return make_listing(root, files, classes, split, notes)


def _classes(root: Path, folders: Sequence[Path], notes: list[str]) -> tuple[list[Path], list[str]]:
    """The pictures below each class folder, and the class of each."""
    files: list[Path] = []
    classes: list[str] = []
    others: Counter[str] = Counter()
    for folder in folders:
        seen: Counter[str] = Counter()
        found = sorted(_walk(folder, seen), key=lambda file: natural(str(file)))
        unknown = {suffix: count for suffix, count in seen.items() if suffix not in NO_PICTURES}
        others.update(unknown)
        if not found and seen and not unknown:
            notes.append(f"the folder {folder} has no pictures: left out")
        elif not found:
            holds = f"it holds {some([f'{n} {suffix}' for suffix, n in unknown.items()])}" if unknown else "it is empty"
            raise SoftbiasError(f"the class folder {folder} has no pictures, {holds}: remove it, or put pictures in")
        files += found
        classes += [unicodedata.normalize("NFC", folder.name)] * len(found)
    if others:
        notes.append(
            f"{sum(others.values())} files in {root} whose suffix is not a picture's ({some(sorted(others))}): left out"
        )
    if len(set(classes)) == 1 and _entries(folders[0])[0]:
        raise SoftbiasError(f"{root}: there is only one class, {classes[0]!r}; did you mean {folders[0]}?")
    return files, classes


def _same_inside(root: Path, folders: Sequence[Path]) -> list[str]:
    """A word where the classes may stand one level deeper: every class folder holds folders alone, of the same names."""
    inside = [_entries(folder) for folder in folders]
    names = [{below.name for below in below_it} for below_it, _ in inside]
    shared = set.intersection(*names) if names else set()
    if len(shared) < 2 or any(direct for _, direct in inside):
        return []
    common = some(sorted(shared, key=natural))
    return [
        f"the classes are {some([folder.name for folder in folders])}, the folders in {root}, but each of them holds {common}: "
        "if those are the classes, put them into one folder, or list the pictures in a CSV file"
    ]


def _walk(folder: Path, others: Counter[str]) -> list[Path]:
    """All pictures below a folder; what else is there is counted by suffix. Links are followed, loops are not."""
    found, waiting, seen = [], [folder], set()
    while waiting:
        here = waiting.pop()
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        folders, files = _entries(here, others)
        waiting += folders
        found += files
    return found


def _entries(folder: Path, others: Counter[str] | None = None) -> tuple[list[Path], list[Path]]:
    """Folders and pictures in a folder, in natural order, without what is hidden."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".") and entry.name.casefold() not in CLUTTER]
        folders = [Path(entry.path) for entry in shown if entry.is_dir()]
        files = [Path(entry.path) for entry in shown if not entry.is_dir()]
    found = [file for file in files if file.suffix.lower() in SUFFIXES]
    if others is not None:
        others.update(file.suffix.lower() or "no suffix" for file in files if file.suffix.lower() not in SUFFIXES)
    return sorted(folders, key=lambda path: natural(path.name)), sorted(found, key=lambda path: natural(path.name))
