"""Ways to have a named set, beside packs: torchvision's files, folders of pictures, a download, or an error that helps.

Each way is a function of a `DatasetRequest` that returns the Dataset, or None where its files are absent, so that a loader
reads `one(request, …) or another(request, …) or missing(request, …)`. Damaged files are an error at once: nobody should
train on another copy without knowing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from softbias.data.cache import decode_all, may_write
from softbias.data.dataset import Dataset
from softbias.data.listing import Listing, list_classes, list_folder, make_listing, refuse_unlearned_classes, some
from softbias.data.packs import DatasetRequest, resized_set
from softbias.data.splits import splits_of
from softbias.environment import is_on, why_unreachable
from softbias.errors import SoftbiasError, in_one_line
from softbias.notes import Note

Result = TypeVar("Result")

PROBE_SECONDS = 5.0  # a server that has not answered by then counts as unreachable
VAL_IS_TEST = Note("official-val-is-test")
FLOWERS_URL = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/102flowers.tgz"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"


def cifar_batches(request: DatasetRequest, kind: str, folder: str, archive: str) -> Dataset | None:
    """The official CIFAR files for Python."""
    root = holder(request, folder, archive)
    if root is None and not reachable(request, CIFAR_URL + archive):
        return None
    from torchvision import datasets

    # These files are pickles. torchvision compares each one's MD5 with the official one before it opens it.
    make = getattr(datasets, kind)
    fetch = root is None or (root / archive).is_file()  # an archive that exists is only unpacked
    root = root or request.root
    train, test = with_torchvision(request, lambda: [make(root, train=part, download=fetch) for part in (True, False)])
    labels = np.array([*train.targets, *test.targets], np.int64)
    splits = {"train": np.arange(len(train.data)), "test": np.arange(len(train.data), len(labels))}
    data = Dataset(request.name, np.concatenate([train.data, test.data]), labels, tuple(train.classes), splits)
    return resized_set(data, request.img_size, request.resize_mode, sorted((root / folder).iterdir()))


def flower_files(request: DatasetRequest) -> Dataset | None:
    """The official Flowers-102 files."""
    root = holder(request, "flowers-102/jpg", "flowers-102/102flowers.tgz")
    if root is None and not reachable(request, FLOWERS_URL):
        return None
    from torchvision.datasets import Flowers102

    fetch = root is None or (root / "flowers-102" / "102flowers.tgz").is_file()
    root = root or request.root
    files, labels, split = [], [], []
    for name in ("train", "val", "test"):
        part = with_torchvision(request, lambda name=name: Flowers102(root, name, download=fetch, loader=Path))  # type: ignore[misc]
        for index in range(len(part)):
            file, label = part[index]
            files.append(file)
            labels.append(label)
            split.append(name)
    listing = Listing(request.name, tuple(files), np.array(labels, np.int64), tuple(Flowers102.classes), root, tuple(split))
    return decoded(request, listing, 96)


def class_folders(
    request: DatasetRequest,
    names: Sequence[str],
    size: int,
    known: Mapping[str, str] | None = None,
    *,
    part: bool = False,
) -> Dataset | None:
    """train/ and val/ with one folder per class, named by its WordNet id.

    known   the ids that are needed, and their names
    part    whether the folders may have other classes as well, which are left out
    """
    for folder in (*(request.root / name for name in names), request.root):
        parts = {"train": folder / "train", "test": folder / "val"}
        if not all(each.is_dir() for each in parts.values()):
            continue
        wnids = {path.name for path in parts["train"].iterdir() if re.fullmatch(r"n\d{8}", path.name)}
        if not wnids & set(known or wnids):
            continue  # another set
        wrong_ids = set(known or ()) - wnids if part else wnids ^ set(known or wnids)
        if wrong_ids:
            wrong = some(sorted(wrong_ids))
            raise SoftbiasError(
                f"{parts['train']} must have one folder per class of {request.name}; missing or too many: {wrong}"
            )
        if not any(path.is_dir() for path in parts["test"].iterdir()):
            raise SoftbiasError(f"the pictures in {parts['test']} are in no class folders: sort them into n01440764/, …")
        lists = {split: list_classes(root, known) if known and part else list_folder(root) for split, root in parts.items()}
        return decoded(request, joined(folder, lists), size, VAL_IS_TEST, known=known)
    return None


def joined(root: Path, lists: Mapping[str, Listing]) -> Listing:
    """Splits that were listed one by one, as one listing."""
    files = [file for listing in lists.values() for file in listing.files]
    classes = [listing.class_names[label] for listing in lists.values() for label in listing.labels]
    split = [name for name, listing in lists.items() for _ in listing.files]
    refuse_unlearned_classes(root, classes, split)
    return make_listing(root, files, classes, split, [note for listing in lists.values() for note in listing.notes])


def decoded(
    request: DatasetRequest, listing: Listing, size: int, *notes: Note, known: Mapping[str, str] | None = None
) -> Dataset:
    """The set of the listed pictures. size: its usual side."""
    height, width = request.size(size)
    images, *_ = decode_all(listing, (height, width), request.resize_mode, progress=request.progress)
    at = Note("pictures-at", {"height": height, "width": width, "resize_mode": request.resize_mode})
    files = tuple(str(file) for file in listing.files)
    names, splits = class_names(listing, known), splits_of(listing.split or ())
    return Dataset(request.name, images, listing.labels, names, splits, files, (*listing.notes, *notes, at))


def class_names(listing: Listing, known: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Words for WordNet ids: from `known`, from words.txt beside the folders, or from timm; the first of several synonyms."""
    wnids = listing.class_names
    if not all(re.fullmatch(r"n\d{8}", wnid) for wnid in wnids):
        return wnids
    words = listing.root / "words.txt"
    if known is None and words.is_file():
        lines = words.read_text(encoding="utf-8", errors="replace").splitlines()
        known = dict(line.split("\t", 1) for line in lines if "\t" in line)
    elif known is None:
        from timm.data import ImageNetInfo

        info = ImageNetInfo("imagenet-1k")
        known = dict(zip(info.label_names(), info.label_descriptions(), strict=True))
    names = [known.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    often = Counter(names)  # ImageNet has two cranes and two maillots
    return tuple(name if often[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))


def holder(request: DatasetRequest, *paths: str) -> Path | None:
    """The folder that contains one of these paths: the data folder, the set's own folder in it, or its parent."""
    folders = [request.root, request.root / request.name]
    if request.root.name == Path(paths[0]).parts[0]:  # the data folder is the set's own
        folders.append(request.root.parent)
    return next((folder for folder in folders if any((folder / path).exists() for path in paths)), None)


def with_torchvision(request: DatasetRequest, make: Callable[[], Result]) -> Result:
    try:
        return make()
    except (RuntimeError, OSError, EOFError, ValueError) as error:  # damaged, incomplete, unwritable, connection lost
        raise SoftbiasError(
            f"{request.name}: torchvision cannot read or download its files in {request.root} "
            f"({in_one_line(error) or type(error).__name__}); "
            "remove incomplete files and put the whole set there, or name another folder by --data-dir or SOFTBIAS_DATA"
        ) from error


def reachable(request: DatasetRequest, url: str) -> bool:
    """Whether a download can start; if not, `tried` gets the reason. Never waits longer than PROBE_SECONDS."""
    if not request.download:
        request.tried.append("downloading was switched off")
        return False
    if not may_write():
        request.tried.append("a dry run downloads nothing")
        return False
    if is_on("SOFTBIAS_OFFLINE"):
        request.tried.append("downloading was switched off by SOFTBIAS_OFFLINE")
        return False
    reason = why_unreachable(url, PROBE_SECONDS)
    if reason is not None:
        request.tried.append(f"downloading {url} was tried: {reason}")
    return reason is None


class MissingDataError(SoftbiasError):
    """A named data set is neither on this machine nor could it be fetched."""


def missing(request: DatasetRequest, *ways: str) -> NoReturn:
    """Raise the error that says which files to put where."""
    listed = "; or ".join(ways)
    tried = f" ({'; '.join(request.tried)})" if request.tried else ""
    raise MissingDataError(
        f"{request.name} is not in {request.root}{tried}. Put there: {listed}. "
        "Or name the folder that has them by --data-dir or the environment variable SOFTBIAS_DATA"
    )
