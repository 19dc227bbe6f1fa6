"""Ways to have a named set: a pack, arrays, torchvision's files, folders of pictures, a download, or an error that helps.

Each way is a function of a `Request` that returns the Dataset, or None where its files are not there, so that a loader
reads `one(ask, …) or another(ask, …) or missing(ask, …)`. Files that are there but damaged are an error at once: nobody
should train on another copy without knowing.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from softbias.data.arrays import read_arrays
from softbias.data.cache import Progress, decode_all
from softbias.data.dataset import Dataset
from softbias.data.decode import describe_resize_mode
from softbias.data.folders import list_folder
from softbias.data.listing import Listing, make_listing, same_classes, some
from softbias.data.packs import read_npz_pack, sized
from softbias.data.splits import splits_of
from softbias.errors import SoftbiasError

Result = TypeVar("Result")

PROBE_SECONDS = 5.0  # how long a server may take to answer before we give up on downloading
VAL_IS_TEST = "the official validation pictures serve as test: there is no official test split with labels"
ARRAY_FILES = ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy")
FLOWERS_URL = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/102flowers.tgz"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Request:
    """What was asked for. `tried` collects why nothing was downloaded, for the error at the end."""

    name: str
    root: Path
    img_size: tuple[int, int] | None = None
    resize_mode: str = "crop"
    download: bool = True
    progress: Progress | None = None
    tried: list[str] = field(default_factory=list)

    def size(self, default: int) -> tuple[int, int]:
        return self.img_size or (default, default)

    def folder_with(self, files: Sequence[str], *names: str) -> Path | None:
        """The first folder that has all of these: root/name for each name, or root itself, which may be the set's own."""
        places = (*(self.root / name for name in names), self.root)
        return next((place for place in places if all((place / file).exists() for file in files)), None)


def npz_pack(ask: Request, file: str, splits: Sequence[str], *notes: str) -> Dataset | None:
    """A pack of 96 × 96 pictures."""
    path = ask.root / file
    if not path.is_file():
        return None
    data = read_npz_pack(path, splits, ask.size(96), ask.resize_mode, ask.name)
    return replace(data, notes=(*notes, *data.notes))


def array_folder(ask: Request, folder: str, class_names: Sequence[str]) -> Dataset | None:
    """.npy files of a set with these classes; a classes.json must agree, and may be missing in the set's own folder."""
    place = ask.folder_with(ARRAY_FILES, folder)
    if place is None:
        return None
    named = (place / "classes.json").is_file()
    if not named and place == ask.root:
        return None  # nothing says whose arrays these are
    data = read_arrays(place)
    if not named and len(data.class_names) == len(class_names):
        data = replace(data, class_names=tuple(class_names))
    if data.class_names != tuple(class_names):
        if place == ask.root:
            return None  # arrays of another set
        found = f"its classes.json lists {some(data.class_names)}" if named else f"it has {len(data.class_names)} classes"
        raise SoftbiasError(f"{place} is not {ask.name}: {found}")
    sources = [place / "train_images.npy", place / "test_images.npy"]
    return sized(replace(data, name=ask.name), ask.img_size, ask.resize_mode, sources)


def cifar_batches(ask: Request, kind: str, folder: str, archive: str) -> Dataset | None:
    """The official CIFAR files for Python."""
    root = holder(ask, folder, archive)
    if root is None and not reachable(ask, CIFAR_URL + archive):
        return None
    from torchvision import datasets

    # These files are pickles. torchvision compares each one's MD5 with the official one before it opens it.
    make = getattr(datasets, kind)
    fetch = root is None or (root / archive).is_file()  # where the archive is there, this only unpacks it
    root = root or ask.root
    train, test = with_torchvision(ask, lambda: [make(root, train=part, download=fetch) for part in (True, False)])
    count = len(train.data), len(test.data)
    labels = np.array([*train.targets, *test.targets], np.int64)
    splits = {"train": np.arange(count[0]), "test": np.arange(count[0], sum(count))}
    data = Dataset(ask.name, np.concatenate([train.data, test.data]), labels, tuple(train.classes), splits)
    return sized(data, ask.img_size, ask.resize_mode, sorted((root / folder).iterdir()))


def flower_files(ask: Request) -> Dataset | None:
    """The official Flowers-102 files."""
    root = holder(ask, "flowers-102/jpg", "flowers-102/102flowers.tgz")
    if root is None and not reachable(ask, FLOWERS_URL):
        return None
    from torchvision.datasets import Flowers102

    fetch = root is None or (root / "flowers-102" / "102flowers.tgz").is_file()
    root = root or ask.root
    files, labels, split = [], [], []
    for name in ("train", "val", "test"):
        part = with_torchvision(ask, lambda name=name: Flowers102(root, name, download=fetch, loader=Path))  # type: ignore[misc]
        for index in range(len(part)):
            file, label = part[index]
            files.append(file)
            labels.append(label)
            split.append(name)
    listing = Listing(ask.name, tuple(files), np.array(labels, np.int64), tuple(Flowers102.classes), root, tuple(split))
    return decoded(ask, listing, 96)


def class_folders(ask: Request, names: Sequence[str], size: int, known: Mapping[str, str] | None = None) -> Dataset | None:
    """train/ and val/ with a folder a class, named by its WordNet id. known: the ids there must be, and their names."""
    for place in (*(ask.root / name for name in names), ask.root):
        parts = {"train": place / "train", "test": place / "val"}
        if not all(part.is_dir() for part in parts.values()):
            continue
        wnids = {path.name for path in parts["train"].iterdir() if re.fullmatch(r"n\d{8}", path.name)}
        if not wnids & set(known or wnids):
            continue  # another set
        if known and wnids != set(known):
            wrong = some(sorted(wnids ^ set(known)))
            raise SoftbiasError(f"{parts['train']} must have one folder a class of {ask.name}; missing or too many: {wrong}")
        if not any(path.is_dir() for path in parts["test"].iterdir()):
            raise SoftbiasError(f"the pictures in {parts['test']} lie in no class folders: sort them into n01440764/, …")
        lists = {split: list_folder(part) for split, part in parts.items()}
        return decoded(ask, joined(place, lists), size, VAL_IS_TEST, known=known)
    return None


def joined(root: Path, lists: Mapping[str, Listing]) -> Listing:
    """Splits that were listed one by one, as one listing."""
    files = [file for listing in lists.values() for file in listing.files]
    classes = [listing.class_names[label] for listing in lists.values() for label in listing.labels]
    split = [name for name, listing in lists.items() for _ in listing.files]
    same_classes(root, classes, split)
    return make_listing(root, files, classes, split, [note for listing in lists.values() for note in listing.notes])


def decoded(ask: Request, listing: Listing, size: int, *notes: str, known: Mapping[str, str] | None = None) -> Dataset:
    """The listed pictures, by way of the cache."""
    height, width = ask.size(size)
    images, _, _ = decode_all(listing, (height, width), ask.resize_mode, progress=ask.progress)
    return Dataset(
        ask.name,
        images,
        listing.labels,
        class_names(listing, known),
        splits_of(listing.split or ()),
        files=tuple(str(file) for file in listing.files),
        notes=(*listing.notes, *notes, f"pictures at {height} × {width}, {describe_resize_mode(ask.resize_mode)}"),
    )


def class_names(listing: Listing, known: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What WordNet ids are called: known, or as words.txt beside them says, or as timm knows; the first of several."""
    wnids = listing.class_names
    if not all(re.fullmatch(r"n\d{8}", wnid) for wnid in wnids):
        return wnids
    words = listing.root / "words.txt"
    if known is None and words.is_file():
        lines = words.read_text(encoding="utf-8").splitlines()
        known = dict(line.split("\t", 1) for line in lines if "\t" in line)
    elif known is None:
        from timm.data import ImageNetInfo

        info = ImageNetInfo("imagenet-1k")
        known = dict(zip(info.label_names(), info.label_descriptions(), strict=True))
    names = [known.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    often = Counter(names)  # ImageNet has two cranes and two maillots
    return tuple(name if often[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))


def holder(ask: Request, *paths: str) -> Path | None:
    """The folder below which one of these lies: the data folder, or the set's own in it; or the data folder is in it."""
    places = [ask.root, ask.root / ask.name]
    if ask.root.name == Path(paths[0]).parts[0]:
        places.append(ask.root.parent)
    return next((place for place in places if any((place / path).exists() for path in paths)), None)


def with_torchvision(ask: Request, make: Callable[[], Result]) -> Result:
    try:
        return make()
    except (RuntimeError, OSError, EOFError, ValueError) as error:  # damaged, incomplete, unwritable, connection lost
        raise SoftbiasError(
            f"{ask.name}: torchvision cannot read or download its files in {ask.root} ({error or type(error).__name__}); "
            "remove what is incomplete and put the whole set there, or name another folder by --data-dir or SOFTBIAS_DATA"
        ) from error


def reachable(ask: Request, url: str) -> bool:
    """Whether a download can start; if not, `tried` says why. Never waits longer than PROBE_SECONDS."""
    if not ask.download:
        ask.tried.append("downloading was switched off")
        return False
    answer: list[str] = []

    def probe() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
                answer.append("")
        except Exception as error:  # whatever it is, there is no download
            answer.append(str(getattr(error, "reason", "")) or str(error) or type(error).__name__)

    thread = threading.Thread(target=probe, daemon=True)  # a thread, because looking up a host's name knows no timeout
    thread.start()
    thread.join(PROBE_SECONDS)
    reason = answer[0] if answer else f"no answer in {PROBE_SECONDS:.0f} s"
    if reason:
        ask.tried.append(f"downloading {url} was tried: {reason}")
    return not reason


class MissingDataError(SoftbiasError):
    """A named data set is neither on this machine nor could it be fetched."""


def missing(ask: Request, *ways: str) -> NoReturn:
    """The error that says what to put where."""
    listed = "; or ".join(ways)
    tried = f" ({'; '.join(ask.tried)})" if ask.tried else ""
    raise MissingDataError(
        f"{ask.name} is not in {ask.root}{tried}. Put there: {listed}. "
        "Or name the folder that has them by --data-dir or the environment variable SOFTBIAS_DATA"
    )
