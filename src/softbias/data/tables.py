"""Pictures listed in a CSV file: path, label [, split] [, columns to group by]; paths are relative to the file.

Commas, semicolons and tabs separate, whatever the suffix. Other usual names of the columns are understood. A manifest is
such a file that we write, so that a split can be kept.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike

from softbias.data.dataset import Dataset
from softbias.data.listing import (
    SPLIT_NAMES,
    Listing,
    counted_images,
    make_listing,
    refuse_unlearned_classes,
    some,
)
from softbias.data.splits import Indices, splits_of
from softbias.errors import SoftbiasError
from softbias.files import escaped, open_regular, write_bytes

TABLES = (".csv", ".tsv")
COLUMNS = {
    "path": ("path", "file", "filename", "filepath", "file_name", "image", "image_path"),
    "label": ("label", "class", "target", "class_name", "category"),
    "split": ("split", "subset", "set"),
}


def list_csv(path: str | Path, group_by: str | None = None) -> Listing:
    """A table of pictures. group_by: the column that names each picture's group, if there is such a column."""
    path = Path(path)
    table = read_table(path)
    files = [file_of(path.parent, name) for name in table["path"]]
    missing = [name for name, file in zip(table["path"], files, strict=True) if not is_file(file)]
    if missing:
        foreign = any(escaped(name) != name for name in missing)
        why = f"the table is not in UTF-8: {convert_advice(path)}" if foreign else f"paths are relative to {path.parent}"
        listed = some([escaped(name) for name in missing])
        raise SoftbiasError(f"{path}: {len(missing)} of {counted_images(len(files))} not found: {listed}; {why}")
    split = None
    if "split" in table:
        unknown = sorted({name for name in table["split"] if name and name.casefold() not in SPLIT_NAMES})
        if unknown:
            raise SoftbiasError(f"{path}: the column split takes train, val, test or nothing, but has {some(unknown)}")
        split = [SPLIT_NAMES.get(name.casefold(), "") for name in table["split"]]
        refuse_unlearned_classes(path, table["label"], split)
    listing = make_listing(path, files, table["label"], split, [])
    column = (group_by or "").strip().casefold()
    if column not in table:
        return listing
    return replace(listing, groups=tuple(table[column]))


def file_of(folder: Path, name: str) -> Path:
    """The file that a table names, also with the backslashes of Windows where there is no file of that name."""
    file = folder / name
    if "\\" not in name or is_file(file):
        return file
    other = folder / name.replace("\\", "/")
    return other if is_file(other) else file


def read_table(path: Path, needed: Sequence[str] = ("path", "label")) -> dict[str, list[str]]:
    """Column names in small letters -> values. The columns of path, label and split get these names, whatever the file has."""
    try:
        with open_regular(path) as raw:
            if raw.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise SoftbiasError(f"{path} is UTF-16: save it as CSV in UTF-8")
            raw.seek(0)
            file = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
            head = file.readline()
            file.seek(0)
            reader = csv.reader(without_zeros(path, file), delimiter=max("\t;,", key=head.count))
            columns = [name.strip().casefold() for name in next(reader, [])]
            lines = [(reader.line_num, row) for row in reader if any(row)]
    except OSError as error:
        raise SoftbiasError(f"{path} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise SoftbiasError(f"{path} is not a table: {error}") from error
    repeated = [name for name, count in Counter(columns).items() if name and count > 1]
    if repeated:
        raise SoftbiasError(f"{path}: each column needs a name of its own, but {some(repeated)} stands there twice")
    for number, row in lines:
        if len(row) != len(columns):
            raise SoftbiasError(f"{path}: line {number} has {len(row)} columns, but the first line names {len(columns)}")
    table = {name: [row[index] for _, row in lines] for index, name in enumerate(columns)}
    for column, names in COLUMNS.items():
        found = next((name for name in names if name in table), None)
        if found is not None:
            table[column] = table[found] if column == "path" else [normalize("NFC", value.strip()) for value in table[found]]
            if column != "path" and "label" in needed:
                require_utf8(path, found, [number for number, _ in lines], table[column])
        elif column in needed:
            raise SoftbiasError(
                f"{path} needs a column {column!r} (or {', '.join(names[1:])}), but has {escaped(some(columns)) or 'none'}; "
                f"write {','.join(needed)}{'[,split]' if 'label' in needed else ''} into its first line"
            )
    for column in needed:
        empty = [str(number) for (number, _), value in zip(lines, table[column], strict=True) if not value]
        if empty:
            raise SoftbiasError(f"{path}: there is no {column} in line {some(empty)}")
    twice = [name for name, count in Counter(map(os.path.normpath, table["path"])).items() if count > 1]
    if twice:
        named = escaped(some(twice))
        raise SoftbiasError(f"{path} lists {counted_images(len(twice))} more than once: {named}; list each one once")
    return table


def without_zeros(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise SoftbiasError(f"{path}, line {number} has zero bytes: it is no table, or one in UTF-16; save it as CSV UTF-8")
        yield line


def require_utf8(path: Path, column: str, numbers: Sequence[int], values: Sequence[str]) -> None:
    """Refuse values that are not UTF-8, by their line. Paths may be any bytes, as file names may; a wrong one is not found."""
    for number, value in zip(numbers, values, strict=True):
        if escaped(value) != value:
            raise SoftbiasError(f"{path}, line {number}: the {column} {escaped(value)} is not in UTF-8: {convert_advice(path)}")


def convert_advice(path: Path) -> str:
    """What to do with a table in an older encoding."""
    name = escaped(path.name)
    return f"save it as CSV UTF-8, or if it is in Windows-1252 (Latin-1): iconv -f WINDOWS-1252 -t UTF-8 {name} -o utf8-{name}"


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a zero byte
        return False


def write_manifest(path: str | Path, images: Listing | Dataset, splits: Mapping[str, ArrayLike]) -> Path:
    """Write path, label, split of every picture in a split as CSV that `list_csv` reads; paths are relative to it."""
    path, files = Path(path), images.files
    assert files is not None  # arrays have none
    rows = sorted((int(index), split) for split, indices in splits.items() for index in np.asarray(indices))
    lines = io.StringIO(newline="")
    table = csv.writer(lines)
    table.writerow(["path", "label", "split"])
    for index, split in rows:
        table.writerow([_relative(files[index], path.parent), images.class_names[images.labels[index]], split])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, lines.getvalue().encode("utf-8", "surrogateescape"))
    return path


def read_manifest(path: str | Path) -> tuple[Listing, dict[str, Indices]]:
    """What `write_manifest` wrote: the pictures, and split names -> indices into them."""
    listing = list_csv(path)
    if listing.split is None:
        raise SoftbiasError(f"{path} is no manifest: it has no column 'split'")
    return listing, splits_of(listing.split)


def recall_splits(listing: Listing, manifest: Path) -> dict[str, Indices]:
    """The splits that a manifest states for the pictures of a listing, which must all be in it."""
    listed, splits = read_manifest(manifest)
    split_of = {os.path.abspath(listed.files[index]): split for split, indices in splits.items() for index in indices}
    found = [split_of.get(os.path.abspath(file), "") for file in listing.files]
    unknown = [name for name, split in zip(listing.relative(), found, strict=True) if not split]
    if unknown:
        raise SoftbiasError(
            f"{listing.name}: {counted_images(len(unknown))} not in the manifest {manifest}: {some(unknown)}; add them "
            "there, or remove the manifest to split anew"
        )
    return splits_of(found)


def _relative(file: str | Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(os.path.abspath(file), os.path.abspath(folder))).as_posix()
    except ValueError:  # another drive
        return str(os.path.abspath(file))
