"""Which pictures train, which choose and which test: stratified, seeded, and always the same.

Every choice comes from one order per class. Its sort keys are the raw 64-bit words of PCG64, seeded with
SeedSequence([seed, purpose, class]): numpy promises that those words never change, and does not promise it for `permutation`.
So no class depends on the number of pictures of another one, and 5 % of a set always lie inside its 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softbias.errors import SoftbiasError
from softbias.notes import Note

Indices = NDArray[np.int64]
SPLITS = ("train", "val", "test")
FRACTIONS = {"val": 0.1, "test": 0.2}  # the rest trains
PURPOSES = {"split": 1, "fraction": 2, "group": 4}
SPLIT_NOTES = frozenset(
    {
        "split-made", "split-read", "split-written", "split-lacks-classes", "val-serves-as-test", "scored-on-val",
        "copies-together", "copies-across", "copies-not-sought", "copies-not-joined",
    }
)  # fmt: skip
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
        order = members[order_of(len(members), seed, "split", int(label))]
        start = 0
        for name, count in quotas(len(order), shares).items():
            parts[name].append(order[start : start + count])
            start += count
        parts["train"].append(order[start:])
    return {name: np.sort(np.concatenate([*found, np.empty(0, np.int64)])) for name, found in parts.items()}


def quotas(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """How many of `count` pictures of a class go to each split beside train.

    Every class is tested, however small. It gives a picture to val where that is its share: of three pictures, two train.

    >>> quotas(10, {"val": 0.1, "test": 0.2}), quotas(3, {"val": 0.1, "test": 0.2}), quotas(1, {"val": 0.1, "test": 0.2})
    ({'val': 1, 'test': 2}, {'val': 0, 'test': 1}, {'val': 0, 'test': 0})
    """
    counts = {name: max(int(name == "test"), round(share * count)) for name, share in shares.items()}
    for name in sorted(counts, key=lambda name: name == "test"):  # too few for all: test is the last to go without
        if sum(counts.values()) >= count:
            counts[name] = max(0, count - 1 - (sum(counts.values()) - counts[name]))
    return counts


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
    shuffled = order_of(len(names), seed, "group", 0)
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


def nested_fraction(labels: ArrayLike, indices: ArrayLike, fraction: float, seed: int) -> Indices:
    """That share of the indices, class by class, at least one of each; a smaller part lies inside a larger one."""
    if not 0 < fraction <= 1:
        raise SoftbiasError(f"a fraction is a share, more than 0 and at most 1, but got {fraction}")

    def count(members: int) -> int:
        exact = round(members * fraction, 6)  # 50 · 0.29 is 14.499999999999998 in binary, and 14.5 to the user
        return max(1, math.floor(exact + 0.5))

    return nested_part(labels, indices, count, seed)


def nested_part(labels: ArrayLike, indices: ArrayLike, count: Callable[[int], int], seed: int) -> Indices:
    """The first of the indices of each class, in an order that depends on the seed alone; so parts lie inside each other.

    count   how many of a class are taken, given how many there are; all of them where it is more
    """
    labels, chosen = np.asarray(labels, dtype=np.int64), np.unique(np.asarray(indices, dtype=np.int64))
    parts = [np.empty(0, np.int64)]
    for label in np.unique(labels[chosen]):
        members = chosen[labels[chosen] == label]
        parts.append(members[order_of(len(members), seed, "fraction", int(label))[: count(len(members))]])
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


def order_of(count: int, seed: int, purpose: str, label: int) -> Indices:
    """A random order of 0 … count − 1."""
    if seed < 0:
        raise SoftbiasError(f"a seed is a whole number from 0 on, but got {seed}")
    words = np.random.PCG64(np.random.SeedSequence([seed, PURPOSES[purpose], label])).random_raw(count)
    return np.argsort(words, kind="stable")
