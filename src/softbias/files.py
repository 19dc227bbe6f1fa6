"""Files that are whole or absent: everything we write goes to a temporary file first, which then takes its name.

write_text(path, text)
with replacing(path) as temporary:      # for a library that wants a path
    numpy.savez(temporary, …)
with open_regular(path) as stream:      # for reading: never a pipe or a device, which could keep us waiting
    …

A file is on the disk before it takes its name, and the folder is synced after it did, so that a power cut leaves the old file
or the new one. The names of temporary files hold the number of the process and a random part: nobody can put a link in their
way, and `remove_stale` recognizes those that a kill left.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedReader
from pathlib import Path

from softbias.errors import SoftbiasError

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")  # also as wide characters
TEMPORARY = re.compile(r"\..+\.(\d+)-[0-9a-f]{16}\.tmp(\..*)?", re.DOTALL)
STALE = 3600.0  # seconds after which a temporary file belongs to nobody, even if its process's number is in use again
SPECIAL = {
    stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip
NOT_UTF8 = re.compile("[\udc80-\udcff]")  # as Python decodes bytes of a file name that are no UTF-8
NEVER_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # code points that no file name has and no encoding takes


class NotAFileError(SoftbiasError):
    """A path that is no regular file. kind: folder, pipe, socket or device."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, kind)  # both, so that it can be pickled
        self.path, self.kind = path, kind

    def __str__(self) -> str:
        return f"{self.path} is a {self.kind}, not a file"


def csv_cell(text: str) -> str:
    """Text for a CSV file that a spreadsheet does not take for a formula: one that begins like a formula gets an apostrophe.

    So does one that begins with an apostrophe. Who removes one from the front of every cell has the exact text again.

    >>> csv_cell("=1+1"), csv_cell("'quoted'"), csv_cell("rose")
    ("'=1+1", "''quoted'", 'rose')
    """
    return f"'{text}" if text.startswith(FORMULA) else text


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

    The suffix stays, because libraries choose a format by it. The file gets the mode that the umask gives, whatever the
    library chose. An OSError names `path`, and not the temporary file, of which the user knows nothing.
    """
    temporary = temporary_name(path)
    try:
        mode = create(temporary)
        yield temporary
        temporary.chmod(mode)  # safetensors gives its files to their owner alone
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        rename_in(error, temporary, path)
        raise


def rename_in(error: BaseException, temporary: Path, path: Path) -> None:
    """Let an OSError name the path that the user knows, and not the temporary one."""
    if isinstance(error, OSError) and error.filename is not None:
        given = os.fsdecode(error.filename)
        if given == str(temporary) or given.startswith(f"{temporary}{os.sep}"):
            error.filename, error.filename2 = f"{path}{given.removeprefix(str(temporary))}", None


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, which at the end is synced with its files and replaces `path`; on an error it is removed."""
    temporary, old = temporary_name(path), temporary_name(path)
    try:
        make_folder(path.parent)
        temporary.mkdir()
        yield temporary
        sync_folder(temporary)
        if path.exists():
            path.rename(old)  # removed when the new one is in place
        temporary.rename(path)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        rename_in(error, temporary, path)
        raise


@contextmanager
def adding_to_folder(path: Path) -> Iterator[Path]:
    """A new folder inside `path`, whose files at the end are synced and move into `path`, where they replace others."""
    temporary = temporary_name(path / "new")
    try:
        make_folder(path)
        temporary.mkdir()
        yield temporary
        sync_folder(temporary)
        for each in sorted(temporary.iterdir()):
            each.replace(path / each.name)
        temporary.rmdir()
        sync(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        rename_in(error, temporary, path)
        raise


def sync_folder(folder: Path) -> None:
    """Give the files of a new folder the mode of the umask, and wait until all is on the disk."""
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for each in (*folder.rglob("*"), folder):
        if each.is_file():
            each.chmod(mode)
        sync(each)


def remove_folder(path: Path) -> None:
    """Remove a folder that readers trust; it is renamed first, so that a kill leaves no half of it under its name."""
    shutil.rmtree(path.rename(temporary_name(path)), ignore_errors=True)


def require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written to, before long work whose result belongs there. Nothing stays behind."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SoftbiasError(f"{folder} cannot be written to ({error.strerror}); choose another --out") from error
    finally:
        for path in absent:
            with suppress(OSError):  # another process may use it already
                path.rmdir()


def remove_empty(folders: Iterable[Path], but: str) -> None:
    """Remove folders, the innermost first, in which there is nothing, or nothing `but` a file of this name."""
    for folder in folders:
        with suppress(OSError):  # it is not there, or another process uses it
            if {each.name for each in folder.iterdir()} <= {but}:
                (folder / but).unlink(missing_ok=True)
                folder.rmdir()


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Text in UTF-8; parts of file names that are no UTF-8 are escaped, see `escaped`."""
    write_bytes(path, escaped(text).encode("utf-8"))


def escaped(text: str | Path) -> str:
    """A name or a text that can be printed and written: bytes of a file name that are no UTF-8 are escaped.

    >>> print(escaped(os.fsdecode(b"caf\\xe9.png")))
    caf\\xe9.png
    """
    return NOT_UTF8.sub(
        lambda found: ascii(os.fsencode(found[0]))[2:-1], NEVER_TEXT.sub(lambda found: ascii(found[0])[1:-1], str(text))
    )


def temporary_name(path: Path) -> Path:
    """
    >>> TEMPORARY.fullmatch(temporary_name(Path("model.safetensors")).name) is not None
    True
    """
    return path.with_name(f".{path.stem[:40]}.{os.getpid()}-{secrets.token_hex(8)}.tmp{path.suffix}")


def create(path: Path) -> int:
    """Create an empty file, which must not exist, not even as a link; its mode, as the umask gives it."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, each on the disk before the next."""
    if not path.is_dir():
        if path.parent != path:
            make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def remove_stale(folder: Path) -> list[Path]:
    """Remove the temporary files and folders that a killed process left anywhere below a folder, and return them."""
    removed = []
    for path in list(folder.rglob(".*")) if folder.is_dir() else ():
        match = TEMPORARY.fullmatch(path.name)
        if match is None or is_in_use(path, int(match[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def is_in_use(path: Path, process: int) -> bool:
    """Whether another process that lives may still write a temporary file."""
    try:
        age = time.time() - path.lstat().st_mtime
    except FileNotFoundError:  # it was inside a folder that is gone, or has its name by now
        return True
    if process == os.getpid() or age > STALE:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk; not every file system can do so for a folder."""
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_text(path: Path) -> str:
    """The text of a regular file, in UTF-8."""
    with open_regular(path) as stream:
        return stream.read().decode("utf-8")
