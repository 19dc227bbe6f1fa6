"""The arrays in an .npz file or in a folder of .npy files. Nothing in them is ever unpickled.

The header of an array is read before memory is taken for it, and compared with the size of its file: a few bytes can claim
hundreds of terabytes.
"""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from softbias.data.listing import some
from softbias.errors import SoftbiasError, in_one_line
from softbias.files import open_regular, require_regular

DEFLATE = 1032  # bytes at most that one compressed byte stands for
DAMAGE = (  # what zipfile and numpy raise on damaged files
    OSError, ValueError, EOFError, KeyError, MemoryError, OverflowError, RecursionError, SyntaxError, NotImplementedError,
    RuntimeError, TypeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


class ArrayFiles:
    """The arrays of an .npz file, or of a folder of .npy files, by name; a header is checked before its array is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self.names = [file.stem for file in sorted(path.glob("*.npy")) if file.is_file()]
            return
        if path.suffix.lower() == ".npy":
            raise SoftbiasError(f"{path} is one array; give the folder that holds images.npy and labels.npy")
        try:
            require_regular(path, path.stat().st_mode)
            self.zip = zipfile.ZipFile(path)
        except DAMAGE as error:
            raise SoftbiasError(f"{path} cannot be read as .npz: {in_one_line(error)}") from error
        self.names = [name.removesuffix(".npy") for name in self.zip.namelist() if name.endswith(".npy")]

    def __enter__(self) -> ArrayFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.zip is not None:
            self.zip.close()

    def read(self, name: str) -> NDArray[Any]:
        """One array; from a folder it is a memory map."""
        if name not in self.names:
            raise SoftbiasError(f"{self.path}: the array {name} is missing; it has {some(self.names) or 'none'}")
        try:
            return self._mapped(self.path / f"{name}.npy") if self.zip is None else self._unpacked(self.zip, f"{name}.npy")
        except DAMAGE as error:
            reason = "too large for the memory" if isinstance(error, MemoryError) else in_one_line(error)
            raise SoftbiasError(f"{self.path}: the array {name} cannot be read: {reason}") from error

    def _mapped(self, file: Path) -> NDArray[Any]:
        with open_regular(file) as stream:
            require_size(stream, os.fstat(stream.fileno()).st_size)
        mapped: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        return mapped

    def _unpacked(self, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
        entry = archive.getinfo(name)
        packed = min(entry.compress_size, self.path.stat().st_size)  # the archive states the former, and may be wrong
        factor = 1 if entry.compress_type == zipfile.ZIP_STORED else DEFLATE
        if entry.file_size > factor * packed:
            raise SoftbiasError(f"it claims {entry.file_size:,} bytes, but {packed:,} bytes of the file cannot hold them")
        with archive.open(name) as member:
            claimed = require_size(member, entry.file_size)
        if claimed > memory():
            raise SoftbiasError(f"it needs {claimed / 1e9:,.1f} GB, but this machine has {memory() / 1e9:,.1f} GB of memory")
        with archive.open(name) as member:
            array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            return array


def require_size(member: IO[bytes], size: int) -> int:
    """The number of bytes of an array. One whose header states more than its file of `size` bytes has is refused, before memory
    is taken for it."""
    version = npy.read_magic(member)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(member)
    if dtype.hasobject:
        raise SoftbiasError("it holds Python objects, which are never unpickled")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed > size - member.tell():
        raise SoftbiasError(
            f"its header states {dtype} of shape {shape}, {claimed:,} bytes, but the file has {size - member.tell():,}"
        )
    return claimed


def memory() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 2**63
