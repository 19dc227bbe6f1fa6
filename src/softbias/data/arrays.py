"""Pictures that are numbers already: an .npz file, or a folder of .npy files. See `array_files`.

    images, labels                                     one set, no splits (also x, y)
    train_images, train_labels, test_images, …         splits as given (also x_train, y_train, …; val or valid)
    class_names                                        optional (also classes; in a folder, classes.json)

Images: (N, H, W), (N, H, W, 1 | 3 | 4) or channels first; bytes in any integer type, floats from 0 to 1, and 16-bit, where all
training pictures decide what is white (`value_range`). With a range that is named, numbers of any type.
Labels: whole numbers or strings; without class names the values that occur are the classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from softbias.bounds import ValueRange
from softbias.data.array_files import ArrayFiles
from softbias.data.dataset import Dataset
from softbias.data.folders import natural
from softbias.data.listing import SPLIT_NAMES, refuse_unlearned_classes, some
from softbias.data.value_range import SAMPLE, ends, range_of, to_bytes
from softbias.errors import SoftbiasError, in_one_line
from softbias.files import escaped
from softbias.json_file import read_json
from softbias.notes import Note
from softbias.schema import from_plain

IMAGES = ("images", "x")
LABELS = ("labels", "label", "y")
NAMES = ("class_names", "classes")
CLASSES_FILE = "classes.json"
LARGEST = 2**53  # of a label; up to here floats are exact


class FineClasses(TypedDict):
    fine: tuple[str, ...]


def is_array_folder(path: Path) -> bool:
    """Whether a folder holds pictures as .npy, rather than pictures with some array beside them."""
    keys = {key for name in IMAGES for alias in SPLIT_NAMES for key in (name, f"{alias}_{name}", f"{name}_{alias}")}
    return path.is_dir() and any(file.stem.casefold() in keys for file in path.glob("*.npy"))


def read_class_names(path: Path) -> tuple[str, ...]:
    """classes.json: a list of names, or {"fine": a list of names}."""
    content = read_json(path)
    if isinstance(content, dict):
        return from_plain(FineClasses, content, str(path))["fine"]
    return from_plain(tuple[str, ...], content, str(path))


def read_arrays(path: str | Path, value_range: ValueRange | None = None) -> Dataset:
    """The set in an .npz file or a folder of .npy files. Where the arrays name no splits, the Dataset has none.

    value_range   what is black and white; None: the training pictures decide
    """
    path = Path(path)
    named = value_range is not None
    with ArrayFiles(path) as arrays:
        given = {name.casefold(): name for name in arrays.names}
        pairs = _pairs(path, given)
        raw = {key: arrays.read(key) for _, key, _ in pairs}
        deep = any(values.dtype not in (np.uint8, np.bool_) for values in raw.values())
        value_range = value_range or array_range([raw[key] for split, key, _ in pairs if split in ("", "train")])
        images: list[NDArray[np.uint8]] = []
        labels: list[NDArray[Any]] = []
        splits: dict[str, NDArray[np.int64]] = {}
        start = 0
        for split, image_key, label_key in pairs:
            part = as_images(raw.pop(image_key), f"{path}: {image_key}", value_range)
            if not len(part):
                raise SoftbiasError(f"{path}: {image_key} has no pictures; leave the array out, or add some")
            part_labels = _as_labels(arrays.read(label_key), f"{path}: {label_key}")
            if len(part) != len(part_labels):
                raise SoftbiasError(
                    f"{path}: {image_key} has {len(part)} pictures, but {label_key} has {len(part_labels)} labels"
                )
            if images and part.shape[1:] != images[0].shape[1:]:
                sizes = f"{part.shape[1:3]} beside {images[0].shape[1:3]}"
                raise SoftbiasError(f"{path}: all pictures need one size, but {image_key} has {sizes}")
            images.append(part)
            labels.append(part_labels)
            if split:
                splits[split] = np.arange(start, start + len(part))
            start += len(part)
        key = next((given[name] for name in NAMES if name in given), None)
        names = None if key is None else as_text(arrays.read(key).ravel(), f"{path}: {key}")
    if path.is_dir() and (path / CLASSES_FILE).is_file():
        names = list(read_class_names(path / CLASSES_FILE))
    if names is not None:
        require_names(names, f"{path}: the class names")
    numbers, class_names, notes = _number(path, np.concatenate(labels), names)
    if value_range is not None and deep:
        notes = (*notes, Note("value-range", {"low": value_range[0], "high": value_range[1], "named": named}))
    elif named:
        notes = (*notes, Note("value-range-unused"))
    if len(numbers) < 2 or len(class_names) < 2:
        raise SoftbiasError(
            f"{path}: a classifier needs at least two pictures and two classes, but there are {len(numbers)} "
            f"and {len(class_names)}"
        )
    if splits:
        split_names = [name for name, indices in splits.items() for _ in indices]
        refuse_unlearned_classes(path, [class_names[number] for number in numbers], split_names)
    everything = images[0] if len(images) == 1 else np.concatenate(images)
    return Dataset(path.stem, everything, numbers, class_names, splits, notes=notes, value_range=value_range)


def array_range(arrays: Iterable[NDArray[Any]]) -> ValueRange | None:
    """The range of all arrays of 16 bits together; None where there are none, or where they hold bytes."""
    deep = [values for values in arrays if values.dtype == np.uint16 and values.size]
    looks = (values[np.linspace(0, len(values) - 1, min(len(values), SAMPLE)).round().astype(int)] for values in deep)
    return range_of(filter(None, (ends(image) for images in looks for image in images)))


def as_images(values: NDArray[Any], what: str = "images", value_range: ValueRange | None = None) -> NDArray[np.uint8]:
    """Any usual array of pictures as (N, H, W, 3) bytes; alpha is laid on white.

    value_range   what is black and white in numbers that are not bytes
    """
    if values.ndim == 3:
        values = values[..., None]
    if values.ndim == 4 and values.shape[-1] not in (1, 3, 4) and values.shape[1] in (1, 3, 4):
        values = np.moveaxis(values, 1, -1)
    if values.ndim != 4 or values.shape[-1] not in (1, 3, 4) or 0 in values.shape[1:]:
        raise SoftbiasError(
            f"{what} must be (N, H, W), (N, H, W, 1, 3 or 4) or (N, 1, 3 or 4, H, W), but its shape is {values.shape}"
        )
    images = _as_bytes(values, what, value_range or array_range([values]))
    if images.shape[-1] == 4:
        alpha = images[..., 3:].astype(np.uint16)
        images = ((images[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else np.ascontiguousarray(images)


def as_text(values: NDArray[Any], what: str) -> list[str]:
    """Names out of an array of strings, or of whole numbers."""
    if values.dtype.kind not in "iubUS":
        raise SoftbiasError(f"{what} must be strings or whole numbers, but is {values.dtype}")
    try:
        plain = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        return [str(value) for value in plain.tolist()]
    except (UnicodeDecodeError, SystemError, ValueError) as error:  # bytes in another encoding; no code points
        raise SoftbiasError(f"{what} must be text in UTF-8, but is not: {in_one_line(error)}") from error


def require_names(names: Sequence[str], what: str) -> None:
    """Refuse class names that cannot be told from each other, or cannot be written."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SoftbiasError(f"{what} must differ, but {some(twice)} stands there more than once")
    wrong = [name for name in names if not name.strip() or escaped(name) != name]
    if wrong:
        raise SoftbiasError(f"{what} must be text that can be written, but there is {escaped(wrong[0])!r}")


def _as_bytes(values: NDArray[Any], what: str, value_range: ValueRange | None) -> NDArray[np.uint8]:
    if values.dtype.kind not in "biuf":
        raise SoftbiasError(f"{what} must be numbers: bytes (uint8), or floats between 0 and 1, but is {values.dtype}")
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if value_range is not None:
        return to_bytes(values, value_range)
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if np.issubdtype(values.dtype, np.integer) and low >= 0 and high <= 255:
        return values.astype(np.uint8)
    if np.issubdtype(values.dtype, np.floating) and low >= 0 and high <= 1:  # NaN fails both
        return np.round(values * 255).astype(np.uint8)
    raise SoftbiasError(
        f"{what} must be bytes (uint8), or floats between 0 and 1, but is {values.dtype} from {low} to {high}; "
        "undo any normalization and save it as uint8, or name what is black and white (--value-range, value_range)"
    )


def _as_labels(values: NDArray[Any], what: str) -> NDArray[Any]:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise SoftbiasError(
            f"{what} must have one label per picture, but its shape is {values.shape}; one-hot rows need .argmax(1)"
        )
    if values.dtype.kind == "f" and np.all(np.abs(values) < LARGEST) and np.all(values == np.floor(values)):
        values = values.astype(np.int64)
    if values.dtype.kind in "SU":
        return np.array(as_text(values, what), np.str_)
    if values.dtype.kind not in "iub" or (len(values) and values.max() >= LARGEST):
        given = f"{values.dtype} from {values.min()} to {values.max()}" if values.dtype.kind in "fiu" else str(values.dtype)
        raise SoftbiasError(f"{what} must be whole numbers from 0 on, or strings, but is {given}")
    return values


def _number(
    path: Path, labels: NDArray[Any], named: list[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...], tuple[Note, ...]]:
    """Labels counted from 0, class names, and a note where numbers had to change."""
    if labels.dtype.kind == "U":
        names = sorted({str(label) for label in labels}, key=natural) if named is None else named
        require_names(names, f"{path}: labels")
        number = {name: index for index, name in enumerate(names)}
        unknown = sorted({str(label) for label in labels} - set(names))
        if unknown:
            raise SoftbiasError(f"{path}: the labels {some(unknown)} are not among the class names {some(names)}")
        return np.array([number[str(label)] for label in labels], np.int64), tuple(names), ()
    labels = labels.astype(np.int64)
    if len(labels) and labels.min() < 0:
        raise SoftbiasError(f"{path}: labels count from 0, but the smallest is {labels.min()}; leave unlabeled pictures out")
    if named is not None:
        if len(labels) and labels.max() >= len(named):
            raise SoftbiasError(
                f"{path}: {len(named)} class names allow the labels 0 to {len(named) - 1}, "
                f"but they go from {labels.min()} to {labels.max()}"
            )
        without = sorted(set(range(len(named))) - set(labels.tolist()))
        note = Note("classes-without-pictures", {"classes": [named[label] for label in without]})
        return labels, tuple(named), (note,) if without else ()
    values, numbers = np.unique(labels, return_inverse=True)
    dense = len(values) == 0 or values[-1] == len(values) - 1
    about = {} if dense else {"count": len(values), "first": int(values[0]), "last": int(values[-1])}
    notes = () if dense else (Note("labels-renumbered", about),)
    return numbers.astype(np.int64), tuple(str(value) for value in values), notes


def _pairs(path: Path, given: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(split or "", key of the images, key of the labels) of each part."""
    whole = [(given[x], given[y]) for x in IMAGES for y in LABELS if x in given and y in given]
    found: dict[str, tuple[str, str, str]] = {}
    for alias, split in SPLIT_NAMES.items():
        keys = [
            [given[key] for name in names for key in (f"{alias}_{name}", f"{name}_{alias}") if key in given]
            for names in (IMAGES, LABELS)
        ]
        if all(keys):
            found.setdefault(split, (split, keys[0][0], keys[1][0]))
        elif any(keys):
            raise SoftbiasError(f"{path} has {(keys[0] or keys[1])[0]}, but no {'labels' if keys[0] else 'images'} for {split}")
    if found and "train" not in found:
        raise SoftbiasError(f"{path} has pictures for {some(list(found))}, but none for train")
    if found or whole:
        return list(found.values()) or [("", *whole[0])]
    raise SoftbiasError(
        f"{path} needs arrays named images and labels, or train_images, train_labels, test_images, test_labels, "
        f"but has {some(list(given.values())) or 'none'}"
    )
