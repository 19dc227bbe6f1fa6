"""Test pictures on which the arms disagree: which they are, and how they stand on the page.

An arm is right about a picture if more than half of its seeds are. Pictures are sorted by how clear the disagreement is:
how many more seeds of the arms that are right got it than of those that are wrong.

Shapes: A arms, n test pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.pages.html import picture
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.study.headline import each
from softbias.study.report.gathering import Material, classes_of, tested_of

SHOWN = 6  # pictures per arm
GALLERIES = 6


@dataclass(frozen=True)
class Votes:
    """What the seeds of every arm say about the same test pictures."""

    arms: list[str]
    tested: Predictions
    right: NDArray[np.float64]  # (A, n), share of seeds that are right
    says: NDArray[np.int64]  # (A, n), the answer: see `answers_of`
    names: list[str]
    run: str


def votes(material: Material, data: str, fraction: float) -> Votes | None:
    """The votes of all arms with predictions of the same pictures; None with fewer than two."""
    first: Predictions | None = None
    arms, right, says, names, run = [], [], [], [], ""
    for arm in material.arms:
        found = [(row.run, tested_of(row.run)) for row in each(material.cell(data, fraction, arm))]
        kept = [
            (place, one)
            for place, one in found
            if one is not None and (first is None or np.array_equal(one.index, first.index))
        ]
        if not kept:
            continue
        if first is None:
            run, first = kept[0]
            names = list(classes_of(run)["name"]) if len(classes_of(run)) else []
        table = np.stack([one.predicted for _, one in kept])  # (seeds, n)
        arms.append(arm)
        right.append((table == first.labels).mean(0))
        says.append(answers_of(table, first.labels))
    if first is None or len(arms) < 2 or not names:
        return None
    return Votes(arms, first, np.stack(right), np.stack(says), names, run)


def answers_of(table: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class most seeds name (seeds, n) -> (n,); where no majority is right, the most frequent wrong one."""
    counts = np.stack([(table == value).sum(0) for value in range(int(max(table.max(), labels.max())) + 1)])  # (classes, n)
    everywhere = np.arange(len(labels))
    right = counts[labels, everywhere]
    counts[labels, everywhere] = np.where(2 * right > len(table), right, -1)
    return counts.argmax(0)


def disagreements(found: Votes) -> tuple[dict[str, int], list[tuple[str, NDArray[np.int64]]]]:
    """How many pictures all, none or some arms get right; and per arm those that it alone gets right, or alone gets wrong."""
    good = found.right > 0.5  # (A, n)
    count = good.sum(0)
    several = len(found.arms)
    told = {"all are right": int((count == several).sum()), "all are wrong": int((count == 0).sum())}
    told["they disagree"] = int(good.shape[1]) - sum(told.values())
    groups = []
    for place, arm in enumerate(found.arms):
        others = np.delete(found.right, place, 0)
        alone = good[place] & (count == 1)
        clear = found.right[place] - others.max(0)
        groups.append((f"Only {arm} is right", chosen(alone, clear)))
        if several > 2:
            lost = ~good[place] & (count == several - 1)
            groups.append((f"Only {arm} is wrong", chosen(lost, others.min(0) - found.right[place])))
    return told, groups


def chosen(mask: NDArray[np.bool_], clear: NDArray[np.float64]) -> NDArray[np.int64]:
    places = np.flatnonzero(mask)
    return places[np.argsort(-clear[places], kind="stable")]


def example_section(material: Material, data: str, fraction: float) -> dict[str, Any] | None:
    """Counts, galleries and, where pictures cannot be shown, the reason."""
    found = votes(material, data, fraction)
    if found is None:
        return None
    told, groups = disagreements(found)
    reader = Pictures(found)
    galleries = [
        {"title": title, "total": len(places), "cards": [card(material, found, reader, int(place)) for place in places[:SHOWN]]}
        for title, places in groups[: 2 * GALLERIES]
        if len(places)
    ]
    return {
        "told": told,
        "n": len(found.tested.index),
        "galleries": galleries,
        "missing": reader.missing,
        "train_fraction": fraction,
    }


def card(material: Material, found: Votes, reader: Pictures, place: int) -> dict[str, Any]:
    label = found.names[int(found.tested.labels[place])]
    rows = [
        {"arm": arm, "number": material.number(arm), "says": found.names[int(found.says[number, place])]}
        | {"right": bool(found.right[number, place] > 0.5), "share": f"{100 * found.right[number, place]:.0f} %"}
        for number, arm in enumerate(found.arms)
    ]
    index = int(found.tested.index[place])
    file = found.tested.files[place] if found.tested.files is not None else f"picture {index}"
    told = ", ".join(f"{row['arm']} says {row['says']}" for row in rows)
    return {
        "label": label,
        "rows": rows,
        "file": Path(file).name,
        "alt": f"A picture of class {label}; {told}",
        **reader.get(place),
    }


class Pictures:
    """Test pictures from their files, or from the set as the run's config names it; without them, the reason why not."""

    def __init__(self, found: Votes) -> None:
        self.found = found
        self.data: Dataset | None = None
        self.missing: str | None = None
        if found.tested.files is None or not Path(found.tested.files[0]).is_file():
            self.data, self.missing = self.load()

    def load(self) -> tuple[Dataset | None, str | None]:
        try:
            spec = Run(Path(self.found.run)).spec
            options = dict(spec.data_options)
            if not Path(spec.data).exists():
                options["download"] = False  # a report never fetches anything
            data = load_dataset(spec.data, **options)
        except (ValueError, OSError, TypeError) as error:
            reason = str(error).split("\n")[0]
            return None, f"The pictures are not shown, because the data set could not be read: {reason[:200]}"
        tested = self.found.tested
        if tested.index.max() >= len(data) or not np.array_equal(data.labels[tested.index], tested.labels):
            return None, f"The pictures are not shown: the data set {data.name} is no longer the one these runs were tested on."
        return data, None

    def get(self, place: int) -> dict[str, Any]:
        tested = self.found.tested
        if self.data is not None:
            return picture(self.data.images[int(tested.index[place])])
        if tested.files is None or self.missing:
            return {"uri": None}
        try:
            with Image.open(tested.files[place]) as image:
                return picture(np.asarray(image.convert("RGB")))
        except OSError:
            self.missing = "Some pictures are not shown: their files could not be read."
            return {"uri": None}
