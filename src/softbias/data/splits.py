"""Which pictures train, which choose and which test: stratified, seeded, and always the same.

Every choice comes from one order per class. Its sort keys are the raw 64-bit words of PCG64, seeded with
SeedSequence([seed, purpose, class]): numpy promises that those words never change, and does not promise it for `permutation`.
So no class depends on the number of pictures of another one, and 5 % of a set always lie inside its 10 %.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softbias.errors import SoftbiasError
from softbias.notes import Note

Indices = NDArray[np.int64]
SPLITS = ("train", "val", "test")
FRACTIONS = {"val": 0.1, "test": 0.2}  # the rest trains
PURPOSES = {"split": 1, "fraction": 2, "group": 4}
SPLIT_NOTES = frozenset({"split-made", "split-read", "split-written", "split-lacks-classes", "val-serves-as-test"})
"""Kinds of notes about the splits of a set; they mean nothing where all of its pictures are taken together."""


@dataclass(frozen=True)
class Split:
    """The pictures of one run: indices into its Dataset. The test pictures take part in no choice."""

    train: Indices
    val: Indices | None
    test: Indices | None
    notes: tuple[Note, ...] = ()

    def as_dict(self) -> dict[str, Indices]:
        """Names -> indices of the parts that exist."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: indices for name, indices in parts.items() if indices is not None}


def complete_splits(
    name: str, labels: Indices, given: Mapping[str, Indices], seed: int, groups: Sequence[str] | None = None
) -> tuple[dict[str, Indices], list[Note]]:
    """Splits with a train and a test part for a set of that name, and notes about the way to them.

    Given splits are kept. Without a test part, val becomes test, because something must take part in no choice. With neither,
    the training pictures are shared out by `stratified_split`.
    """
    if given and "train" not in given:
        raise SoftbiasError(f"{name}: there are pictures for {', '.join(given)}, but none for train")
    if "test" in given:
        return dict(given), []
    if "val" in given:
        return {"train": given["train"], "test": given["val"]}, [Note("val-serves-as-test")]
    pool = given.get("train", np.arange(len(labels)))
    parts = stratified_split(labels[pool], seed=seed, groups=None if groups is None else [groups[index] for index in pool])
    if not len(parts["test"]):
        raise SoftbiasError(
            f"{name}: no class has two pictures, so none is left to test with: add pictures, or name train and test yourself "
            "(folders train and test, or a column split)"
        )
    parts = {split: indices for split, indices in parts.items() if len(indices)}  # too few for val: there is none
    about = {
        "seed": seed,
        "counts": {split: len(indices) for split, indices in parts.items()},
        "groups": None if groups is None else len(set(groups)),
        "only_train_given": bool(given),
    }
    return {split: pool[indices] for split, indices in parts.items()}, [Note("split-made", about)]


def stratified_split(
    labels: ArrayLike, fractions: Mapping[str, float] | None = None, seed: int = 0, groups: Sequence[str] | None = None
) -> dict[str, Indices]:
    """Split names -> sorted indices; "train" gets the rest that `fractions` leave.

    Each class is shared out by itself, in whole pictures. A class with at least as many pictures as there are splits is in
    all of them; of a smaller one the first goes to train, the second to test. With groups (one name per picture) a
    group is never cut, and proportions are only as near as the groups allow.
    """
    labels = np.asarray(labels, dtype=np.int64)
    shares = dict(FRACTIONS if fractions is None else fractions)
    if any(not 0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1 or "train" in shares:
        raise SoftbiasError(
            f"fractions go to splits other than train, lie between 0 and 1 and sum to less than 1, but got {shares}"
        )
    if groups is not None:
        return _grouped_split(labels, shares, seed, groups)
    parts: dict[str, list[Indices]] = {name: [] for name in ("train", *shares)}
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = members[_order(len(members), seed, "split", int(label))]
        counts = {name: max(1, round(share * len(order))) for name, share in shares.items()}
        for name in sorted(counts, key=lambda name: name == "test"):  # too few for all: test is the last to go without
            if sum(counts.values()) >= len(order):
                counts[name] = max(0, len(order) - 1 - (sum(counts.values()) - counts[name]))
        start = 0
        for name, count in counts.items():
            parts[name].append(order[start : start + count])
            start += count
        parts["train"].append(order[start:])
    return {name: np.sort(np.concatenate([*found, np.empty(0, np.int64)])) for name, found in parts.items()}


def _grouped_split(labels: Indices, shares: dict[str, float], seed: int, groups: Sequence[str]) -> dict[str, Indices]:
    """Greedy: the largest group first, each to the split whose classes it brings nearest to their targets.

    cost of group g in split s = Σ_c ((n_sc + g_c − t_sc)² − (n_sc − t_sc)²) / (t_sc N_c),    t_sc = share_s N_c
    """
    if len(groups) != len(labels):
        raise SoftbiasError(f"every picture needs a group: {len(labels)} pictures, but {len(groups)} groups")
    names, member_of = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    splits = ["train", *shares]
    if len(names) < len(splits):
        raise SoftbiasError(
            f"{len(splits)} splits need at least {len(splits)} groups, but there are {len(names)}: {', '.join(names)}"
        )
    counts = np.zeros((len(names), int(labels.max()) + 1))  # (groups, classes)
    np.add.at(counts, (member_of, labels), 1)
    totals = np.maximum(counts.sum(0), 1)
    share = np.array([1 - sum(shares.values()), *shares.values()])[:, None]
    target = share * totals  # (splits, classes)
    now = np.zeros_like(target)
    shuffled = _order(len(names), seed, "group", 0)
    split_of = np.zeros(len(names), np.int64)
    for group in shuffled[np.argsort(-counts[shuffled].sum(1), kind="stable")]:
        has = np.flatnonzero(counts[group])
        add, have, want = counts[group, has], now[:, has], target[:, has]
        split_of[group] = np.argmin((add * (add + 2 * (have - want)) / (want * totals[has])).sum(1))
        now[split_of[group]] += counts[group]
    for split in range(len(splits)):
        if not (split_of == split).any():  # a few huge groups: the smallest one moves, out of the split that has most
            donor = np.bincount(split_of, minlength=len(splits)).argmax()
            group = min(np.flatnonzero(split_of == donor), key=lambda group: counts[group].sum())
            split_of[group] = split
    return {name: np.flatnonzero(split_of[member_of] == split) for split, name in enumerate(splits)}


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


def nested_fraction(labels: ArrayLike, indices: ArrayLike, fraction: float, seed: int) -> Indices:
    """That share of the indices, class by class, at least one of each; a smaller part lies inside a larger one."""
    if not 0 < fraction <= 1:
        raise SoftbiasError(f"a fraction is a share, more than 0 and at most 1, but got {fraction}")
    labels, chosen = np.asarray(labels, dtype=np.int64), np.unique(np.asarray(indices, dtype=np.int64))
    parts = [np.empty(0, np.int64)]
    for label in np.unique(labels[chosen]):
        members = chosen[labels[chosen] == label]
        exact = round(len(members) * fraction, 6)  # 50 · 0.29 is 14.499999999999998 in binary, and 14.5 to the user
        count = max(1, math.floor(exact + 0.5))
        parts.append(members[_order(len(members), seed, "fraction", int(label))[:count]])
    return np.sort(np.concatenate(parts))


def require_usable(name: str, labels: Indices, class_names: Sequence[str], splits: Mapping[str, Indices]) -> list[Note]:
    """Refuse splits that cannot be learned from; notes about classes that a held-out split lacks."""
    notes = []
    for split, indices in splits.items():
        present = set(labels[indices].tolist())
        without = [kind for label, kind in enumerate(class_names) if label not in present]
        if without and split == "train":
            raise SoftbiasError(
                f"{name}: there is no readable picture to learn {', '.join(without[:5])} from; add some, or remove the class"
            )
        if without:
            notes.append(Note("split-lacks-classes", {"split": split, "classes": without}))
    return notes


def splits_of(split: Sequence[str]) -> dict[str, Indices]:
    """Split names -> indices, from one name per picture; pictures without one ('') are in no split.

    >>> splits_of(["train", "test", "train"])
    {'train': array([0, 2]), 'test': array([1])}
    """
    names = np.asarray(split, dtype=str)
    return {name: np.flatnonzero(names == name) for name in SPLITS if (names == name).any()}


def without_split(names: Sequence[str], split: Sequence[str]) -> list[str]:
    """The pictures that name no split, where others name one."""
    without = [name for name, given in zip(names, split, strict=True) if not given]
    return [] if len(without) == len(names) else without


def cut_groups(groups: Sequence[str], split: Sequence[str]) -> list[str]:
    """The groups that are in more than one split, each with its splits: "burst 7: test, train"."""
    splits_of_group = defaultdict(set)
    for group, name in zip(groups, split, strict=True):
        splits_of_group[group].add(name)
    return sorted(f"{group}: {', '.join(sorted(found))}" for group, found in splits_of_group.items() if len(found) > 1)


def _order(count: int, seed: int, purpose: str, label: int) -> Indices:
    """A random order of 0 … count − 1."""
    if seed < 0:
        raise SoftbiasError(f"a seed is a whole number from 0 on, but got {seed}")
    words = np.random.PCG64(np.random.SeedSequence([seed, PURPOSES[purpose], label])).random_raw(count)
    return np.argsort(words, kind="stable")
