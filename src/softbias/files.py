"""Files that are whole or absent: everything we write goes to a temporary file first, which then takes its name.

write_text(path, text)
with replacing(path) as temporary:      # for a library that wants a path
    numpy.savez(temporary, …)
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
