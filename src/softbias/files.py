"""Files that are whole or absent: everything we write goes to a temporary file first, which then takes its name.

write_text(path, text)
with replacing(path) as temporary:      # for a library that wants a path
    numpy.savez(temporary, …)
with open_regular(path) as stream:      # for reading: never a pipe or a device, which could keep us waiting
    …
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from softbias.errors import SoftbiasError

SPECIAL = {
    stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


class NotAFileError(SoftbiasError):
    """A path that is no regular file. kind: folder, pipe, socket or device."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, kind)  # both, so that it can be pickled
        self.path, self.kind = path, kind

    def __str__(self) -> str:
        return f"{self.path} is a {self.kind}, not a file"


def special_kind(mode: int) -> str | None:
    """The kind of what is no regular file, from the mode that the system states for it."""
    return None if stat.S_ISREG(mode) else SPECIAL.get(stat.S_IFMT(mode), "special file")


def open_regular(path: str | Path) -> BufferedReader:
    """A regular file, open for reading.

    Anything else is refused before it is opened: opening a pipe waits for a writer, and opening a device may do things. If
    the file is replaced by a pipe in between, O_NONBLOCK returns at once, and the second look refuses it.
    """
    require_regular(path, os.stat(path).st_mode)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        require_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(path: str | Path, mode: int) -> None:
    kind = special_kind(mode)
    if kind is not None:
        raise NotAFileError(str(path), kind)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which at the end is synced and replaces `path`; on an error it is removed.

    Each process has a name of its own, so that two of them may write the same file. The suffix stays, because libraries
    choose a format by it. An OSError names `path`, and not the temporary file, of which the user knows nothing.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    with suppress(FileNotFoundError):
        temporary.unlink()  # a link that somebody put there would be followed
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is not None and os.fspath(error.filename) == str(temporary):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new folder `<path>.tmp`, which at the end is synced with its files and replaces `path`; on an error it is removed."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for each in (*temporary.rglob("*"), temporary):
            sync(each)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
