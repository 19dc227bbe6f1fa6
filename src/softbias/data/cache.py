"""Decode once: every picture of a set as bytes in one file that is mapped into memory from then on.

    <cache>/pictures/<key>/images.u8     N × height × width × 3 bytes, the readable pictures one after another
    <cache>/pictures/<key>/about.json    shape, which of the listed files these are, and what was wrong with the others

The key is a hash of each file's path, size, time and rights, the target size, the resize mode and the decoder's version, so a
changed picture is decoded anew. An entry is written beside its place, flushed to disk and then renamed: it is there
completely or not at all, whoever is killed, and of two processes that make the same one the first wins. Pictures are
written to the file, not assigned to a map of it: a full disk makes a write fail, but kills a process that assigns to a map.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from softbias import environment
from softbias.data.decode import VERSION, BrokenPicture, UnsupportedPicture, decode, describe_resize_mode, heif_available
from softbias.data.listing import Listing, pictures
from softbias.data.parallel import in_order
from softbias.errors import SoftbiasError

Pixels = NDArray[np.uint8]
Progress = Callable[[int, int], None]
STALE = 24 * 3600  # seconds after which an unfinished entry that nobody writes to belongs to a process that was killed
UNFINISHED = ".part"


def decode_all(
    listing: Listing,
    size: tuple[int, int],
    resize_mode: str = "crop",
    skip_broken: bool = False,
    workers: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Pixels, NDArray[np.int64], list[BrokenPicture]]:
    """All pictures at (height, width), the indices of those that could be read, and what was wrong with the others.

    Pictures that cannot be read are an error that names them, unless skip_broken. `progress` is told (done, total).
    """
    describe_resize_mode(resize_mode)
    place = cache_location(cache_dir)
    entry = place / _key(listing, size, resize_mode)
    found = _open(entry)
    if found is None:
        _make(entry, listing, size, resize_mode, workers, progress)
        found = _open(entry)
        if found is None:
            raise SoftbiasError(
                f"the cache {place} does not keep what is written to it; choose another place with SOFTBIAS_CACHE"
            )
    images, kept, problems = found
    if problems and not skip_broken:
        raise SoftbiasError(broken_message(listing.name, len(listing), problems))
    if not len(kept):
        raise SoftbiasError(f"{listing.name}: none of {pictures(len(listing))} can be read; the first: {problems[0]}")
    return images, kept, problems


def broken_message(name: str, total: int, problems: list[BrokenPicture], most: int = 10) -> str:
    """What is said when training refuses files it cannot read."""
    named = "".join(f"\n  {problem}" for problem in problems[:most])
    more = f"\n  and {len(problems) - most} more" if len(problems) > most else ""
    return (
        f"{name}: {len(problems)} of {pictures(total)} cannot be read; repair or remove them, or leave them out with "
        f"--skip-broken (skip_broken=True):{named}{more}"
    )


def cache_location(cache_dir: str | Path | None = None) -> Path:
    """The folder of decoded sets: in cache_dir, else in $SOFTBIAS_CACHE, else in the system's place for a user's caches."""
    given = cache_dir or environment.variable("SOFTBIAS_CACHE")
    return (Path(given).expanduser() if given else _user_cache() / "softbias") / "pictures"


def cache_size(cache_dir: str | Path | None = None) -> int:
    """Bytes of all decoded sets."""
    files = (file for entry in _entries(cache_location(cache_dir)) for file in entry.glob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def clear_cache(cache_dir: str | Path | None = None) -> int:
    """Remove all decoded sets, and nothing else; return how many bytes that freed."""
    size = cache_size(cache_dir)
    for entry in _entries(cache_location(cache_dir)):
        shutil.rmtree(entry, ignore_errors=True)
    return size


def _key(listing: Listing, size: tuple[int, int], resize_mode: str) -> str:
    digest = hashlib.sha256(f"{VERSION} {size[0]} {size[1]} {resize_mode} {heif_available()}".encode())
    for file in listing.files:
        try:
            status = os.stat(file)
            about = f"{status.st_size} {status.st_mtime_ns} {status.st_mode}"
        except OSError:
            about = "missing"
        digest.update(f"\0{os.path.abspath(file)}\0{about}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _open(entry: Path) -> tuple[Pixels, NDArray[np.int64], list[BrokenPicture]] | None:
    """What an entry holds; None where there is none, or where it is damaged and had to be removed."""
    try:
        about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
        shape, kept = tuple(about["shape"]), np.array(about["kept"], np.int64)
        problems = [_problem(*problem) for problem in about["problems"]]
        if len(shape) != 4 or shape[0] != len(kept) or (entry / "images.u8").stat().st_size != int(np.prod(shape)):
            raise SoftbiasError("the shape does not fit the file")
        if not len(kept):
            return np.empty(shape, np.uint8), kept, problems
        return np.memmap(entry / "images.u8", np.uint8, "r", shape=shape), kept, problems
    except FileNotFoundError:
        if not entry.is_dir():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    shutil.rmtree(entry, ignore_errors=True)
    return None


def _problem(path: str, reason: str, kind: str) -> BrokenPicture:
    return (UnsupportedPicture if kind == "unsupported" else BrokenPicture)(path, reason, kind)


def _make(
    entry: Path, listing: Listing, size: tuple[int, int], resize_mode: str, workers: int | None, progress: Progress | None
) -> None:
    def one(file: Path) -> Pixels | BrokenPicture:
        try:
            return decode(file, size, resize_mode)
        except BrokenPicture as error:
            return error

    needed = len(listing) * size[0] * size[1] * 3
    part = entry.with_name(f"{entry.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        part.mkdir(parents=True)
        _remove_stale(entry.parent)
        if shutil.disk_usage(part).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept: list[int] = []
        problems: list[tuple[str, str, str]] = []
        results = in_order(one, listing.files, workers)
        with open(part / "images.u8", "wb") as file, closing(results):
            for index, result in enumerate(results):
                if isinstance(result, BrokenPicture):
                    problems.append((result.path, result.reason, result.kind))
                else:
                    file.write(result.data)
                    kept.append(index)
                if progress:
                    progress(index + 1, len(listing))
            _flush(file)
        about = {"name": listing.name, "shape": [len(kept), *size, 3], "kept": kept, "problems": problems}
        with open(part / "about.json", "w", encoding="utf-8") as text:
            json.dump(about, text)  # escapes whatever is not ASCII, so odd file names survive
            _flush(text)
        try:
            part.rename(entry)
        except OSError:
            if not (entry / "about.json").is_file():  # else another process was first
                raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        what = f"no space for {needed / 1e6:,.1f} MB of decoded pictures" if full else "decoded pictures cannot be kept"
        advice = f"{'make room, or ' if full else ''}choose another place with SOFTBIAS_CACHE"
        raise SoftbiasError(f"{what} in {entry.parent} ({error.strerror}); {advice}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _entries(place: Path) -> list[Path]:
    """Entries, finished or not: only what is named like one, whatever else a user may keep there."""
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if len(path.name.split(".")[0]) == 32 and path.is_dir() and not path.is_symlink()]


def _remove_stale(place: Path) -> None:
    for entry in _entries(place):
        if entry.suffix == UNFINISHED:
            times = [path.stat().st_mtime for path in (entry, *entry.glob("*")) if path.exists()]
            if times and time.time() - max(times) > STALE:
                shutil.rmtree(entry, ignore_errors=True)


def _user_cache() -> Path:
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        home = Path(tempfile.gettempdir())
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local")
    if sys.platform == "darwin":
        return home / "Library/Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
