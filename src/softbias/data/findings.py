"""What may be wrong with a set of pictures, each as a sentence with the files it is about. `check` collects them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softbias.data.decode import BrokenPicture
from softbias.data.duplicates import clusters, near_pairs
from softbias.data.listing import pictures, some

LEAK = 0.01  # share of a held-out split that may stand in another one byte for byte before its result means nothing
IMBALANCE = 3.0
FEW = 10  # training pictures of a class
HELD_OUT = (("val", "train"), ("test", "train"), ("test", "val"))


@dataclass(frozen=True)
class Problem:
    """severity: error or warning. files: all that are concerned; copies are written "a = b"."""

    severity: str
    kind: str
    text: str
    files: tuple[str, ...] = ()


def unreadable(names: Sequence[str], results: Sequence[object]) -> list[Problem]:
    """One error per way of being broken."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, BrokenPicture):
            kinds[result.kind].append(f"{name}: {result.reason}")
    return [
        Problem("error", kind, f"{pictures(len(files))} cannot be read ({kind}); --skip-broken trains without", tuple(files))
        for kind, files in kinds.items()
    ]


def unassigned(names: Sequence[str], split: Sequence[str]) -> list[Problem]:
    """Some rows of a CSV file name a split, others none."""
    without = tuple(name for name, place in zip(names, split, strict=True) if not place)
    if not without or len(without) == len(names):
        return []
    return [Problem("error", "split", f"{pictures(len(without))} without a split, while others have one", without)]


def cut_groups(groups: Sequence[str], split: Sequence[str]) -> list[Problem]:
    """Groups that stand on both sides of a given split."""
    places = defaultdict(set)
    for group, place in zip(groups, split, strict=True):
        places[group].add(place)
    cut = tuple(sorted(f"{group}: {', '.join(sorted(found))}" for group, found in places.items() if len(found) > 1))
    return [Problem("error", "groups", f"{len(cut)} of {len(places)} groups stand in more than one split", cut)] if cut else []


def uneven(counts: Mapping[str, Mapping[str, int]]) -> tuple[float, list[Problem]]:
    """The ratio of the largest to the smallest class in training, and what there is to say about it."""
    training = {name: count.get("train", count.get("all", 0)) for name, count in counts.items()}
    largest, smallest = max(training, key=training.__getitem__), min(training, key=training.__getitem__)
    ratio = training[largest] / max(1, training[smallest])
    problems = []
    if ratio > IMBALANCE:
        text = f"imbalance 1:{ratio:.1f}: {training[largest]} of {largest!r}, but {training[smallest]} of {smallest!r}"
        problems.append(Problem("warning", "imbalance", text))
    few = [f"{name} ({count})" for name, count in training.items() if count < FEW]
    if few:
        text = f"{len(few)} of {len(training)} classes have fewer than {FEW} pictures to learn from: {some(few)}"
        problems.append(Problem("warning", "few", text))
    return ratio, problems


def repeated(
    names: Sequence[str],
    labels: NDArray[np.int64],
    split: Sequence[str],
    digests: Sequence[bytes],
    thumbs: NDArray[np.uint8],
) -> tuple[list[Problem], list[str]]:
    """Copies across splits and classes as problems; copies that do no such harm as notes."""
    _, first, exact = np.unique(np.array(digests, dtype="V16"), return_index=True, return_inverse=True)
    near = clusters(len(first), near_pairs(thumbs[first]))[exact]
    every = np.arange(len(names))
    problems, notes = [], []
    for kind, what, copies, unlike in (  # unlike: numbers that two pictures must not share; exact copies are told only once
        ("exact", "exact copies", _groups(exact), every),
        ("near", "near copies (re-encoded, resized, or just alike)", _groups(near), exact),
    ):

        def problem(severity: str, about: str, text: str, pairs: list[tuple[int, int]], kind: str = kind) -> None:
            files = tuple(f"{names[a]} = {names[b]}" for a, b in pairs)
            problems.append(Problem(severity, f"{kind} {about}", text, files))

        for held, rest in HELD_OUT:
            found = [pair for members in copies for pair in _across(members, split, held, rest, unlike)]
            if found:
                share = len(found) / Counter(split)[held]
                severity = "error" if kind == "exact" and share > LEAK else "warning"
                text = f"leakage: {pictures(len(found))} of {held} ({share:.1%}) with {what} in {rest}"
                problem(severity, "leakage", text, found)
        pairs = [pair for members in copies for pair in _others(members, unlike)]
        conflicts = [(a, b) for a, b in pairs if labels[a] != labels[b]]
        if conflicts:
            text = f"{pictures(len(conflicts))} with {what} in another class: one label is wrong, or a picture shows both"
            problem("warning", "label conflict", text, conflicts)
        alike = [(a, b) for a, b in pairs if labels[a] == labels[b]]  # the others have just been named
        if alike and not any(split):
            text = f"{pictures(len(alike))} with {what}: a random split would tear them apart; remove or group them"
            problem("warning", "copies", text, alike)
        same = sum(split[a] == split[b] for a, b in pairs)
        if same and any(split):
            notes.append(f"{pictures(same)} with {what} in the same split")
    return problems, notes


def _groups(numbers: NDArray[np.int64]) -> list[list[int]]:
    """Indices that share a number, where there are at least two."""
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return [part.tolist() for part in parts if len(part) > 1]


def _across(members: list[int], split: Sequence[str], held: str, rest: str, unlike: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Each member in the held-out split that has no like in the other one, with one that is there."""
    there = [index for index in members if split[index] == rest]
    alike = {unlike[index] for index in there}
    return [(index, there[0]) for index in members if there and split[index] == held and unlike[index] not in alike]


def _others(members: list[int], unlike: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Each member but the first and its likes, one of each kind, with the first."""
    kinds = {unlike[index]: index for index in reversed(members)}
    return [(index, members[0]) for index in sorted(kinds.values()) if unlike[index] != unlike[members[0]]]
