"""Whether files are as they were written: a folder's SHA256SUMS lists the checksums of its files.

    write_checksums(folder, ["config.json", "model.safetensors"])
    verify_checksums(folder, ["config.json"])       # DamagedError where a listed file is gone or has changed

`sha256sum -c SHA256SUMS` verifies a folder, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from softbias.errors import SoftbiasError
from softbias.files import NotAFileError, open_regular, read_text, write_text

CHECKSUMS = "SHA256SUMS"


class DamagedError(SoftbiasError):
    """A file that is not what was written, or is gone."""


def sha256(path: Path) -> str:
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write SHA256SUMS for files of a folder, as the program sha256sum reads it."""
    write_text(folder / CHECKSUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in names))


def verify_checksums(folder: Path, needed: Iterable[str]) -> None:
    """DamagedError unless SHA256SUMS lists the needed files, and all files that it lists are as they were written."""
    kept = read_checksums(folder)
    missing = [name for name in needed if name not in kept]
    if missing or any(Path(name).name != name for name in kept):
        problem = f"it does not list {', '.join(missing)}" if missing else "it lists files outside the folder"
        raise DamagedError(f"{folder / CHECKSUMS} is damaged: {problem}")
    for name in kept:
        if not (folder / name).is_file():
            raise DamagedError(f"{folder / name} is gone, although {CHECKSUMS} lists it")
        verify_file(folder / name)


def verify_file(path: Path) -> None:
    """DamagedError if a SHA256SUMS beside the file lists it with another checksum."""
    if (path.parent / CHECKSUMS).is_file() and read_checksums(path.parent).get(path.name) not in (None, sha256(path)):
        raise DamagedError(f"{path} is damaged: its checksum is not the one in {CHECKSUMS}")


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksums in a SHA256SUMS by the names of the files."""
    try:
        lines = read_text(folder / CHECKSUMS).splitlines()
    except (FileNotFoundError, UnicodeDecodeError, NotAFileError) as error:
        reason = "it is gone" if isinstance(error, FileNotFoundError) else "it is no text file"
        raise DamagedError(f"the files in {folder} cannot be verified by its {CHECKSUMS}: {reason}") from error
    rows = [re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line) for line in lines]
    return {row[2]: row[1] for row in rows if row is not None}
