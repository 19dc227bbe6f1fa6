"""Decode once: every picture of a set as bytes in one file that is mapped into memory from then on.

    <cache>/pictures/<key>/images.u8     N × height × width × 3 bytes, the readable pictures one after another
    <cache>/pictures/<key>/thumbs.u8     N × 16 × 16 × 3 bytes, by which copies are found; empty where nobody looks for them
    <cache>/pictures/<key>/whole.u8      N × side × side × 3 bytes, the same pictures whole, as squares; where crops need them
    <cache>/pictures/<key>/about.json    shape, the indices of these pictures in the listing, and the errors of the others
    <cache>/pictures/<key>/images.npy    the pictures of a pack

The key is a hash of each file's path, size, time and rights, the target size, the resize mode, the range of values and the
decoder's version, so a changed picture is decoded anew. Pictures are written to the file, and not assigned to a map of it: a
full disk makes a write fail, but kills a process that assigns to a map. `cache_folder` says how an entry comes to be.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from softbias.bounds import ValueRange
from softbias.data.cache_folder import cache_location, store_entry
from softbias.data.dataset import WholeImages
from softbias.data.decode import (
    THUMBNAIL,
    VERSION,
    BrokenImageError,
    UnsupportedImageError,
    decode_or_error,
    heif_available,
    in_order,
)
from softbias.data.listing import Listing, counted_images
from softbias.data.resizing import Images, check_resize_mode
from softbias.errors import SoftbiasError
from softbias.json_file import MOST_BYTES_OF_TABLES, read_json
from softbias.schema import SchemaError, from_plain

Progress = Callable[[int, int], None]
Decoded = tuple[Images, NDArray[np.int64], list[BrokenImageError], Images | None]

_may_write: ContextVar[bool] = ContextVar("may_write", default=True)


@contextmanager
def writing_nothing() -> Iterator[None]:
    """Inside, nothing is decoded into the cache and nothing is downloaded: a set has noise for the pictures that it lacks.

    Its labels, splits and sizes are right, which is what a plan needs.
    """
    token = _may_write.set(False)
    try:
        yield
    finally:
        _may_write.reset(token)


def may_write() -> bool:
    return _may_write.get()


def noise(count: int, size: tuple[int, int]) -> Images:
    """Images of noise, all the same one, which take the memory of one.  # (count, height, width, 3)"""
    one = np.random.default_rng(0).integers(0, 256, (1, *size, 3), dtype=np.uint8)
    return np.broadcast_to(one, (count, *size, 3))


class About(TypedDict):
    """about.json of an entry. problems: path, reason and kind of each picture that could not be read."""

    shape: tuple[int, int, int, int]
    kept: Any  # whole numbers; numpy checks a million of them faster
    problems: list[tuple[str, str, str]]
    aspects: Any  # numbers: width / height of each picture, where whole ones are kept


def decode_all(
    listing: Listing,
    size: tuple[int, int],
    resize_mode: str = "crop",
    skip_broken: bool = False,
    workers: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    copies: bool = False,
    whole: int | None = None,
    value_range: ValueRange | None = None,
) -> Decoded:
    """All pictures at (height, width), the indices of those that could be read, the errors of the others, and thumbnails of
    those that could be read, for finding copies, where `copies` asks for them.

    Pictures that cannot be read are an error that names them, unless skip_broken. `progress` is called with (done, total).
    whole: the side at which whole pictures are kept, too, for `open_whole`.
    """
    check_resize_mode(resize_mode)
    folder = cache_location(cache_dir)
    entry = folder / _key(listing, size, resize_mode, copies, whole, value_range)
    found = _open(entry, copies, whole)
    if found is None and not may_write():
        return noise(len(listing), size), np.arange(len(listing)), [], None
    if found is None:
        _make(entry, listing, size, resize_mode, workers, progress, copies, whole, value_range)
        found = _open(entry, copies, whole)
        if found is None:
            raise SoftbiasError(f"the cache {folder} does not keep its files; choose another folder with SOFTBIAS_CACHE")
    images, kept, problems, thumbs = found
    if problems and not skip_broken:
        raise SoftbiasError(broken_message(listing.name, len(listing), problems))
    if not len(kept):
        raise SoftbiasError(f"{listing.name}: none of {counted_images(len(listing))} can be read; the first: {problems[0]}")
    return images, kept, problems, thumbs


def open_whole(
    listing: Listing,
    size: tuple[int, int],
    resize_mode: str,
    whole: int,
    cache_dir: str | Path | None = None,
    copies: bool = False,
    value_range: ValueRange | None = None,
) -> WholeImages:
    """The whole pictures that `decode_all` kept with the same arguments."""
    entry = cache_location(cache_dir) / _key(listing, size, resize_mode, copies, whole, value_range)
    if not entry.is_dir() and not may_write():
        return WholeImages(noise(len(listing), (whole, whole)), np.ones(len(listing), np.float32))
    aspects = np.array(read_json(entry / "about.json", MOST_BYTES_OF_TABLES)["aspects"], np.float32)
    return WholeImages(np.memmap(entry / "whole.u8", np.uint8, "r", shape=(len(aspects), whole, whole, 3)), aspects)


def broken_message(name: str, total: int, problems: list[BrokenImageError], most: int = 10) -> str:
    """The message where training refuses files that it cannot read."""
    named = "".join(f"\n  {problem}" for problem in problems[:most])
    more = f"\n  and {len(problems) - most} more" if len(problems) > most else ""
    return (
        f"{name}: {len(problems)} of {counted_images(total)} cannot be read; repair or remove them, or leave them out with "
        f"--skip-broken (skip_broken=True):{named}{more}"
    )


def decode_pack(files: Sequence[Path], size: tuple[int, int], resize_mode: str, make: Callable[[], Images]) -> Images:
    """The pictures that `make` decodes from the files of a pack, as a memory map where an entry exists.

    The cache only saves time here: where it cannot be written, the pictures stay in memory.
    """
    stamps = [(os.path.abspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(repr((VERSION, "pack", size, resize_mode, stamps)).encode(errors="surrogateescape")).hexdigest()[:32]
    entry = cache_location() / key
    try:
        return _open_pack(entry, size)
    except (OSError, ValueError, EOFError):
        shutil.rmtree(entry, ignore_errors=True)  # it is absent or damaged
    images = make()
    try:
        store_entry(entry, lambda part: np.save(part / "images.npy", images))
        return _open_pack(entry, size)
    except OSError:
        return images


def _open_pack(entry: Path, size: tuple[int, int]) -> Images:
    images: Images = np.load(entry / "images.npy", mmap_mode="r", allow_pickle=False)
    if images.dtype != np.uint8 or images.shape[1:] != (*size, 3):
        raise SchemaError(f"{entry / 'images.npy'} must hold uint8 (N, {size[0]}, {size[1]}, 3), but has {images.shape}")
    return images


def _key(
    listing: Listing,
    size: tuple[int, int],
    resize_mode: str,
    copies: bool,
    whole: int | None,
    value_range: ValueRange | None,
) -> str:
    digest = hashlib.sha256(f"{VERSION} {size[0]} {size[1]} {resize_mode} {heif_available()} {copies} {whole}".encode())
    digest.update(b"" if value_range is None else repr(value_range).encode())
    for file in listing.files:
        try:
            status = os.stat(file)
            about = f"{status.st_size} {status.st_mtime_ns} {status.st_mode}"
        except OSError:
            about = "missing"
        digest.update(f"\0{os.path.abspath(file)}\0{about}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _open(entry: Path, copies: bool, whole: int | None) -> Decoded | None:
    """The content of an entry; None where it is absent, or where it was damaged and therefore removed."""
    try:
        about = from_plain(About, read_json(entry / "about.json", MOST_BYTES_OF_TABLES), str(entry / "about.json"))
        shape, kept = about["shape"], np.array(about["kept"], np.int64)
        problems = [
            (UnsupportedImageError if kind == "unsupported" else BrokenImageError)(path, reason, kind)
            for path, reason, kind in about["problems"]
        ]
        if shape[0] != len(kept) or (entry / "images.u8").stat().st_size != int(np.prod(shape)):
            raise SchemaError(f"{entry}: the shape does not fit the file")
        squares = 0 if whole is None else len(kept)
        if len(about["aspects"]) != squares or (entry / "whole.u8").stat().st_size != squares * 3 * (whole or 0) ** 2:
            raise SchemaError(f"{entry}: the whole pictures do not fit the file")
        if not len(kept):
            return np.empty(shape, np.uint8), kept, problems, None
        thumbs = np.fromfile(entry / "thumbs.u8", np.uint8).reshape(len(kept), THUMBNAIL, THUMBNAIL, 3) if copies else None
        return np.memmap(entry / "images.u8", np.uint8, "r", shape=shape), kept, problems, thumbs
    except FileNotFoundError:
        if not entry.is_dir():
            return None
    except (OSError, ValueError, TypeError, OverflowError):  # ValueError is also that of JSON and of numpy
        pass
    shutil.rmtree(entry, ignore_errors=True)
    return None


def _make(
    entry: Path,
    listing: Listing,
    size: tuple[int, int],
    resize_mode: str,
    workers: int | None,
    progress: Progress | None,
    copies: bool,
    whole: int | None,
    value_range: ValueRange | None,
) -> None:
    needed = len(listing) * (size[0] * size[1] + (whole or 0) ** 2) * 3

    def fill(part: Path) -> None:
        if shutil.disk_usage(part).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept: list[int] = []
        problems: list[tuple[str, str, str]] = []
        aspects: list[float] = []
        one = partial(decode_or_error, size=size, resize_mode=resize_mode, copies=copies, whole=whole, value_range=value_range)
        results = in_order(one, listing.files, workers)
        with (
            open(part / "images.u8", "wb") as file,
            open(part / "thumbs.u8", "wb") as thumbs,
            open(part / "whole.u8", "wb") as squares,
            closing(results),
        ):
            for index, result in enumerate(results):
                if isinstance(result, BrokenImageError):
                    problems.append((result.path, result.reason, result.kind))
                else:
                    file.write(result.image.data)
                    if result.small is not None:
                        thumbs.write(result.small.data)
                    if result.whole is not None:
                        squares.write(result.whole.data)
                        aspects.append(result.aspect)
                    kept.append(index)
                if progress:
                    progress(index + 1, len(listing))
        about = {"name": listing.name, "shape": [len(kept), *size, 3], "kept": kept, "problems": problems, "aspects": aspects}
        (part / "about.json").write_text(json.dumps(about), encoding="utf-8")  # in ASCII, so that odd file names survive

    try:
        store_entry(entry, fill)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        problem = f"no space for {needed / 1e6:,.1f} MB of decoded pictures" if full else "decoded pictures cannot be kept"
        advice = f"{'make room, or ' if full else ''}choose another folder with SOFTBIAS_CACHE"
        raise SoftbiasError(f"{problem} in {entry.parent} ({error.strerror}); {advice}") from error
