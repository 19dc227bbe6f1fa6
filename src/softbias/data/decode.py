"""Picture files to RGB bytes of a given size, whatever the files are.

JPEG, PNG, WebP, TIFF, BMP, GIF (first frame), PNM, JPEG 2000, AVIF, and HEIC where the package pillow-heif is installed.
`modes` says what becomes of unusual ones.

A file that cannot be read raises BrokenImageError with a short reason, whatever Pillow raised. Threads decode many files at
once (`in_order`), because Pillow releases the interpreter while it decodes and resizes.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from softbias import environment
from softbias.bounds import ValueRange
from softbias.data.modes import UPRIGHT, orientation_of, to_rgb
from softbias.data.resizing import Images, check_resize_mode, resized
from softbias.errors import SoftbiasError
from softbias.files import NotAFileError, open_regular

Item = TypeVar("Item")
Result = TypeVar("Result")
VERSION = 1  # part of the cache's key: raise it when decode gives other bytes than before
MAX_AREA = 178_956_970  # where Pillow refuses as well: a small file that unpacks to more is an attack or a mistake
MAX_BYTES = 2**32  # where the offsets in a TIFF file end
FORMATS = (  # not EPS, which runs code
    "JPEG", "MPO", "PNG", "WEBP", "TIFF", "BMP", "DIB", "GIF", "PPM", "JPEG2000", "AVIF", "HEIF",
)  # fmt: skip
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
THUMBNAIL = 16
COPY_SIZE = (2 * THUMBNAIL, 2 * THUMBNAIL)  # that a JPEG is decoded for before it becomes a thumbnail


class BrokenImageError(SoftbiasError):
    """A file that gives no picture. kind: missing, unreadable, zero bytes, not a picture, truncated, broken, oversized."""

    def __init__(self, path: str, reason: str, kind: str = "broken") -> None:
        super().__init__(path, reason, kind)  # all three, so that it can be pickled
        self.path, self.reason, self.kind = path, reason, kind

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnsupportedImageError(BrokenImageError):
    """A file that needs a package that is not installed. kind: unsupported."""

    def __init__(self, path: str, reason: str, kind: str = "unsupported") -> None:
        super().__init__(path, reason, kind)


@dataclass(frozen=True)
class Loaded:
    """A decoded picture, upright and in RGB, with the mode of its file and its (width, height), upright.

    reduced   by how much a JPEG was reduced while it was decoded: 1, 2, 4 or 8
    """

    image: Image.Image
    mode: str
    size: tuple[int, int]
    reduced: int = 1
    is_jpeg: bool = False


def decode(
    path_or_file: str | Path | IO[bytes],
    size: tuple[int, int],
    resize_mode: str = "crop",
    value_range: ValueRange | None = None,
) -> Images:
    """One picture as (height, width, 3) bytes in RGB; transparent parts become white.

    size          (height, width)
    resize_mode   what happens to the aspect ratio: crop, pad or stretch
    value_range   what is black and white in a picture of more than eight bits
    """
    check_resize_mode(resize_mode)
    return np.array(resized(load(path_or_file, wanted=size, value_range=value_range).image, size, resize_mode))


class DecodedFile(NamedTuple):
    """What is kept of a file.

    small   the thumbnail, if copies are to be found
    whole   the whole picture as a square, if crops are to be cut from it; aspect: width / height of the picture itself
    """

    image: Images
    small: Images | None = None
    whole: Images | None = None
    aspect: float = 1.0


def decode_or_error(
    file: Path,
    size: tuple[int, int],
    resize_mode: str,
    copies: bool = False,
    whole: int | None = None,
    value_range: ValueRange | None = None,
) -> DecodedFile | BrokenImageError:
    """`decode`, or the error where the file cannot be read. whole: the side of the whole picture, if it is kept, too."""
    try:
        wanted = size if whole is None else (max(size[0], whole), max(size[1], whole))
        loaded = load(file, wanted=wanted, value_range=value_range)
        image = np.array(resized(loaded.image, size, resize_mode))
        small = thumbnail(file, loaded) if copies else None
        if whole is None:
            return DecodedFile(image, small)
        square = np.array(resized(loaded.image, (whole, whole), "stretch"))
        return DecodedFile(image, small, square, loaded.size[0] / loaded.size[1])
    except BrokenImageError as error:
        return error


def enough(width: int, height: int, wanted: tuple[int, int]) -> tuple[int, int]:
    """The (width, height) that a JPEG must be decoded at to be resized to `wanted` without loss: twice as much, covering it."""
    twice = 2 * max(wanted[1] / width, wanted[0] / height)
    return math.ceil(twice * width), math.ceil(twice * height)


def thumbnail(file: str | Path | IO[bytes], loaded: Loaded | None = None, name: str | None = None) -> Images:
    """A 16 × 16 version, by which copies are recognized. It depends on the file alone, not on the size that one trains at.

    loaded   the picture at another size, which serves where it was decoded just as it would be for this
    """
    if loaded is not None:
        asked = enough(*loaded.size, COPY_SIZE)
        least = min(loaded.size[0] // asked[0], loaded.size[1] // asked[1])
        if loaded.is_jpeg and loaded.reduced != max(factor for factor in (1, 2, 4, 8) if factor <= max(1, least)):
            loaded = None
    loaded = loaded or load(file, wanted=COPY_SIZE, name=name)
    return np.array(resized(loaded.image, (THUMBNAIL, THUMBNAIL), "stretch"))


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Generator[Result, None, None]:
    """function(item) for each item, in order, computed by threads a few items ahead, and never all of them in memory.

    Pillow's warnings (damaged EXIF, large pictures) are silent meanwhile: `decode` has its own limit. The filter is set
    here and not in the function, because that is not safe in threads.
    """
    workers = workers or 2 * environment.count_cores()
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[Result]] = deque()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def load(
    path_or_file: str | Path | IO[bytes],
    wanted: tuple[int, int] | None = None,
    name: str | None = None,
    value_range: ValueRange | None = None,
) -> Loaded:
    """Open and decode one picture.

    wanted        (height, width) that it will be resized to: a large JPEG is then decoded at a half, quarter or eighth of
                  its size, but never below twice that
    name          for messages; by default its path
    value_range   what is black and white in a picture of more than eight bits
    """
    name = name or str(path_or_file if isinstance(path_or_file, str | Path) else getattr(path_or_file, "name", "a stream"))
    try:
        with open_regular(path_or_file) if isinstance(path_or_file, str | Path) else nullcontext(path_or_file) as file:
            require_bytes(file, name)
            try:
                return _load(file, wanted, name, value_range)
            except (OSError, SyntaxError, ValueError) as error:
                if not isinstance(error, BrokenImageError | UnidentifiedImageError) and _lacks_its_end(file):
                    raise BrokenImageError(name, "is truncated: its end is missing", "truncated") from error
                raise
    except BrokenImageError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds on damaged files, and none of them may stop a whole set
        raise BrokenImageError(name, *reason_of(error)) from error


def require_bytes(file: IO[bytes], name: str) -> None:
    """Refuse a file that is longer than any picture that is read here, such as one with a hole of a terabyte."""
    length = file.seek(0, os.SEEK_END)
    file.seek(0)
    if length > MAX_BYTES:
        raise BrokenImageError(name, f"has {length:,} bytes, more than {MAX_BYTES:,}", "oversized")


@functools.cache
def heif_available() -> bool:
    """Whether HEIC can be read: pillow-heif is installed, and Pillow knows it from now on."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _load(file: IO[bytes], wanted: tuple[int, int] | None, name: str, value_range: ValueRange | None) -> Loaded:
    head = file.read(16)
    if not head:
        raise BrokenImageError(name, "has zero bytes", "zero bytes")
    heif = head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS
    heif_ready = heif and heif_available()
    Image.init()
    file.seek(0)
    try:
        image = Image.open(file, formats=[kind for kind in FORMATS if kind in Image.OPEN])
    except UnidentifiedImageError as error:
        if heif and not heif_ready:
            raise UnsupportedImageError(name, "HEIC needs the package pillow-heif: pip install 'softbias[heif]'") from error
        raise
    mode, width, height = image.mode, image.width, image.height
    if width * height > MAX_AREA:
        raise BrokenImageError(name, f"has {width} × {height} pixels, more than {MAX_AREA:,}", "oversized")
    jpeg = image.format in ("JPEG", "MPO")
    reduced = 1
    if jpeg and wanted:
        across, down = (height, width) if orientation_of(image) >= 5 else (width, height)
        asked = enough(across, down, wanted)
        image.draft(None, asked if (across, down) == (width, height) else asked[::-1])
        reduced = round(width / image.width)
    image.load()
    orientation = orientation_of(image)  # only now: this would load a PNG and hide its error, and a TIFF turns itself
    rgb = to_rgb(image, value_range)
    upright = rgb.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else rgb
    if jpeg:
        return Loaded(upright, mode, (height, width) if orientation >= 5 else (width, height), reduced, is_jpeg=True)
    return Loaded(upright, mode, upright.size)


def reason_of(error: Exception) -> tuple[str, str]:
    """A short reason and its kind."""
    text = str(error).split("\n")[0][:100] or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "does not exist", "missing"
    if isinstance(error, PermissionError):
        return "may not be read: permission denied", "unreadable"
    if isinstance(error, NotAFileError) and error.kind == "folder" and not os.access(error.path, os.R_OK | os.X_OK):
        return "is a folder that may not be read: permission denied", "unreadable"
    if isinstance(error, NotAFileError):
        return f"is a {error.kind}, not a file", "not a picture"
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "is a link that leads to itself", "missing"
    if isinstance(error, UnidentifiedImageError):
        return "is not a picture, or of a kind that is not read here", "not a picture"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning | MemoryError):
        return f"has too many pixels, more than {MAX_AREA:,}", "oversized"
    if isinstance(error, EOFError):
        return "is truncated: its end is missing", "truncated"
    return f"is broken: {text}", "broken"


def _lacks_its_end(file: IO[bytes]) -> bool:
    """Whether a JPEG or PNG file has no end marker near its end, or a WebP file is shorter than its header states."""
    file.seek(0)
    head = file.read(12)
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - 1024))
    tail = file.read()
    if head.startswith(b"\xff\xd8"):
        return b"\xff\xd9" not in tail
    if head.startswith(b"\x89PNG"):
        return b"IEND" not in tail
    return head.startswith(b"RIFF") and length < 8 + int.from_bytes(head[4:8], "little")
