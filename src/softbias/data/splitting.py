"""The splits of a set: which pictures are for training, for choosing and for the test.

Given splits are kept. Without any, 70 % train, 10 % val and 20 % test, stratified and seeded, near copies together; a
`manifest` keeps them, and is used again where it exists. With train and test only there is no val, and training takes its own
part of train for choosing. With train and val only, val becomes the test set: something must take part in no choice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from softbias.data.dataset import Dataset
from softbias.data.duplicates import thumbnails
from softbias.data.groups import copies_across, cut_groups, find_groups
from softbias.data.listing import Listing, counted_images, some
from softbias.data.partition import complete_splits
from softbias.data.resizing import Images
from softbias.data.splits import Indices, require_usable, splits_of, without_split
from softbias.data.tables import recall_splits, write_manifest
from softbias.errors import SoftbiasError
from softbias.files import escaped
from softbias.notes import Note


def split_arrays(data: Dataset, seed: int, thumbs: Images | None = None) -> Dataset:
    """Arrays with all of their splits. thumbs: as `thumbnails` makes them, if they were made already."""
    numbers, notes = find_groups(len(data), lambda: thumbnails(data.images) if thumbs is None else thumbs)
    splits, made = complete_splits(data.name, data.labels, data.splits, seed, numbers=numbers)
    if not any(note.kind == "split-made" for note in made):
        made += copies_across(numbers, splits, lambda index: f"picture {index}")
    usable = require_usable(data.name, data.labels, data.class_names, splits)
    return replace(data.with_splits(splits), groups=numbers).with_notes(*notes, *made, *usable)


@dataclass(frozen=True)
class SplitListing:
    """The readable pictures of a listing, with their splits. groups: as those of a Dataset."""

    listing: Listing
    splits: dict[str, Indices]
    groups: Indices | None
    notes: tuple[Note, ...]


def split_readable(
    listing: Listing,
    readable: Sequence[int] | Indices,
    seed: int = 0,
    manifest: str | Path | None = None,
    thumbs: Images | None = None,
) -> SplitListing:
    """The splits of the readable pictures. What it refuses is refused by training, and reported by `check`.

    thumbs   thumbnails of the readable pictures; without them near copies are not known
    """
    kept = listing if len(readable) == len(listing) else listing.take(readable)
    gone = sorted(set(listing.split or ()) - set(kept.split or ()))
    if gone:  # nothing else should take its part unnoticed
        raise SoftbiasError(f"{listing.name}: no picture of {' and '.join(gone)} can be read; repair some, or remove the split")
    numbers, notes = find_groups(len(kept), lambda: thumbs, kept.groups)
    splits, made = _split(kept, seed, manifest, numbers)
    if not any(note.kind == "split-made" for note in made):
        made += copies_across(numbers, splits, lambda index: escaped(os.path.relpath(kept.files[index], kept.root)))
    usable = require_usable(kept.name, kept.labels, kept.class_names, splits)
    return SplitListing(kept, splits, numbers, (*notes, *made, *usable))


def _split(
    listing: Listing, seed: int, manifest: str | Path | None, numbers: Indices | None
) -> tuple[dict[str, Indices], list[Note]]:
    if listing.split is not None:
        without = without_split(listing.relative(), listing.split)
        if without:
            raise SoftbiasError(
                f"{listing.name}: {counted_images(len(without))} without a split, while others have one: {some(without)}"
            )
        cut = cut_groups(listing.groups or (), listing.split if listing.groups else ())
        if cut:
            raise SoftbiasError(
                f"{listing.name}: {len(cut)} of {len(set(listing.groups or ()))} groups are in more than one split: {some(cut)}"
            )
    given = splits_of(listing.split or [])
    if manifest is None or not set(given) <= {"train"}:
        return complete_splits(listing.name, listing.labels, given, seed, listing.groups, numbers)
    if Path(manifest).exists():
        return recall_splits(listing, Path(manifest)), [Note("split-read", {"file": str(manifest)})]
    splits, notes = complete_splits(listing.name, listing.labels, given, seed, listing.groups, numbers)
    write_manifest(manifest, listing, splits)
    return splits, [*notes, Note("split-written", {"file": str(manifest)})]
