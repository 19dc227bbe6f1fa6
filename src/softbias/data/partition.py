"""The splits of a set: given ones are kept, others are made here, with near copies on the same side.

`split_together` shares out each class as `splits.stratified_split` does, in the same random order and up to the same numbers,
but group by group: a group goes to the first split that has room for all of it, and otherwise to train. Without groups of two
or more the result is that of `stratified_split`.

Groups may be so large that nothing is left to test with: a class of frames of one film, or blank pictures that only look alike.
Then the largest are taken apart, as few as possible, and a note says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from softbias.data.dataset import Dataset
from softbias.data.groups import has_groups
from softbias.data.splits import FRACTIONS, SPLITS, Indices, order_of, quotas, require_usable, stratified_split
from softbias.errors import SoftbiasError
from softbias.notes import Note

ROOM = 3  # times its share of a class that an empty split may take, where no smaller group is there


def complete_splits(
    name: str,
    labels: Indices,
    given: Mapping[str, Indices],
    seed: int,
    groups: Sequence[str] | None = None,
    numbers: Indices | None = None,
) -> tuple[dict[str, Indices], list[Note]]:
    """Splits with a train and a test part for a set of that name, and notes about the way to them.

    Given splits are kept. Without a test part, val becomes test, because something must take part in no choice. With neither,
    the training pictures are shared out.

    groups    names that a user gave: such a group is never cut
    numbers   of pictures that stay together, see `groups.find_groups`
    """
    if given and "train" not in given:
        raise SoftbiasError(f"{name}: there are pictures for {', '.join(given)}, but none for train")
    if "test" in given:
        return dict(given), []
    if "val" in given:
        return {"train": given["train"], "test": given["val"]}, [Note("val-serves-as-test")]
    pool = given.get("train", np.arange(len(labels)))
    notes: list[Note] = []
    if groups is not None:
        together, notes = joined([groups[index] for index in pool], pool, numbers)
        parts = stratified_split(labels[pool], seed=seed, groups=together)
    elif numbers is not None:
        parts, notes = split_together(labels[pool], numbers[pool], FRACTIONS, seed)
    else:
        parts = stratified_split(labels[pool], seed=seed)
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
    return {split: pool[indices] for split, indices in parts.items()}, [Note("split-made", about), *notes]


def scored_on_val(data: Dataset) -> Dataset:
    """The set for choosing between models and settings: its validation pictures are scored, and its test pictures unseen.

    Where there are no validation pictures, a fifth of the training pictures is scored, the same whatever the seed of a run.
    """
    if "train" not in data.splits or "test" not in data.splits:
        raise SoftbiasError(f"{data.name}: score='val' is for pictures with classes, in train and test")
    train, val = data.splits["train"], data.splits.get("val")
    notes: list[Note] = []
    own = val is not None
    if val is None:
        together = np.arange(len(train)) if data.groups is None else data.groups[train]
        parts, notes = split_together(data.labels[train], together, {"test": FRACTIONS["test"]}, seed=0)
        train, val = train[parts["train"]], train[parts["test"]]
    if not len(val):
        raise SoftbiasError(f"{data.name}: no class has two training pictures, so none is left to score")
    about = {"count": len(val), "own": own, "unseen": len(data.splits["test"])}
    scored = data.with_splits({"train": train, "test": val}).with_notes(Note("scored-on-val", about), *notes)
    return scored.with_notes(*require_usable(data.name, data.labels, data.class_names, scored.splits))


def joined(groups: Sequence[str], pool: Indices, numbers: Indices | None) -> tuple[Sequence[str], list[Note]]:
    """The groups that a user named, joined where near copies connect them, if enough of them are left for every split.

    A note where too few are left, and near copies may stand on both sides of the split.
    """
    if numbers is None:
        return groups, []
    together = [str(number) for number in numbers[pool].tolist()]
    left = len(set(together))
    if left < len(SPLITS) and left < len(set(groups)):
        return groups, [Note("copies-not-joined", {"groups": len(set(groups)), "left": left})]
    return together if left >= len(SPLITS) else groups, []


def split_together(
    labels: Indices, numbers: Indices, fractions: Mapping[str, float], seed: int
) -> tuple[dict[str, Indices], list[Note]]:
    """Split names -> sorted indices, and a note about the groups. "train" gets the rest that `fractions` leave."""
    if not has_groups(numbers):
        return stratified_split(labels, fractions, seed), []
    _, member_of, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    limits = sorted({1, *sizes.tolist()})
    low, high = 0, len(limits) - 1  # the largest limit that leaves enough for the test; with 1 all groups are taken apart
    while low < high:
        middle = (low + high + 1) // 2
        if leaves_enough(labels, within(member_of, sizes, limits[middle]), fractions, seed):
            low = middle
        else:
            high = middle - 1
    limit = limits[low]
    kept, torn = sizes[(sizes > 1) & (sizes <= limit)], sizes[sizes > limit]
    about = {
        "groups": len(kept), "count": int(kept.sum()),
        "torn": len(torn), "torn_count": int(torn.sum()), "largest": int(torn.max(initial=0)),
    }  # fmt: skip
    return share_out(labels, within(member_of, sizes, limit), fractions, seed), [Note("copies-together", about)]


def within(member_of: Indices, sizes: Indices, limit: int) -> Indices:
    """The numbers of groups of at most that size; the members of larger ones get numbers of their own."""
    return np.where(sizes[member_of] <= limit, member_of, len(sizes) + np.arange(len(member_of)))


def leaves_enough(labels: Indices, numbers: Indices, fractions: Mapping[str, float], seed: int) -> bool:
    """Whether every class that would be tested without groups is tested, and at least half as many pictures in all."""
    if "test" not in fractions:
        return True
    test, plain = share_out(labels, numbers, fractions, seed)["test"], stratified_split(labels, fractions, seed)["test"]
    return set(labels[test].tolist()) == set(labels[plain].tolist()) and 2 * len(test) >= len(plain)


def share_out(labels: Indices, numbers: Indices, fractions: Mapping[str, float], seed: int) -> dict[str, Indices]:
    """Each group whole to the first split with room for it, in the order in which the first picture of a group comes."""
    classes, group_of = labels.tolist(), numbers.tolist()
    members: dict[int, list[int]] = {}
    for index, number in enumerate(group_of):
        members.setdefault(number, []).append(index)
    orders = {}
    for label in np.unique(labels).tolist():
        indices = np.flatnonzero(labels == label)
        orders[label] = indices[order_of(len(indices), seed, "split", label)].tolist()
    room = {(label, name): n for label, order in orders.items() for name, n in quotas(len(order), fractions).items()}
    full, split_of = dict(room), {}
    for order in orders.values():
        for index in order:
            number = group_of[index]
            if number in split_of:
                continue
            wanted = Counter(classes[each] for each in members[number])
            fits = (name for name in fractions if all(room[label, name] >= count for label, count in wanted.items()))
            split_of[number] = next(fits, "train")
            for label, count in wanted.items() if split_of[number] != "train" else ():
                room[label, split_of[number]] -= count
    for number, name in for_empty(members, classes, split_of, room, full).items():
        split_of[number] = name
    names = np.array([split_of[number] for number in group_of])
    return {name: np.flatnonzero(names == name) for name in ("train", *fractions)}


def for_empty(
    members: Mapping[int, list[int]],
    classes: Sequence[int],
    split_of: Mapping[int, str],
    room: Mapping[tuple[int, str], int],
    full: Mapping[tuple[int, str], int],
) -> dict[int, str]:
    """Groups of train for splits that got nothing of a class because every group was too large: the smallest ones."""
    empty = [key for key, quota in full.items() if quota and room[key] == quota]
    waiting = {label for label, _ in empty}
    candidates: dict[int, list[int]] = {label: [] for label in waiting}
    for number, found in members.items() if empty else ():
        own = {classes[index] for index in found}
        if len(own) == 1 and own <= waiting and split_of[number] == "train":
            candidates[own.pop()].append(number)
    moved: dict[int, str] = {}
    for label, name in sorted(empty, key=lambda key: key[1] != "test"):  # test comes first
        left = sorted(candidates[label], key=lambda number: len(members[number]))
        if len(left) > 1 and len(members[left[0]]) <= ROOM * full[label, name]:
            moved[left[0]] = name
            candidates[label] = left[1:]
    return moved
