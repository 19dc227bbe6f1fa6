"""Is this set fit to train on? What there is, what cannot be read, what is there twice, and on which side of a split.

    report = check("my_pictures")
    print("\\n".join(report.lines()))
    report.fit_to_train, report.to_dict()

An error means that training would refuse the set, or that its test result would mean nothing; a warning, that somebody
should look. Every picture is opened and decoded, none is changed.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.data.arrays import is_array_folder, read_arrays
from softbias.data.decode import BrokenPicture, load, resized
from softbias.data.duplicates import SIDE, thumbnails
from softbias.data.findings import Problem, cut_groups, repeated, unassigned, uneven, unreadable
from softbias.data.listing import pictures, read_listing
from softbias.data.parallel import in_order
from softbias.data.splits import splits_of
from softbias.errors import SoftbiasError


@dataclass(frozen=True)
class Report:
    """counts: class -> split -> pictures ("all" where there are no splits). sizes: (width, height)."""

    name: str
    total: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    imbalance: float = 1.0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fit_to_train(self) -> bool:
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not fit to train on."""
        return tuple(problem.text for problem in self.problems if problem.severity == "error")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fit_to_train": self.fit_to_train, "reasons": list(self.reasons)}

    def lines(self, most: int = 10) -> list[str]:
        """For people; `most` files are named per problem."""
        lines = [f"{self.name}: {pictures(self.total)}, {len(self.counts)} classes"] if self.counts else []
        splits = list(dict.fromkeys(split for count in self.counts.values() for split in count))
        width = max((len(name) for name in self.counts), default=0)
        if splits:
            lines.append(f"  {'':{width}}" + "".join(f"{split:>8}" for split in splits))
        for name, count in self.counts.items():
            lines.append(f"  {name:{width}}" + "".join(f"{count.get(split, 0):>8}" for split in splits))
        if self.sizes:
            lines.append("sizes: " + ", ".join(f"{name} {size[0]} × {size[1]}" for name, size in self.sizes.items()))
            lines.append("modes: " + ", ".join(f"{mode} {count}" for mode, count in self.modes.items()))
        lines += [f"note: {note}" for note in self.notes]
        for problem in self.problems:
            lines.append(f"{problem.severity}: {problem.text}")
            lines += [f"  {name}" for name in problem.files[:most]]
            if len(problem.files) > most:
                lines.append(f"  and {len(problem.files) - most} more")
        return [*lines, "fit to train on" if self.fit_to_train else "NOT fit to train on"]


@dataclass(frozen=True)
class Seen:
    """What one look at a picture gives."""

    digest: bytes
    mode: str
    size: tuple[int, int]
    thumbnail: NDArray[np.uint8]


def check(
    path: str | Path,
    *,
    group_by: str | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Look at every picture of a folder, a CSV file or arrays. Only a path that does not exist is raised."""
    path = Path(path)
    if not path.exists():
        raise SoftbiasError(f"{path} does not exist; give a folder, a CSV file or an .npz file")
    try:
        if path.suffix.lower() in (".npz", ".npy") or is_array_folder(path):
            return _check_arrays(path)
        listing = read_listing(path, group_by)
    except ValueError as error:
        return Report(path.name, problems=(Problem("error", "listing", str(error)),))
    results: list[Seen | BrokenPicture] = []
    for result in in_order(_look, listing.files, workers):
        results.append(result)
        if progress:
            progress(len(results), len(listing))
    names, split = listing.relative(), listing.split or [""] * len(listing)
    problems = unreadable(names, results) + unassigned(names, split)
    if listing.groups and listing.split:
        problems += cut_groups(listing.groups, split)
    readable = [index for index, result in enumerate(results) if isinstance(result, Seen)]
    seen = [result for result in results if isinstance(result, Seen)]
    copies, notes = repeated(
        [names[index] for index in readable],
        listing.labels[readable],
        [split[index] for index in readable],
        [one.digest for one in seen],
        np.stack([one.thumbnail for one in seen]) if seen else np.empty((0, SIDE, SIDE, 3), np.uint8),
    )
    modes = dict(Counter(one.mode for one in seen).most_common())
    about = (listing.name, listing.labels, listing.class_names, split)
    return _report(*about, problems + copies, (*listing.notes, *notes), modes, _sizes([one.size for one in seen]))


def _check_arrays(path: Path) -> Report:
    data = read_arrays(path)
    split = np.full(len(data), "", dtype="<U5")
    for name, indices in data.splits.items():
        split[indices] = name
    digests = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in data.images]
    names = [f"picture {index}" for index in range(len(data))]
    problems, notes = repeated(names, data.labels, split.tolist(), digests, thumbnails(data.images))
    size = (data.img_size[1], data.img_size[0])
    about = (data.name, data.labels, data.class_names, split.tolist())
    return _report(*about, problems, (*data.notes, *notes), {"array": len(data)}, {"all": size})


def _look(file: Path) -> Seen | BrokenPicture:
    try:
        content = file.read_bytes()
    except OSError:
        content = b""  # load says what is wrong
    try:
        picture = load(io.BytesIO(content), wanted=(2 * SIDE, 2 * SIDE), name=str(file)) if content else load(file)
    except BrokenPicture as error:
        return error
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return Seen(digest, picture.mode, picture.size, np.array(resized(picture.image, (SIDE, SIDE), "stretch")))


def _report(
    name: str,
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    split: Sequence[str],
    problems: list[Problem],
    notes: tuple[str, ...],
    modes: dict[str, int],
    sizes: dict[str, tuple[int, int]],
) -> Report:
    parts = splits_of(split) or {"all": np.arange(len(labels))}
    table = {part: np.bincount(labels[indices], minlength=len(class_names)).tolist() for part, indices in parts.items()}
    counts = {kind: {part: table[part][number] for part in parts} for number, kind in enumerate(class_names)}
    imbalance, uneven_problems = uneven(counts)
    everything = sorted([*problems, *uneven_problems], key=lambda problem: problem.severity)  # errors first
    return Report(name, len(labels), counts, sizes, modes, round(imbalance, 2), tuple(everything), notes)


def _sizes(sizes: list[tuple[int, int]]) -> dict[str, tuple[int, int]]:
    if not sizes:
        return {}
    widths, heights = np.median(sizes, axis=0)
    by_area = sorted(sizes, key=lambda size: size[0] * size[1])
    return {"smallest": by_area[0], "median": (round(widths), round(heights)), "largest": by_area[-1]}
