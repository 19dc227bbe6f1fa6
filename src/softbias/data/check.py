"""Is this set fit to train on? Its pictures, the unreadable ones, copies, and the side of a split that each copy is on.

    report = check("my_pictures")
    report.fit_to_train, report.problems, report.to_dict()

An error means that training would refuse the set: both make the same decision. A warning means that somebody should look:
copies of test pictures in train make a test result better than the model is. Every picture is opened and decoded, none is
changed. `pages.wording` has a sentence for each kind of problem.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.bounds import ValueRange
from softbias.data.arrays import is_array_folder, read_arrays
from softbias.data.dataset import Dataset
from softbias.data.decode import COPY_SIZE, THUMBNAIL, BrokenImageError, in_order, load, reason_of, require_bytes, thumbnail
from softbias.data.duplicates import near_groups, thumbnails
from softbias.data.groups import HELD_OUT, Pair, count_pairs, cut_groups, members_of, pairs_across, pairs_within
from softbias.data.named import list_datasets
from softbias.data.resizing import Images
from softbias.data.sources import Source, is_named, open_source, read_listing
from softbias.data.splits import splits_of, without_split
from softbias.data.splitting import split_arrays, split_readable
from softbias.errors import SoftbiasError
from softbias.files import NotAFileError, escaped, open_regular
from softbias.notes import Note

IMBALANCE = 3.0
FEW = 10  # training pictures of a class
REFUSED = ("pictures-without-split", "groups-cut")  # training refuses these splits, and the report has named the files


@dataclass(frozen=True)
class Problem:
    """A finding with the files that it concerns; a pair of copies is written "a = b".

    severity   "error" or "warning"
    note       its kind and values, as those of any note to a user
    """

    severity: str
    note: Note
    files: tuple[str, ...] = ()


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
    notes: tuple[Note, ...] = ()

    @property
    def fit_to_train(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        problems = [{"severity": each.severity, **each.note.to_dict(), "files": list(each.files)} for each in self.problems]
        notes = [note.to_dict() for note in self.notes]
        return asdict(self) | {"problems": problems, "notes": notes, "fit_to_train": self.fit_to_train}


@dataclass(frozen=True)
class Look:
    """The findings of one look at a picture."""

    digest: bytes
    mode: str
    size: tuple[int, int]
    thumbnail: Images


def check(
    path: str | Path,
    *,
    group_by: str | None = None,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Look at every picture of a folder, a CSV file, arrays, or a named set. Only one that does not exist raises an error.

    data_dir   the folder of named sets
    """
    if is_named(path):
        named = open_source(path, group_by)
        return _check_arrays(named.read(data_dir=data_dir, progress=progress))
    if data_dir is not None:
        raise SoftbiasError(f"data_dir is for named sets ({', '.join(list_datasets())}), but {path} is not one")
    path = Path(path)
    if not path.exists():
        raise SoftbiasError(f"{path} does not exist; give a folder, a CSV file, an .npz file, or {', '.join(list_datasets())}")
    try:
        if path.suffix.lower() in (".npz", ".npy") or is_array_folder(path):
            return _check_arrays(read_arrays(path))
        listing = read_listing(path, group_by)
        value_range = Source(listing.name, path, listing).value_range
    except SoftbiasError as error:
        return Report(path.name, problems=(Problem("error", Note("cannot-be-listed", {"reason": str(error)})),))
    results: list[Look | BrokenImageError] = []
    for result in in_order(partial(_look, value_range=value_range), listing.files, workers):
        results.append(result)
        if progress:
            progress(len(results), len(listing))
    names, split = [escaped(name) for name in listing.relative()], listing.split or [""] * len(listing)
    problems = unreadable(names, results)
    without = without_split(names, split)
    if without:
        problems.append(Problem("error", Note("pictures-without-split", {"count": len(without)}), tuple(without)))
    if listing.groups and listing.split:
        cut, total = cut_groups(listing.groups, split), len(set(listing.groups))
        if cut:
            problems.append(Problem("error", Note("groups-cut", {"count": len(cut), "total": total}), tuple(cut)))
    readable = [index for index, result in enumerate(results) if isinstance(result, Look)]
    looks = [result for result in results if isinstance(result, Look)]
    thumbs = np.stack([look.thumbnail for look in looks]) if looks else np.empty((0, THUMBNAIL, THUMBNAIL, 3), np.uint8)
    found: list[Problem] = []
    made: list[Note] = []
    if readable and not any(problem.note.kind in REFUSED for problem in problems):
        found, made = splitting(lambda: split_readable(listing, readable, thumbs=thumbs).notes)
    copies, notes = repeated(
        [names[index] for index in readable],
        listing.labels[readable],
        [split[index] for index in readable],
        [look.digest for look in looks],
        thumbs,
    )
    modes = dict(Counter(look.mode for look in looks).most_common())
    about = (listing.name, listing.labels, listing.class_names, split)
    everything = [*problems, *found, *copies]
    if value_range is not None:
        made = [Note("value-range", {"low": value_range[0], "high": value_range[1], "named": False}), *made]
    return _report(*about, everything, (*listing.notes, *made, *notes), modes, _sizes([look.size for look in looks]))


def _check_arrays(data: Dataset) -> Report:
    split = np.full(len(data), "", dtype="<U5")
    for name, indices in data.splits.items():
        split[indices] = name
    digests = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in data.images]
    names = [f"picture {index}" for index in range(len(data))]
    thumbs = thumbnails(data.images)
    problems, notes = repeated(names, data.labels, split.tolist(), digests, thumbs)
    found, made = splitting(lambda: split_arrays(data, 0, thumbs).notes)
    size = (data.img_size[1], data.img_size[0])
    about = (data.name, data.labels, data.class_names, split.tolist())
    return _report(*about, [*found, *problems], (*(made or data.notes), *notes), {"array": len(data)}, {"all": size})


def splitting(split: Callable[[], Sequence[Note]]) -> tuple[list[Problem], list[Note]]:
    """The splits as training would make them: an error where it would refuse, and the notes."""
    try:
        return [], [note for note in split() if note.kind not in ("split-made", "copies-across")]  # the latter are problems
    except SoftbiasError as error:
        return [Problem("error", Note("cannot-be-split", {"reason": str(error)}))], []


def _look(file: Path, value_range: ValueRange | None) -> Look | BrokenImageError:
    try:
        with open_regular(file) as content:
            require_bytes(content, str(file))
            digest = hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).digest()
            content.seek(0)
            loaded = load(content, wanted=COPY_SIZE, name=str(file), value_range=value_range)
    except BrokenImageError as error:
        return error
    except (OSError, NotAFileError) as error:
        return BrokenImageError(str(file), *reason_of(error))
    return Look(digest, loaded.mode, loaded.size, thumbnail(file, loaded))


def _report(
    name: str,
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    split: Sequence[str],
    problems: list[Problem],
    notes: tuple[Note, ...],
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


def unreadable(names: Sequence[str], results: Sequence[object]) -> list[Problem]:
    """One error per way of being broken."""
    files: dict[str, list[str]] = defaultdict(list)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, BrokenImageError):
            files[result.kind].append(f"{name}: {result.reason}")
    return [
        Problem("error", Note("unreadable-pictures", {"count": len(found), "problem": kind}), tuple(found))
        for kind, found in files.items()
    ]


def uneven(counts: Mapping[str, Mapping[str, int]]) -> tuple[float, list[Problem]]:
    """The ratio of the largest to the smallest class in training, and the problems that follow from it."""
    training = {name: count.get("train", count.get("all", 0)) for name, count in counts.items()}
    largest, smallest = max(training, key=training.__getitem__), min(training, key=training.__getitem__)
    ratio = training[largest] / max(1, training[smallest])
    problems = []
    if ratio > IMBALANCE:
        ends = {"largest": [largest, training[largest]], "smallest": [smallest, training[smallest]]}
        problems.append(Problem("warning", Note("imbalance", {"ratio": ratio, **ends})))
    scarce = {name: count for name, count in training.items() if count < FEW}
    if scarce:
        about = {"classes": scarce, "total": len(training), "least": FEW}
        problems.append(Problem("warning", Note("few-pictures", about)))
    return ratio, problems


def repeated(
    names: Sequence[str],
    labels: NDArray[np.int64],
    split: Sequence[str],
    digests: Sequence[bytes],
    thumbs: Images,
) -> tuple[list[Problem], list[Note]]:
    """Copies across splits and classes as problems; copies that do no such harm as notes."""
    exact = np.unique(np.array(digests, dtype="V16"), return_inverse=True)[1]
    near = near_groups(thumbs)
    every = np.arange(len(names))
    problems: list[Problem] = []
    notes: list[Note] = []

    def report(kind: str, pairs: list[Pair], **values: object) -> None:
        files = tuple(f"{names[a]} = {names[b]}" for a, b in pairs)
        problems.append(Problem("warning", Note(kind, values), files))

    for copies, groups, unlike in (  # unlike: numbers that two pictures must not share, so that exact copies count only once
        ("exact", members_of(exact), every),
        ("near", members_of(near), exact),
    ):
        for held, rest in HELD_OUT:
            found = [pair for members in groups for pair in pairs_across(members, split, held, rest, unlike)]
            if found:
                share = len(found) / Counter(split)[held]
                report("leakage", found, count=len(found), copies=copies, held_out=held, other=rest, share=share)
        pairs = [pair for members in groups for pair in pairs_within(members, unlike)]
        conflicts = [(a, b) for a, b in pairs if labels[a] != labels[b]]
        if conflicts:
            report("label-conflict", conflicts, copies=copies, **count_pairs(conflicts))
        alike = [(a, b) for a, b in pairs if labels[a] == labels[b]]  # the others have just been reported
        if alike and not any(split):
            report("copies", alike, copies=copies, **count_pairs(alike))
        same = [(a, b) for a, b in pairs if split[a] == split[b]]
        if same and any(split):
            notes.append(Note("copies-in-one-split", {"copies": copies, **count_pairs(same)}))
    return problems, notes
