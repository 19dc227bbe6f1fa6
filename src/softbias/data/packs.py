"""Packs: a whole image set in a few files. They take seconds to decode, so the cache keeps the decoded pictures.

    NAME_96.npz   WebP files end to end in `data`, cut at `offsets`; `labels`, `split` (a number per picture), `classes`
    NAME/         sheets of 32 × 32 tiles, by rows: train_0.webp, …, test_0.webp; train_labels.npy, test_labels.npy, and
                  classes.json, a list of names or {"fine": list}
    NAME/         arrays: train_images.npy, train_labels.npy, test_images.npy, test_labels.npy

Each kind is a function of a `DatasetRequest` that returns the Dataset, or None where its files are absent.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softbias.data.array_files import ArrayFiles
from softbias.data.arrays import CLASSES_FILE, as_text, read_arrays, read_class_names
from softbias.data.cache import Progress, decode_pack, may_write, noise
from softbias.data.dataset import Dataset
from softbias.data.decode import in_order, load
from softbias.data.listing import some
from softbias.data.resizing import Images, resize_all, resized, stack
from softbias.data.splits import splits_of
from softbias.errors import SoftbiasError
from softbias.notes import Note

ARRAY_FILES = ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy")
SHEET_FILES = ("train_0.webp", "test_0.webp", "train_labels.npy", "test_labels.npy", CLASSES_FILE)
TILE = 32  # pixels of a sheet's tile
PACKED = 96  # pixels of a picture in an .npz pack


@dataclass(frozen=True)
class DatasetRequest:
    """A named set, the folder of its files, and the wanted size: the argument of a loader in `named.DATASETS`.

    tried   collects the reasons why nothing was downloaded, for the error at the end
    """

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
        """The first folder that has all of these files: root/name for each name, or root itself."""
        folders = (*(self.root / name for name in names), self.root)
        return next((folder for folder in folders if all((folder / file).exists() for file in files)), None)


def npz_pack(request: DatasetRequest, file: str, splits: Sequence[str], *notes: Note) -> Dataset | None:
    """A pack of 96 × 96 pictures. splits: the meaning of the numbers 0, 1, … in `split`."""
    path, size = request.root / file, request.size(PACKED)
    if not path.is_file():
        return None
    try:
        with ArrayFiles(path) as pack:
            labels, split, classes = integers(pack, "labels"), integers(pack, "split"), pack.read("classes")
            if len(split) != len(labels) or (len(split) and not (split.min() >= 0 and split.max() < len(splits))):
                raise SoftbiasError(f"split must have {len(labels)} numbers from 0 to {len(splits) - 1}")

            def decode() -> Images:
                data, offsets = pack.read("data"), integers(pack, "offsets")
                ordered = len(offsets) == len(labels) + 1 and offsets[0] == 0 and bool((np.diff(offsets) > 0).all())
                if not ordered or offsets[-1] != len(data):
                    raise SoftbiasError(f"offsets must cut {len(data)} bytes of data into {len(labels)} files")
                files = (data[start:end].tobytes() for start, end in pairwise(offsets))
                return decode_files(files, len(labels), size, request.resize_mode)

            images = decode_pack([path], size, request.resize_mode, decode)
        names = tuple(as_text(classes.ravel(), "classes"))
        data = Dataset(request.name, images, labels, names, splits_of([splits[number] for number in split]))
    except SoftbiasError as error:
        raise SoftbiasError(f"the pack {path} cannot be read ({error}): fetch it again, or remove it") from error
    return data.with_notes(*notes, *resize_notes((PACKED, PACKED), size, request.resize_mode))


def integers(pack: ArrayFiles, name: str) -> NDArray[np.int64]:
    array = pack.read(name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise SoftbiasError(f"{name} must be a list of whole numbers, but is {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def decode_files(files: Iterable[bytes], number: int, size: tuple[int, int], resize_mode: str) -> Images:
    """Picture files in memory, decoded.  # (number, H, W, 3)"""

    def one(numbered: tuple[int, bytes]) -> Images:
        index, content = numbered
        return np.asarray(resized(load(io.BytesIO(content), name=f"picture {index}").image, size, resize_mode))

    return stack(in_order(one, enumerate(files)), number, size)


def sheets(request: DatasetRequest, folder_name: str) -> Dataset | None:
    """A folder of sheets."""
    folder, size = request.folder_with(SHEET_FILES, folder_name), request.size(TILE)
    if folder is None:
        return None
    try:
        class_names = read_class_names(folder / CLASSES_FILE)
        with ArrayFiles(folder) as pack:
            labels = {split: integers(pack, f"{split}_labels") for split in ("train", "test")}
        files = {split: list(numbered(folder, split)) for split in labels}

        def decode() -> Images:
            tiles = [read_tiles(files[split], len(labels[split]), split) for split in labels]
            return resize_all(np.concatenate(tiles), size, request.resize_mode)

        images = decode_pack([*files["train"], *files["test"]], size, request.resize_mode, decode)
        splits = splits_of([split for split in labels for _ in labels[split]])
        data = Dataset(request.name, images, np.concatenate(list(labels.values())), class_names, splits)
    except SoftbiasError as error:
        raise SoftbiasError(f"the pack {folder} cannot be read ({error}): fetch it again, or remove it") from error
    return data.with_notes(*resize_notes((TILE, TILE), size, request.resize_mode))


def numbered(folder: Path, split: str) -> Iterable[Path]:
    """train_0.webp, train_1.webp, … as far as they exist."""
    for number in count():
        if not (sheet := folder / f"{split}_{number}.webp").is_file():
            return
        yield sheet


def read_tiles(files: Sequence[Path], number: int, split: str) -> Images:
    """The first tiles of the sheets.  # (number, 32, 32, 3)"""
    parts = []
    for path in files:
        sheet = np.asarray(load(path).image)
        rows, columns = sheet.shape[0] // TILE, sheet.shape[1] // TILE
        whole = sheet[: rows * TILE, : columns * TILE]
        parts.append(whole.reshape(rows, TILE, columns, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3))
    found = sum(map(len, parts))
    if found < number:
        raise SoftbiasError(f"{number} {split} labels, but {found} pictures in {len(files)} {split} sheets: is one missing?")
    return np.concatenate(parts)[:number]


def resized_set(data: Dataset, size: tuple[int, int] | None, resize_mode: str, files: Sequence[Path] = ()) -> Dataset:
    """The set at another size; the cache keeps it where its pictures came from files."""
    if size is None or size == data.img_size:
        return data

    def make() -> Images:
        return resize_all(data.images, size, resize_mode) if may_write() else noise(len(data.images), size)

    images = decode_pack(files, size, resize_mode, make) if files and may_write() else make()
    enlarged = size[0] >= data.img_size[0] and size[1] >= data.img_size[1]
    small = data.images if enlarged and may_write() else None
    return replace(data, images=images, small=small).with_notes(*resize_notes(data.img_size, size, resize_mode))


def resize_notes(before: tuple[int, int], after: tuple[int, int], resize_mode: str) -> tuple[Note, ...]:
    about = {"before": list(before), "after": list(after), "resize_mode": resize_mode}
    return () if before == after else (Note("resized", about),)


def array_folder(request: DatasetRequest, folder: str, class_names: Sequence[str]) -> Dataset | None:
    """.npy files of a set with these classes; a classes.json must agree, and may be missing in the set's own folder."""
    found = request.folder_with(ARRAY_FILES, folder)
    if found is None:
        return None
    named = (found / CLASSES_FILE).is_file()
    if not named and found == request.root:
        return None  # nothing says which set these arrays are
    data = read_arrays(found)
    if not named and len(data.class_names) == len(class_names):
        data = replace(data, class_names=tuple(class_names))
    if data.class_names != tuple(class_names):
        if found == request.root:
            return None  # arrays of another set
        has = f"its classes.json lists {some(data.class_names)}" if named else f"it has {len(data.class_names)} classes"
        raise SoftbiasError(f"{found} is not {request.name}: {has}")
    files = [found / "train_images.npy", found / "test_images.npy"]
    return resized_set(replace(data, name=request.name), request.img_size, request.resize_mode, files)
