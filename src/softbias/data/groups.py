"""Pictures that belong together: groups that a user names, and near copies.

A split that tears them apart makes a test result better than the model is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from softbias.data.duplicates import clusters, near_groups
from softbias.errors import SoftbiasError
from softbias.notes import Note

MOST = 50_000  # pictures among which near copies are looked for; that takes seconds
HELD_OUT = (("val", "train"), ("test", "train"), ("test", "val"))
NAMED = 2  # pairs that a note names
Numbers = NDArray[np.int64]
Pair = tuple[int, int]


def group_of(paths: Sequence[str], pattern: str) -> tuple[str, ...]:
    """The group of each file: the part of its path that the expression's first bracket matches, or the whole match.

    >>> group_of(["cat/burst07_1.jpg", "cat/burst07_2.jpg"], r"burst(\\d+)")
    ('07', '07')
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise SoftbiasError(f"group by {pattern!r}: this is not a regular expression ({error})") from error
    found = []
    for path in paths:
        match = expression.search(path)
        if match is None:
            raise SoftbiasError(
                f"group by {pattern!r}: it is not found in {path!r}; every file needs a group, so let the expression "
                "match all of them, or name a column of a CSV file"
            )
        found.append((match.group(1) if expression.groups else None) or match.group())
    return tuple(found)


def cut_groups(groups: Sequence[str], split: Sequence[str]) -> list[str]:
    """The groups that are in more than one split, each with its splits: "burst 7: test, train"."""
    splits_of_group = defaultdict(set)
    for group, name in zip(groups, split, strict=True):
        splits_of_group[group].add(name)
    return sorted(f"{group}: {', '.join(sorted(found))}" for group, found in splits_of_group.items() if len(found) > 1)


def find_groups(
    count: int, thumbs: Callable[[], NDArray[np.uint8] | None], groups: Sequence[str] | None = None
) -> tuple[Numbers | None, list[Note]]:
    """A number per picture that those share which stay together: near copies, and groups that were named; None if no two do.

    thumbs   gives thumbnails of the pictures; called if there are not too many of them
    """
    notes = [] if count <= MOST else [Note("copies-not-sought", {"count": count, "most": MOST})]
    small = thumbs() if count <= MOST else None
    numbers = np.arange(count) if small is None else near_groups(small)
    if groups is not None:
        numbers = united(numbers, np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1])
    return (numbers if has_groups(numbers) else None), notes


def has_groups(numbers: Numbers) -> bool:
    return len(np.unique(numbers)) < len(numbers)


def united(*several: Numbers) -> Numbers:
    """Numbers that two pictures share if they share one in any of these, or if others connect them.

    >>> united(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])).tolist()
    [0, 0, 0, 1]
    """
    pairs = []
    for numbers in several:
        _, first, same = np.unique(numbers, return_index=True, return_inverse=True)
        pairs.append(np.stack([np.arange(len(numbers)), first[same]], axis=1))
    return clusters(len(several[0]), np.concatenate(pairs))


def copies_across(numbers: Numbers | None, splits: Mapping[str, Numbers], name_of: Callable[[int], str]) -> list[Note]:
    """A note for each two of the given splits that share near copies. These stay where they are."""
    notes = []
    for held, other in HELD_OUT:
        if numbers is None or held not in splits or other not in splits:
            continue
        there = dict(zip(numbers[splits[other]].tolist(), splits[other].tolist(), strict=True))
        pairs = [(index, there[number]) for index in splits[held].tolist() if (number := int(numbers[index])) in there]
        if pairs:
            about = {"count": len(pairs), "share": len(pairs) / len(splits[held]), "held_out": held, "other": other}
            named = [f"{name_of(a)} = {name_of(b)}" for a, b in pairs[:NAMED]]
            notes.append(Note("copies-across", {**about, "named": named}))
    return notes


def count_pairs(pairs: list[Pair]) -> dict[str, int]:
    """How many groups of copies there are, and how many pictures are in them; the second of a pair stands for its group.

    >>> count_pairs([(1, 0), (2, 0), (5, 4)])
    {'count': 5, 'groups': 2}
    """
    return {"count": len({index for pair in pairs for index in pair}), "groups": len({first for _, first in pairs})}


def members_of(numbers: Numbers) -> list[list[int]]:
    """Indices that share a number, where there are at least two."""
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return [part.tolist() for part in parts if len(part) > 1]


def pairs_across(members: list[int], split: Sequence[str], held: str, rest: str, unlike: Numbers) -> list[Pair]:
    """Each member in the held-out split that has no equal in the other split, with a copy that is there."""
    there = [index for index in members if split[index] == rest]
    alike = {unlike[index] for index in there}
    return [(index, there[0]) for index in members if there and split[index] == held and unlike[index] not in alike]


def pairs_within(members: list[int], unlike: Numbers) -> list[Pair]:
    """Each member but the first and its equals, one of each number, with the first."""
    kinds = {unlike[index]: index for index in reversed(members)}
    return [(index, members[0]) for index in sorted(kinds.values()) if unlike[index] != unlike[members[0]]]
