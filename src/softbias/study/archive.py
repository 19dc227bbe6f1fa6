"""The zip file of a packed study, and the folder that it becomes again for as long as it is read.

    write_archive(folder, file, times)
    with unpacked("flowers.zip") as folder: …

The same folder always makes the same bytes: entries are sorted, and their time is that at which their run was finished.
Files of the same content are stored once; same.json names the others, and the one that each of them equals.
"""

from __future__ import annotations

import calendar
import json
import lzma
import os
import re
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from softbias.errors import SoftbiasError, in_one_line
from softbias.files import require_regular
from softbias.json_file import read_json
from softbias.schema import from_plain

SUFFIX = ".zip"
SAME = "same.json"
ENTRY = re.compile(r"[\w.+-]+(/[\w.+-]+){0,4}")
MOST_ENTRIES, MOST_BYTES = 200_000, 2 * 2**30  # of a file that is unpacked
EARLIEST = calendar.timegm((1980, 1, 1, 0, 0, 0))  # time of an entry
DAMAGE = (
    OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


def write_archive(folder: Path, file: Path, times: Mapping[str, float]) -> None:
    """times: when runs were finished, by the names of their folders"""
    stored: dict[bytes, str] = {}
    same: dict[str, str] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            relative, content = path.relative_to(folder), path.read_bytes()
            name = relative.as_posix()
            first = stored.setdefault(content, name)
            if first != name:
                same[name] = first
                continue
            add(archive, name, content, times[relative.parts[1]] if relative.parts[0] == "runs" else max(times.values()))
        if same:
            add(archive, SAME, (json.dumps(same, indent=0) + "\n").encode(), max(times.values()))


def add(archive: zipfile.ZipFile, name: str, content: bytes, seconds: float) -> None:
    entry = zipfile.ZipInfo(name, time.gmtime(max(seconds, EARLIEST))[:6])
    entry.compress_type = zipfile.ZIP_LZMA
    archive.writestr(entry, content)


@contextmanager
def study_folder(path: str | Path) -> Iterator[Path]:
    """The folder of a study, also of a packed one, as long as it is needed."""
    if Path(path).suffix.lower() != SUFFIX:
        yield Path(path)
        return
    with unpacked(path) as folder:
        yield folder


@contextmanager
def unpacked(path: str | Path) -> Iterator[Path]:
    """The folder of a packed study, as long as it is needed."""
    path = Path(path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / path.stem
        try:
            require_regular(path, path.stat().st_mode)
            with zipfile.ZipFile(path) as archive:
                extract(archive, folder)
        except DAMAGE as error:
            raise SoftbiasError(f"{path} cannot be read as a packed study: {in_one_line(error)}") from error
        if not (folder / "study.yaml").is_file():
            raise SoftbiasError(f"{path} is not a packed study: it has no study.yaml")
        yield folder


def extract(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the entries and their copies; the sizes that an archive claims are not trusted, and no entry leaves the folder."""
    entries, left = archive.infolist(), MOST_BYTES
    require_count(len(entries))
    for entry in entries:
        target = inside(folder, entry.filename)
        with archive.open(entry) as stream:
            content = stream.read(left + 1)
        left = remaining(left, len(content))
        write(target, content, calendar.timegm(entry.date_time))
    if not (folder / SAME).is_file():
        return
    same = from_plain(dict[str, str], read_json(folder / SAME), SAME)
    require_count(len(entries) + len(same))
    stored = {entry.filename for entry in entries}
    for name, first in same.items():
        if first not in stored or name in stored:
            raise ValueError(f"{SAME} names {first[:100]!r} for {name[:100]!r}, which cannot be")
        target, source = inside(folder, name), folder / first
        left = remaining(left, source.stat().st_size)
        write(target, source.read_bytes(), source.stat().st_mtime)
    (folder / SAME).unlink()


def write(target: Path, content: bytes, seconds: float) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    os.utime(target, (seconds, seconds))


def inside(folder: Path, name: str) -> Path:
    if not ENTRY.fullmatch(name) or ".." in PurePosixPath(name).parts:
        raise ValueError(f"its entry {name[:100]!r} is no file of a study")
    return folder / name


def require_count(count: int) -> None:
    if count > MOST_ENTRIES:
        raise ValueError(f"it has {count:,} entries, and at most {MOST_ENTRIES:,} are read")


def remaining(left: int, size: int) -> int:
    if size > left:
        raise ValueError(f"it holds more than {MOST_BYTES:,} bytes")
    return left - size
