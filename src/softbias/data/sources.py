"""Somebody's own pictures to a Dataset: list, split, decode, and say in notes what was done.

    read_own("my_pictures")                                  a folder, a CSV file, an .npz file, a folder of .npy files
    read_own("bursts", group_by=r"(burst\\d+)_", manifest="split.csv")

Splits. Given ones are kept. Without any, 70 % train, 10 % val and 20 % test, stratified and seeded; a `manifest` keeps
them, and is used again where it exists. With train and test only there is no val, and training takes its own part of train
for choosing. With train and val only, val becomes the test set: something must take part in no choice.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from softbias.data.arrays import is_array_folder, read_arrays
from softbias.data.cache import Progress, decode_all
from softbias.data.dataset import Dataset
from softbias.data.decode import describe_resize_mode, heif_available, resized
from softbias.data.findings import cut_groups, unassigned
from softbias.data.listing import Listing, pictures, read_listing, some
from softbias.data.splits import Indices, read_manifest, splits_of, stratified_split, write_manifest
from softbias.errors import SoftbiasError

SIZES = (32, 64, 96, 128, 224)
MANY = 20_000  # pictures; below that, more than 128 pixels cost more time than they bring accuracy
SAMPLE = 500  # pictures whose headers are read for choosing the size


def read_own(
    path: str | Path,
    *,
    img_size: int | tuple[int, int] | None = None,
    resize_mode: str = "crop",
    seed: int = 0,
    group_by: str | None = None,
    skip_broken: bool = False,
    cache_dir: str | Path | None = None,
    manifest: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Read a set of pictures.

    img_size      side, or (height, width); None lets `choose_size` decide, and keeps arrays as they are
    resize_mode   what happens to the aspect ratio: crop, pad or stretch
    seed          for the split, where none is given
    group_by      an expression on the files' paths, or a column of the CSV file: a group is never torn apart by a split
    skip_broken   leave out files that cannot be read, and say how many; otherwise they are an error that names them
    manifest      a CSV file for the split made here; if it exists already, the split is read from it
    """
    describe_resize_mode(resize_mode)
    path = Path(path)
    if not path.exists():
        raise SoftbiasError(
            f"{path} does not exist; give a folder with one per class, a CSV file (path, label) or an .npz file"
        )
    if path.suffix.lower() in (".npz", ".npy") or is_array_folder(path):
        if group_by is not None or manifest is not None:
            raise SoftbiasError(f"{path}: arrays have no file names, so neither group_by nor a manifest can be used")
        data = _fitted(read_arrays(path), img_size, resize_mode)
        splits, made = complete_splits(data.name, data.labels, data.splits, seed)
        return data.with_splits(splits, *made, *_require_classes(data.name, data.labels, data.class_names, splits))
    listing = read_listing(path, group_by)
    notes = list(listing.notes)
    if img_size is None:
        img_size, why = choose_size(listing)
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
        return _recall(listing, Path(manifest)), [f"the split is read from {manifest}"]
    splits, notes = complete_splits(listing.name, listing.labels, given, seed, listing.groups)
    if manifest is not None and set(given) <= {"train"}:
        notes.append(f"the split is written to {write_manifest(manifest, listing, splits)}")
    return splits, notes


def complete_splits(
    name: str, labels: Indices, given: dict[str, Indices], seed: int, groups: tuple[str, ...] | None = None
) -> tuple[dict[str, Indices], list[str]]:
    """Splits that have a train and a test part, whatever was given, and sentences about what was done for that."""
    if given and "train" not in given:
        raise SoftbiasError(f"{name}: there are pictures for {some(list(given))}, but none for train")
    if "test" in given:
        return given, []
    if "val" in given:
        return {"train": given["train"], "test": given["val"]}, [
            "there is no test split, so val is used as test, for no choice"
        ]
    pool = given.get("train", np.arange(len(labels)))
    parts = stratified_split(labels[pool], seed=seed, groups=None if groups is None else [groups[index] for index in pool])
    counts = ", ".join(f"{len(indices)} {split}" for split, indices in parts.items())
    how = (
        "stratified by class"
        if groups is None
        else f"{len(set(groups))} groups kept whole, as near to each class as they allow"
    )
    what = "there is only train, so it was split" if given else "the split was made here"
    return {split: pool[indices] for split, indices in parts.items()}, [f"{what} with seed {seed}: {counts}; {how}"]


def _recall(listing: Listing, manifest: Path) -> dict[str, Indices]:
    """The splits of a manifest for the pictures of a listing, which must all be in it."""
    old, splits = read_manifest(manifest)
    place = {os.path.abspath(old.files[index]): split for split, indices in splits.items() for index in indices}
    found = [place.get(os.path.abspath(file), "") for file in listing.files]
    new = [name for name, split in zip(listing.relative(), found, strict=True) if not split]
    if new:
        raise SoftbiasError(
            f"{listing.name}: {pictures(len(new))} not in the manifest {manifest}: {some(new)}; add them "
            "there, or remove the manifest to split anew"
        )
    return splits_of(found)


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
