"""Scenes as files: Combined and Background of the ETH study, written as sets of pictures with a table of what each shows.

    background   OUT/CLASS/00000.png …, and OUT/scenes.csv: path, label, source (the picture's number in its set)
    combined     OUT/scenes/00000.png …, and OUT/scenes.csv: path, the four classes in reading order, their sources, and a
                 column has:CLASS of 0 and 1 for every class, which is the label of the study

`fit`, `evaluate`, `predict` and `data check` take the folder of Background, or its table, where `source` can group scenes of
one picture. A combined scene has four classes, so it has no column `label`: `predict` takes its folder.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.data.listing import SPLIT_NAMES
from softbias.data.scenes import Scenes, combined, load_backgrounds, on_background
from softbias.errors import SoftbiasError, unknown_name
from softbias.files import replacing_folder, write_bytes

SceneKind = Literal["combined", "background"]
KINDS: tuple[SceneKind, ...] = get_args(SceneKind)
TABLE = "scenes.csv"
CORNERS = ("top_left", "top_right", "bottom_left", "bottom_right")
AT_ONCE = 100  # scenes in memory


@dataclass(frozen=True)
class WrittenScenes:
    """table: scenes.csv; side: pixels of a scene; images: pictures of the set that they are made of; renamed: classes whose
    folder has another name, because theirs is none that a folder can have."""

    table: Path
    count: int
    side: int
    images: int
    backgrounds: str | None = None
    renamed: tuple[str, ...] = ()


def write_scenes(
    kind: str,
    data: Dataset,
    out: str | Path,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    backgrounds: str | Path | None = None,
    size: int | None = None,
    scale: float = 1.0,
    position: str = "random",
) -> WrittenScenes:
    """Write n scenes made of a split's pictures ("all": of the whole set) to a new folder.

    backgrounds, size, scale, position   of background alone: see `scenes.on_background`
    """
    if kind not in KINDS:
        raise unknown_name("kind of scene", kind, KINDS)
    out = Path(out)
    require_new(out)
    part = np.arange(len(data)) if split == "all" else data.splits.get(split)
    if part is None or not len(part):
        raise SoftbiasError(f"{data.name} has no pictures in {split!r}; it has {', '.join(data.splits)}")
    if kind == "combined" and (backgrounds is not None or size is not None or scale != 1.0 or position != "random"):
        raise SoftbiasError("backgrounds, size, scale and position are for background scenes; leave them out, or write those")
    images, labels = data.images[part], data.labels[part]
    side = 2 * max(data.img_size) if kind == "combined" else size or 4 * max(data.img_size)
    behind = None if kind == "combined" else load_backgrounds(backgrounds, smallest=side)

    def make(numbers: Sequence[int]) -> Scenes:
        if behind is None:
            return combined(images, labels, numbers, seed)
        return on_background(images, labels, behind.images, numbers, seed, size=side, scale=scale, position=position)

    folders = folder_names(data.class_names)
    rows: list[list[object]] = [header(kind, data.class_names)]
    sources: set[int] = set()
    with replacing_folder(out) as folder:
        for start in range(0, n, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, n))
            scenes = make(numbers)
            for number, image, label, source in zip(numbers, scenes.images, scenes.labels, scenes.sources, strict=True):
                inner = "scenes" if kind == "combined" else folders[int(label)]
                path = f"{inner}/{number:05d}.png"
                (folder / inner).mkdir(exist_ok=True)
                Image.fromarray(image).save(folder / path)
                origin = np.atleast_1d(part[source])
                sources |= set(origin.tolist())
                rows.append([path, *cells(np.atleast_1d(label).tolist(), origin.tolist(), data.class_names, kind)])
        write_bytes(folder / TABLE, as_csv(rows))
    renamed = tuple(name for name, inner in zip(data.class_names, folders, strict=True) if name != inner)
    about = behind.source if behind else None
    return WrittenScenes(out / TABLE, n, side, len(sources), about, renamed if kind == "background" else ())


def require_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SoftbiasError(f"{out} exists already; name a new folder")


def header(kind: str, class_names: Sequence[str]) -> list[object]:
    if kind == "background":
        return ["path", "label", "source"]
    return ["path", *CORNERS, *(f"source_{corner}" for corner in CORNERS), *(f"has:{name}" for name in class_names)]


def cells(labels: Sequence[int], sources: Sequence[int], class_names: Sequence[str], kind: str) -> list[object]:
    names = [class_names[label] for label in labels]
    if kind == "background":
        return [*names, *sources]
    return [*names, *sources, *(int(name in names) for name in class_names)]


def as_csv(rows: Sequence[Sequence[object]]) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows(rows)
    return lines.getvalue().encode("utf-8", "surrogateescape")


def folder_names(class_names: Sequence[str]) -> list[str]:
    """Names that folders can have, all different.

    >>> folder_names(["T-shirt/top", "Coat", "T-shirt-top", "train"])
    ['T-shirt-top 0', 'Coat', 'T-shirt-top 2', 'train 3']
    """
    plain = [re.sub(r'[/\\:*?"<>|]', "-", name).strip(". ") or "class" for name in class_names]
    often = Counter(name.casefold() for name in plain)
    return [
        name if often[name.casefold()] == 1 and name.casefold() not in SPLIT_NAMES else f"{name} {index}"
        for index, name in enumerate(plain)
    ]
