"""From a name or a path to a Dataset: find and list the pictures once, then split and decode them, with notes about it.

    open_source("my_pictures").read()
    open_source("bursts", group_by=r"(burst\\d+)_").read(manifest="split.csv")

`splitting` says which splits a set has.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from softbias.bounds import Seed, ShortText, Side, ValueRange, Workers
from softbias.data.arrays import is_array_folder, read_arrays
from softbias.data.cache import Progress, decode_all, may_write, open_whole
from softbias.data.dataset import Dataset
from softbias.data.decode import heif_available
from softbias.data.groups import MOST, group_of
from softbias.data.listing import Listing, list_folder, list_unlabeled
from softbias.data.named import height_and_width, list_datasets, load_named
from softbias.data.packs import resized_set
from softbias.data.partition import scored_on_val
from softbias.data.resizing import check_resize_mode
from softbias.data.splitting import SplitListing, split_arrays, split_readable
from softbias.data.tables import TABLES, list_csv
from softbias.data.value_range import check_range, find_range
from softbias.errors import SoftbiasError
from softbias.files import open_regular
from softbias.notes import Note
from softbias.schema import Checked, from_plain

SIZES = (32, 64, 96, 128, 224)
MANY = 20_000  # pictures; below that, more than 128 pixels cost more time than they bring accuracy
SAMPLE = 500  # pictures whose headers are read for choosing the size


@dataclass(frozen=True)
class DataOptions(Checked):
    """The options of a set, as the file of a run or a study states them; None counts as not given. See `Source.read`.

    score   the pictures that a run is scored on: "test", or "val" for choosing, see `partition.scored_on_val`
    """

    img_size: Side | tuple[Side, Side] | None = None
    resize_mode: Literal["crop", "pad", "stretch"] | None = None
    crop_from: Side | None = None
    value_range: ValueRange | None = None
    seed: Seed | None = None
    group_by: ShortText | None = None
    unlabeled: bool | None = None
    skip_broken: bool | None = None
    manifest: ShortText | None = None
    data_dir: ShortText | None = None
    download: bool | None = None
    cache_dir: ShortText | None = None
    workers: Workers | None = None
    score: Literal["test", "val"] | None = None

    @staticmethod
    def check(options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that are given; an unknown name or a wrong type is refused."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        checked = from_plain(DataOptions, plain, "options of the data")
        return {each.name: getattr(checked, each.name) for each in fields(checked) if getattr(checked, each.name) is not None}


@dataclass(frozen=True)
class Source:
    """A set of pictures that was found and listed, but not decoded: see `open_source`.

    name      of the set
    path      of the user's own files; None for a named set
    listing   the pictures of a folder or a CSV file; None for arrays and named sets, which are listed when they are read
    """

    name: str
    path: Path | None = None
    listing: Listing | None = None

    @property
    def count(self) -> int | None:
        """The number of pictures, where they are listed."""
        return None if self.listing is None else len(self.listing)

    @cached_property
    def size(self) -> int | None:
        """The side that suits the listed pictures: see `choose_size`, which reads headers; here once."""
        return None if self._chosen is None else self._chosen.values["size"]

    @cached_property
    def value_range(self) -> ValueRange | None:
        """What is black and white in the listed pictures, where some have more than eight bits; see `find_range`.

        The training pictures decide, where the listing names them.
        """
        if self.listing is None:
            return None
        files, split = self.listing.files, self.listing.split or ()
        return find_range([file for file, name in zip(files, split, strict=False) if name == "train"] or files)

    @cached_property
    def _chosen(self) -> Note | None:
        return None if self.listing is None else choose_size(self.listing)

    def read(
        self,
        *,
        img_size: int | tuple[int, int] | None = None,
        resize_mode: str = "crop",
        crop_from: int | None = None,
        value_range: ValueRange | None = None,
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
        crop_from     side at which whole pictures are kept, too; resized crops for training are then cut from these. For
                      picture files; without it crops are cut from the pictures at img_size
        value_range   what is black and white in pictures of more than eight bits; None: the pictures decide, see `find_range`
        seed          for the split, where none is given
        skip_broken   leave out files that cannot be read, and count them in a note; otherwise an error names them
        manifest      a CSV file for the split made here; if it exists already, the split is read from it
        data_dir      the folder of a named set's files, also for those that are downloaded
        download      whether missing files of a named set may be downloaded
        progress      called with (done, total) while pictures are decoded
        """
        check_resize_mode(resize_mode)
        value_range = None if value_range is None else check_range(value_range)
        if self.path is None:
            own = {
                "skip_broken": skip_broken, "manifest": manifest, "seed": seed, "cache_dir": cache_dir, "workers": workers,
                "crop_from": crop_from, "value_range": value_range,
            }  # fmt: skip
            refuse_for_named(self.name, [option for option, given in own.items() if given])
            return load_named(
                self.name, data_dir=data_dir, img_size=img_size, resize_mode=resize_mode, download=download, progress=progress
            ).with_notes(*self.beside())
        size = None if img_size is None else height_and_width(img_size)
        if self.listing is None:
            if manifest is not None:
                raise SoftbiasError(f"{self.path}: arrays have no file names, so a manifest cannot be used")
            if crop_from is not None:
                raise SoftbiasError(f"{self.path}: crop_from is for picture files; arrays are as large as they are")
            origin = sorted(self.path.glob("*.npy")) if self.path.is_dir() else [self.path]
            return resized_set(split_arrays(read_arrays(self.path, value_range), seed), size, resize_mode, origin)
        listing, notes = self.listing, list(self.listing.notes)
        if size is None:
            assert self._chosen is not None and self.size is not None  # there is a listing
            notes.append(self._chosen)
            size = (self.size, self.size)
        if crop_from is not None and resize_mode != "crop":
            raise SoftbiasError(f"crop_from goes with resize_mode 'crop', but resize_mode is {resize_mode!r}; leave one out")
        named, value_range = value_range is not None, value_range or self.value_range
        if value_range is not None and self.value_range is not None:
            notes.append(Note("value-range", {"low": value_range[0], "high": value_range[1], "named": named}))
        elif named:
            notes.append(Note("value-range-unused"))
        seek = len(listing) <= MOST
        images, kept, problems, thumbs = decode_all(
            listing, size, resize_mode, skip_broken, workers, cache_dir, progress, seek, crop_from, value_range
        )
        whole = None
        if crop_from is not None:
            whole = open_whole(listing, size, resize_mode, crop_from, cache_dir, seek, value_range)
        if problems:
            kinds = sorted({problem.kind for problem in problems})
            notes.append(Note("broken-pictures", {"count": len(problems), "total": len(listing), "kinds": kinds}))
        notes.append(Note("pictures-at", {"height": size[0], "width": size[1], "resize_mode": resize_mode}))
        if crop_from is not None:
            notes.append(Note("crops-from", {"side": crop_from}))
        manifest = manifest if may_write() or (manifest and Path(manifest).exists()) else None
        if listing.unlabeled:
            found = SplitListing(listing.take(kept), {"train": np.arange(len(kept))}, None, ())
        else:
            found = split_readable(listing, kept, seed, manifest, thumbs)
        files = tuple(str(file) for file in found.listing.files)
        about = (listing.name, images, found.listing.labels, listing.class_names, found.splits, files)
        made = (*notes, *found.notes)
        return Dataset(*about, notes=made, groups=found.groups, whole=whole, value_range=value_range)

    def beside(self) -> tuple[Note, ...]:
        """A note where the working directory has something of the name of a named set, which is not read."""
        return (Note("folder-of-that-name", {"name": self.name}),) if Path(self.name).exists() else ()

    def read_with(self, options: Mapping[str, Any], progress: Progress | None = None) -> Dataset:
        """`read` with options that are checked first; `group_by` and `unlabeled` among them were arguments of `open_source`."""
        given = {name: value for name, value in DataOptions.check(options).items() if name not in ("group_by", "unlabeled")}
        score = given.pop("score", "test")
        data = self.read(**given, progress=progress)
        return data if score == "test" else scored_on_val(data)


def is_named(source: str | Path) -> bool:
    """Whether this is the name of a set. Text is a name before it is a path: ./fashion is the folder, and so is a Path."""
    return isinstance(source, str) and source in list_datasets()


def source_name(source: str | Path) -> str:
    """A set's name as it is, or a path in one spelling ("pictures/" is "pictures") that is nobody's name."""
    if is_named(source) or not Path(source).exists():
        return str(source)
    path = str(Path(source))
    return os.path.join(".", path) if is_named(path) else path


def open_source(source: str | Path, group_by: str | None = None, unlabeled: bool | None = None) -> Source:
    """A set by name (`softbias.data.named.DATASETS`), or the user's own: a folder, a CSV file, an .npz file, a folder of
    .npy files. A folder or a CSV file is listed here, and only here. Where a folder has the name of a set, the name is the
    set, and a note says so; ./NAME is the folder.

        source = open_source("my_pictures")
        source.count, source.size               # for choices that come before decoding
        data = source.read(img_size=64)

    group_by   an expression on the files' paths, or a column of the CSV file: a group is never torn apart by a split
    unlabeled  take all pictures below a folder, without classes and splits
    """
    path = Path(source)
    if unlabeled:
        if group_by is not None or not path.is_dir():
            wrong = "group_by is for splits" if group_by is not None else f"{source} is not a folder"
            raise SoftbiasError(f"pictures without classes are the files below a folder, all for training, but {wrong}")
        listing = list_unlabeled(path)
        return Source(listing.name, path, listing)
    if is_named(source):
        refuse_for_named(str(source), ["group_by"] if group_by else [])
        return Source(str(source))
    if not path.exists():
        raise nothing_there(str(source), list_datasets())
    if path.suffix.lower() in (".npz", ".npy") or is_array_folder(path):
        if group_by is not None:
            raise SoftbiasError(f"{path}: arrays have no file names, so group_by cannot be used")
        return Source(path.stem, path)
    listing = read_listing(path, group_by)
    return Source(listing.name, path, listing)


def read_listing(path: str | Path, group_by: str | None = None) -> Listing:
    """The listing of a folder or a CSV file. group_by: a column of the CSV file, or else an expression, see `group_of`."""
    path = Path(path)
    listing = list_csv(path, group_by) if path.suffix.lower() in TABLES else list_folder(path)
    if group_by is None or listing.groups is not None:
        return listing
    return replace(listing, groups=group_of(listing.relative(), group_by))


def refuse_for_named(name: str, options: Sequence[str]) -> None:
    if options:
        raise SoftbiasError(f"the named set {name} has its own files and splits; {', '.join(options)} is for your own pictures")


def nothing_there(source: str, sets: Iterable[str]) -> SoftbiasError:
    """The error for a path that does not exist and is no set's name: it names the nearest path or set."""
    path = Path(source)
    beside = sorted(str(each) for each in path.parent.iterdir()) if path.parent.is_dir() else []
    longer = [name for name in beside if Path(name).name.startswith(path.name)] if path.name else []
    nearest = [*difflib.get_close_matches(source, [*beside, *sets], n=1), *longer][:1]
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return SoftbiasError(f"there is no file or folder {source!r}{where}{hint} Sets by name: {', '.join(sorted(sets))}")


def choose_size(listing: Listing) -> Note:
    """The largest of 32, 64, 96, 128, 224 that half of the pictures reach with their shorter side, 128 at most below 20,000
    pictures; as a note with the reason. Headers of 500 pictures, evenly spread, decide."""
    sample = np.unique(np.linspace(0, len(listing) - 1, SAMPLE).round().astype(int))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        sides = [side for side in (_shorter_side(listing.files[index]) for index in sample) if side]
    median = float(np.median(sides)) if sides else 0.0
    allowed = [size for size in SIZES if size <= 128 or len(listing) >= MANY]
    size = max([side for side in allowed if side <= median], default=SIZES[0])
    return Note("size-chosen", {"size": size, "median": median, "many": MANY if size == 128 and median >= 224 else None})


def _shorter_side(file: Path) -> int | None:
    heif_available()  # from here on Pillow knows HEIC
    try:
        with open_regular(file) as content, Image.open(content) as picture:
            return min(picture.size)
    except Exception:  # Pillow raises a dozen kinds on damaged files; decode_all reports them
        return None
