"""Packs: a whole image set in a few files. They take seconds to decode, so what was decoded is kept in the cache.

    NAME_96.npz   WebP files end to end in `data`, cut at `offsets`; `labels`, `split` (a number per picture), `classes`
    NAME/         sheets of 32 × 32 tiles, by rows: train_0.webp, …, test_0.webp; train_labels.npy, test_labels.npy, and
                  classes.json, a list of names or {"fine": list}

A set given as .npy files is read by `arrays.read_arrays`. Nothing here is ever unpickled.

Shapes: N pictures.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.data.cache import UNFINISHED, cache_location
from softbias.data.dataset import Dataset
from softbias.data.decode import VERSION, load, resized
from softbias.data.splits import splits_of
from softbias.errors import SoftbiasError

Pixels = NDArray[np.uint8]
TILE = 32  # pixels of a sheet's tile
SHEET_FILES = ("train_0.webp", "test_0.webp", "train_labels.npy", "test_labels.npy", "classes.json")


def read_npz_pack(path: Path, splits: Sequence[str], size: tuple[int, int], resize_mode: str, name: str) -> Dataset:
    """The pack at (height, width). splits: what the numbers 0, 1, … in `split` stand for."""
    try:
        with np.load(path) as pack:
            labels, places, classes = pack["labels"].astype(np.int64), pack["split"], pack["classes"].tolist()

            def decode() -> Pixels:
                data, offsets = pack["data"], pack["offsets"]
                if len(offsets) != len(labels) + 1 or offsets[-1] != len(data):
                    raise SoftbiasError(f"{len(labels)} labels, but {len(offsets)} offsets, up to {offsets[-1]} of {len(data)}")
                files = (data[start:end].tobytes() for start, end in pairwise(offsets))
                return stacked(files, len(labels), size, resize_mode)

            images = decoded_once([path], size, resize_mode, decode)
        split = [splits[place] for place in places]
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SoftbiasError(f"the pack {path} cannot be read ({error}): fetch it again, or remove it") from error
    return Dataset(name, images, labels, tuple(classes), splits_of(split), notes=resize_note((96, 96), size))


def read_sheets(folder: Path, size: tuple[int, int], resize_mode: str, name: str) -> Dataset:
    """A folder of sheets at (height, width)."""
    try:
        classes = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
        class_names = classes["fine"] if isinstance(classes, dict) else classes
        labels = {split: np.load(folder / f"{split}_labels.npy").astype(np.int64) for split in ("train", "test")}
        sheets = {split: list(_numbered(folder, split)) for split in labels}

        def decode() -> Pixels:
            tiles = [_tiles(sheets[split], len(labels[split]), split) for split in labels]
            return at_size(np.concatenate(tiles), size, resize_mode)

        images = decoded_once([*sheets["train"], *sheets["test"]], size, resize_mode, decode)
        split = [split for split in labels for _ in labels[split]]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise SoftbiasError(f"the pack {folder} cannot be read ({error}): fetch it again, or remove it") from error
    everything = np.concatenate(list(labels.values()))
    return Dataset(name, images, everything, tuple(class_names), splits_of(split), notes=resize_note((TILE, TILE), size))


def _numbered(folder: Path, split: str) -> Iterator[Path]:
    number = 0
    while (sheet := folder / f"{split}_{number}.webp").is_file():
        yield sheet
        number += 1


def _tiles(sheets: Sequence[Path], count: int, split: str) -> Pixels:
    """The first `count` tiles.  # (count, 32, 32, 3)"""
    parts = []
    for path in sheets:
        with Image.open(path, formats=["WEBP", "PNG"]) as image:
            sheet = np.asarray(image.convert("RGB"))
        rows, columns = sheet.shape[0] // TILE, sheet.shape[1] // TILE
        parts.append(sheet.reshape(rows, TILE, columns, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3))
    found = sum(map(len, parts))
    if found < count:
        raise SoftbiasError(f"{count} {split} labels, but {found} pictures in {len(sheets)} {split} sheets: is one missing?")
    return np.concatenate(parts)[:count]


def sized(data: Dataset, size: tuple[int, int] | None, resize_mode: str, sources: Sequence[Path] = ()) -> Dataset:
    """The set at another size, kept in the cache where it came from files."""
    if size is None or size == data.img_size:
        return data
    images = data.images
    if sources:
        resized = decoded_once(sources, size, resize_mode, lambda: at_size(images, size, resize_mode))
    else:
        resized = at_size(images, size, resize_mode)
    return replace(data, images=resized, notes=(*data.notes, *resize_note(data.img_size, size)))


def resize_note(before: tuple[int, int], after: tuple[int, int]) -> tuple[str, ...]:
    return () if before == after else (f"resized from {before[0]} × {before[1]} to {after[0]} × {after[1]} pixels",)


def at_size(images: Pixels, size: tuple[int, int], resize_mode: str) -> Pixels:
    """Pictures resized with antialiasing, as files are; those that have the size already are returned as they are."""
    if images.shape[1:3] == size:
        return images
    return _filled((np.asarray(resized(Image.fromarray(image), size, resize_mode)) for image in images), len(images), size)


def stacked(files: Iterable[bytes], count: int, size: tuple[int, int], resize_mode: str) -> Pixels:
    """Picture files in memory, decoded by threads: Pillow lets go of the interpreter meanwhile.  # (count, H, W, 3)"""

    def one(numbered: tuple[int, bytes]) -> Pixels:
        number, content = numbered
        return np.asarray(resized(load(io.BytesIO(content), name=f"picture {number}").image, size, resize_mode))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return _filled(pool.map(one, enumerate(files)), count, size)


def _filled(pictures: Iterable[Pixels], count: int, size: tuple[int, int]) -> Pixels:
    images = np.empty((count, *size, 3), np.uint8)
    for index, picture in enumerate(pictures):
        images[index] = picture
    return images


def decoded_once(sources: Sequence[Path], size: tuple[int, int], resize_mode: str, decode: Callable[[], Pixels]) -> Pixels:
    """What `decode` gives, as a memory map from the cache where it was decoded before.

    The cache only saves time here: where it cannot be written, the pictures stay in memory.
    """
    stamps = [(os.path.abspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    key = hashlib.sha256(repr((VERSION, "pack", size, resize_mode, stamps)).encode(errors="surrogateescape")).hexdigest()[:32]
    entry = cache_location() / key
    try:
        return np.load(entry / "images.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError):
        shutil.rmtree(entry, ignore_errors=True)  # there is none, or it is damaged
    images = decode()
    part = entry.with_name(f"{key}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        part.mkdir(parents=True)
        with open(part / "images.npy", "wb") as file:
            np.save(file, images)
            file.flush()
            os.fsync(file.fileno())
        part.rename(entry)
        return np.load(entry / "images.npy", mmap_mode="r")
    except OSError:
        return images
    finally:
        shutil.rmtree(part, ignore_errors=True)
