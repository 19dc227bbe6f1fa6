"""The zip file of a packed study, and the folder that it becomes again for as long as it is read.

    write_archive(folder, file, times)
    with unpacked("flowers.zip") as folder: …

The texts of all runs lie in one entry, runs.tar, files of a kind beside each other: compressed together, they are half as
large. It is a plain tar; a text whose name is too long for one is an entry of its own. So are all files in older archives.

The same folder always makes the same bytes: files are sorted, and their time is that at which their run was finished.
Files of the same content are stored once; same.json names the others, and the one that each of them equals.
"""

from __future__ import annotations

import calendar
import io
import json
import lzma
import os
import re
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from softbias.errors import SoftbiasError, in_one_line
from softbias.files import require_regular
from softbias.json_file import read_json
from softbias.schema import from_plain

SUFFIX = ".zip"
SAME = "same.json"
RUNS, RUNS_TAR = "runs", "runs.tar"
COMPRESSED = (".npz", ".png")  # files that gain nothing beside others
BLOCK, LONGEST_NAME = 512, 100  # bytes in a plain tar
ENTRY = re.compile(r"[\w.+-]+(/[\w.+-]+){0,4}")
MOST_ENTRIES, MOST_BYTES = 200_000, 2 * 2**30  # of a file that is unpacked
EARLIEST, LATEST = calendar.timegm((1980, 1, 1, 0, 0, 0)), calendar.timegm((2107, 12, 31, 23, 59, 59))  # time of an entry
DAMAGE = (
    OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    tarfile.TarError,
)  # fmt: skip

File = tuple[str, bytes, float]  # its name, what it holds, and its time


def write_archive(folder: Path, file: Path, times: Mapping[str, float]) -> None:
    """times: when runs were finished, by the names of their folders"""
    stored: dict[bytes, str] = {}
    same: dict[str, str] = {}
    texts: list[File] = []
    latest = max(times.values())
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            relative, content = path.relative_to(folder), path.read_bytes()
            name, of_run = relative.as_posix(), relative.parts[0] == RUNS
            seconds = times[relative.parts[1]] if of_run else latest
            first = stored.setdefault(content, name)
            if first != name:
                same[name] = first
            elif of_run and path.suffix not in COMPRESSED and len(name.encode()) <= LONGEST_NAME:
                texts.append((name, content, seconds))
            else:
                add(archive, name, content, seconds)
        if texts:
            texts.sort(key=lambda text: (text[0].split("/")[2:], text[0]))  # by the file's name, then by run
            add(archive, RUNS_TAR, plain_tar(texts), latest)
        if same:
            add(archive, SAME, (json.dumps(same, indent=0) + "\n").encode(), latest)


def add(archive: zipfile.ZipFile, name: str, content: bytes, seconds: float) -> None:
    entry = zipfile.ZipInfo(name, time.gmtime(max(seconds, EARLIEST))[:6])
    entry.compress_type = zipfile.ZIP_LZMA
    archive.writestr(entry, content)


def plain_tar(files: Iterable[File]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, seconds in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), int(max(seconds, EARLIEST))
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def tar_files(tar: bytes) -> Iterator[File]:
    """The files of runs in a plain tar. Anything else in it is refused, and so is a tar without its end."""
    start = 0
    while (header := tar[start : start + BLOCK]) != bytes(BLOCK):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        start += BLOCK
        regular = member.type == tarfile.REGTYPE and 0 <= member.size <= len(tar) - start
        if not regular or not member.name.startswith(f"{RUNS}/") or not EARLIEST <= member.mtime <= LATEST:
            raise ValueError(f"{member.name[:100]!r} in {RUNS_TAR} is no file of a run")
        yield member.name, tar[start : start + member.size], member.mtime
        start += -(-member.size // BLOCK) * BLOCK


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
    """Write the files and their copies; the sizes that an archive claims are not trusted, and no file leaves the folder."""
    entries, left = archive.infolist(), MOST_BYTES
    require_count(len(entries))
    stored: set[str] = set()
    for entry in entries:
        with archive.open(entry) as stream:
            content = stream.read(left + 1)
        left = remaining(left, len(content))  # which bounds the files of a tar, too: they are its parts
        alone = [(entry.filename, content, calendar.timegm(entry.date_time))]
        for name, part, seconds in tar_files(content) if entry.filename == RUNS_TAR else alone:
            if name in stored:
                raise ValueError(f"it has {name[:100]!r} twice")
            stored.add(name)
            require_count(len(stored))
            write(inside(folder, name), part, seconds)
    if not (folder / SAME).is_file():
        return
    same = from_plain(dict[str, str], read_json(folder / SAME), SAME)
    require_count(len(stored) + len(same))
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
