"""From what a user names to a Dataset: find and list the pictures once, then split and decode them, and note what was done.

    open_source("my_pictures").read()
    open_source("bursts", group_by=r"(burst\\d+)_").read(manifest="split.csv")

Splits. Given ones are kept. Without any, 70 % train, 10 % val and 20 % test, stratified and seeded; a `manifest` keeps
them, and is used again where it exists. With train and test only there is no val, and training takes its own part of train
for choosing. With train and val only, val becomes the test set: something must take part in no choice.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from softbias.data.arrays import is_array_folder, read_arrays
from softbias.data.cache import Progress, decode_all
from softbias.data.dataset import Dataset
from softbias.data.decode import describe_resize_mode, heif_available, resized
from softbias.data.findings import cut_groups, unassigned
from softbias.data.listing import Listing, pictures, read_listing, some
from softbias.data.named import DATASETS, load_named
from softbias.data.splits import Indices, complete_splits, splits_of
from softbias.data.tables import recall_splits, write_manifest
from softbias.errors import SoftbiasError

SIZES = (32, 64, 96, 128, 224)
MANY = 20_000  # pictures; below that, more than 128 pixels cost more time than they bring accuracy
SAMPLE = 500  # pictures whose headers are read for choosing the size


@dataclass(frozen=True)
class Source:
    """A set of pictures that was found and listed, but not decoded: see `open_source`.

    name      of the set
    listing   which pictures there are; None for arrays and named sets, whose files say it when they are read
    """

    name: str
    path: Path | None = None
    listing: Listing | None = None

    @property
    def count(self) -> int | None:
        """How many pictures there are, where they are listed."""
        return None if self.listing is None else len(self.listing)

    @cached_property
    def size(self) -> tuple[int, str] | None:
        """The side that suits the listed pictures, and the reason; headers are read for it, once."""
        return None if self.listing is None else choose_size(self.listing)

    def read(
        self,
        *,
        img_size: int | tuple[int, int] | None = None,
        resize_mode: str = "crop",
        seed: int = 0,
        skip_broken: bool = False,
        manifest: str | Path | None = None,
        data_dir: str | Path | None = None,
        download: bool = True,
        cache_dir: str | Path | None = None,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """The decoded set.

        img_size      side, or (height, width); None takes `size`, and keeps arrays and named sets as they are
        resize_mode   what happens to the aspect ratio: crop, pad or stretch
        seed          for the split, where none is given
        skip_broken   leave out files that cannot be read, and say how many; otherwise they are an error that names them
        manifest      a CSV file for the split made here; if it exists already, the split is read from it
        data_dir      where the files of a named set are, or go
        download      whether missing files of a named set may be downloaded
        """
        describe_resize_mode(resize_mode)
        if self.path is None:
            own = {"skip_broken": skip_broken, "manifest": manifest, "seed": seed, "cache_dir": cache_dir, "workers": workers}
            useless = [name for name, given in own.items() if given]
            if useless:
                raise SoftbiasError(
                    f"the named set {self.name} has its own files and splits; {', '.join(useless)} is for your own pictures"
                )
            return load_named(
                self.name, data_dir=data_dir, img_size=img_size, resize_mode=resize_mode, download=download, progress=progress
            )
        if self.listing is None:
            if manifest is not None:
                raise SoftbiasError(f"{self.path}: arrays have no file names, so a manifest cannot be used")
            return _arrays(self.path, img_size, resize_mode, seed)
        listing, notes = self.listing, list(self.listing.notes)
        if img_size is None:
            img_size, why = self.size or choose_size(listing)
            notes.append(why)
        size = _pair(img_size)
        images, kept, problems = decode_all(listing, size, resize_mode, skip_broken, workers, cache_dir, progress)
        if problems:
            kinds = some(sorted({problem.kind for problem in problems}))
            notes.append(f"{len(problems)} of {pictures(len(listing))} cannot be read ({kinds}): left out")
            listing = listing.take(kept)
        splits, made = _split(listing, seed, manifest)
        made += _require_classes(listing.name, listing.labels, listing.class_names, splits)
        return Dataset(
            listing.name,
            images,
            listing.labels,
            listing.class_names,
            splits,
            files=tuple(str(file) for file in listing.files),
            notes=(*notes, f"pictures at {size[0]} × {size[1]}, {describe_resize_mode(resize_mode)}", *made),
            split_notes=tuple(made),
        )


def open_source(source: str | Path, group_by: str | None = None) -> Source:
    """A set by name (`softbias.data.named.DATASETS`), or the user's own: a folder, a CSV file, an .npz file, a folder of
    .npy files. A folder or a CSV file is listed here, and only here.

        source = open_source("my_pictures")
        source.count, source.size               # for choices that come before decoding
        data = source.read(img_size=64)

    group_by   an expression on the files' paths, or a column of the CSV file: a group is never torn apart by a split
    """
    path = Path(source)
    if str(source) in DATASETS and not path.exists():
        if group_by:
            raise SoftbiasError(f"the named set {source} has its own files and splits; group_by is for your own pictures")
        return Source(str(source))
    if not path.exists():
        raise SoftbiasError(nothing_there(str(source), tuple(DATASETS)))
    if path.suffix.lower() in (".npz", ".npy") or is_array_folder(path):
        if group_by is not None:
            raise SoftbiasError(f"{path}: arrays have no file names, so group_by cannot be used")
        return Source(path.stem, path)
    listing = read_listing(path, group_by)
    return Source(listing.name, path, listing)


def nothing_there(source: str, sets: Sequence[str]) -> str:
    """What to say of a path that does not exist and is no set's name: what lies near, and where it was looked for."""
    path = Path(source)
    beside = sorted(str(each) for each in path.parent.iterdir()) if path.parent.is_dir() else []
    longer = [name for name in beside if Path(name).name.startswith(path.name)] if path.name else []
    nearest = [*difflib.get_close_matches(source, [*beside, *sets], n=1), *longer][:1]
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return f"there is no file or folder {source!r}{where}{hint} Sets by name: {', '.join(sorted(sets))}"


def choose_size(listing: Listing) -> tuple[int, str]:
    """The largest of 32, 64, 96, 128, 224 that half of the pictures reach with their shorter side, 128 at most below 20,000
    pictures; and a sentence that says so. Headers of 500 pictures, evenly spread, decide."""
    chosen = np.unique(np.linspace(0, len(listing) - 1, SAMPLE).round().astype(int))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        sides = [side for side in (_shorter_side(listing.files[index]) for index in chosen) if side]
    median = float(np.median(sides)) if sides else 0.0
    allowed = [size for size in SIZES if size <= 128 or len(listing) >= MANY]
    size = max([side for side in allowed if side <= median], default=SIZES[0])
    limit = f", at most 128 for fewer than {MANY:,} pictures" if size == 128 and median >= 224 else ""
    return size, f"img_size {size} chosen: the median picture's shorter side is {median:.0f} pixels{limit}"


def _shorter_side(file: Path) -> int | None:
    heif_available()  # and known to Pillow from here on
    try:
        with Image.open(file) as picture:
            return min(picture.size)
    except Exception:  # decode_all says what is wrong with it
        return None


def _split(listing: Listing, seed: int, manifest: str | Path | None) -> tuple[dict[str, Indices], list[str]]:
    """The splits of a listing and what there is to say about them."""
    if listing.split is not None:
        problems = unassigned(listing.relative(), listing.split)
        if listing.groups is not None:
            problems += cut_groups(listing.groups, listing.split)
        if problems:
            raise SoftbiasError(f"{listing.name}: {problems[0].text}: {some(problems[0].files)}")
    given = splits_of(listing.split or [])
    if manifest is not None and set(given) <= {"train"} and Path(manifest).exists():
        return recall_splits(listing, Path(manifest)), [f"the split is read from {manifest}"]
    splits, notes = complete_splits(listing.name, listing.labels, given, seed, listing.groups)
    if manifest is not None and set(given) <= {"train"}:
        notes.append(f"the split is written to {write_manifest(manifest, listing, splits)}")
    return splits, notes


def _require_classes(name: str, labels: Indices, class_names: tuple[str, ...], splits: dict[str, Indices]) -> list[str]:
    """Every class needs pictures to learn from; one that has none to be tested on is worth a note."""
    notes = []
    for split, indices in splits.items():
        without = [class_names[label] for label in sorted(set(range(len(class_names))) - set(labels[indices].tolist()))]
        if without and split == "train":
            raise SoftbiasError(
                f"{name}: there is no readable picture to learn {some(without)} from; add some, or remove the class"
            )
        if without:
            notes.append(f"{split} has no picture of {some(without)}")
    return notes


def _arrays(path: Path, img_size: int | tuple[int, int] | None, resize_mode: str, seed: int) -> Dataset:
    data = _fitted(read_arrays(path), img_size, resize_mode)
    splits, made = complete_splits(data.name, data.labels, data.splits, seed)
    return data.with_splits(splits, *made, *_require_classes(data.name, data.labels, data.class_names, splits))


def _fitted(data: Dataset, img_size: int | tuple[int, int] | None, resize_mode: str) -> Dataset:
    """Arrays at the size that was asked for."""
    size = _pair(img_size) if img_size is not None else data.img_size
    if size == data.img_size:
        return data
    images = np.stack([np.asarray(resized(Image.fromarray(image), size, resize_mode)) for image in data.images])
    before, after = (f"{height} × {width}" for height, width in (data.img_size, size))
    return replace(
        data, images=images, notes=(*data.notes, f"resized from {before} to {after}, {describe_resize_mode(resize_mode)}")
    )


def _pair(img_size: int | tuple[int, int]) -> tuple[int, int]:
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if len(size) != 2 or min(size) < 1:
        raise SoftbiasError(f"img_size is a number of pixels, or (height, width), from 1 on, but got {img_size}")
    return size
