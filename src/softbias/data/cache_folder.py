"""The folder of the cache and its entries: where it is, how large it is, and how an entry comes to be.

An entry is a folder, named by its key. It is written under another name, flushed to disk and then renamed. So it is complete or
absent, also after a kill, and of two processes that make the same one the first wins.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import platformdirs

from softbias import environment
from softbias.files import sync

STALE = 24 * 3600  # seconds without a write, after which an unfinished entry belongs to a process that was killed
UNFINISHED = ".part"


def cache_location(cache_dir: str | Path | None = None) -> Path:
    """The folder of decoded sets: in cache_dir, else in $SOFTBIAS_CACHE, else in the user's folder for caches."""
    given = cache_dir or environment.variable("SOFTBIAS_CACHE")
    folder = Path(given).expanduser() if given else platformdirs.user_cache_path("softbias", appauthor=False)
    if not given and not folder.is_absolute():  # a user without a home, as in some containers
        folder = Path(tempfile.gettempdir()) / "softbias"
    return folder / "pictures"


def cache_size(cache_dir: str | Path | None = None) -> int:
    """Bytes of all decoded sets."""
    files = (file for entry in _entries(cache_location(cache_dir)) for file in entry.glob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def clear_cache(cache_dir: str | Path | None = None) -> int:
    """Remove all decoded sets, and nothing else; return the number of bytes that were freed."""
    size = cache_size(cache_dir)
    for entry in _entries(cache_location(cache_dir)):
        shutil.rmtree(entry, ignore_errors=True)
    return size


def store_entry(entry: Path, fill: Callable[[Path], object]) -> None:
    """An entry with the files that `fill` writes into a folder: whole or absent."""
    part = entry.with_name(f"{entry.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        part.mkdir(parents=True)
        _remove_stale(entry.parent)
        fill(part)
        for file in part.iterdir():
            sync(file)
        try:
            part.rename(entry)
        except OSError:
            if not any(entry.glob("images.*")):  # else another process was first
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    """Entries, finished or not, by the form of their names: a user may keep other files there."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if len(path.name.split(".")[0]) == 32 and path.is_dir() and not path.is_symlink()]


def _remove_stale(folder: Path) -> None:
    for entry in _entries(folder):
        if entry.suffix == UNFINISHED:
            times = [path.stat().st_mtime for path in (entry, *entry.glob("*")) if path.exists()]
            if times and time.time() - max(times) > STALE:
                shutil.rmtree(entry, ignore_errors=True)
