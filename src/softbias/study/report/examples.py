"""Test pictures on which the arms disagree: which they are, and how they stand on the page.

An arm is right about a picture if more than half of its seeds are. The clearest disagreements come first. A disagreement is
clear if the share of seeds that are right differs much between the one arm and the nearest of the others.

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
from softbias.data.sources import is_named
from softbias.errors import in_one_line
from softbias.pages.html import Picture, picture
from softbias.runs.answers import Answers
from softbias.runs.run import Run
from softbias.study.headline import each
from softbias.study.report.results import Material, classes_of, tested_of

PER_GALLERY = 6  # pictures per arm
GALLERIES = 6


@dataclass(frozen=True)
class Votes:
    """The answers of the seeds of every arm on the same test pictures."""

    arms: list[str]
    tested: Answers
    right: NDArray[np.float64]  # (A, n), share of seeds that are right
    answers: NDArray[np.int64]  # (A, n), see `answers_of`
    names: list[str]
    run: str


def votes(material: Material, data: str, amount: float) -> Votes | None:
    """The votes of all arms with predictions of the same pictures; None with fewer than two."""
    first: Answers | None = None
    arms, right, answers, names, run = [], [], [], [], ""
    for arm in material.arms:
        found = [(row.run, tested_of(row.run)) for row in each(material.cell(data, amount, arm))]
        kept = [
            (path, one) for path, one in found if one is not None and (first is None or np.array_equal(one.index, first.index))
        ]
        if not kept:
            continue
        if first is None:
            run, first = kept[0]
            names = list(classes_of(run)["name"]) if len(classes_of(run)) else []
        table = np.stack([one.predicted for _, one in kept])  # (seeds, n)
        arms.append(arm)
        right.append((table == first.labels).mean(0))
        answers.append(answers_of(table, first.labels))
    if first is None or len(arms) < 2 or not names:
        return None
    return Votes(arms, first, np.stack(right), np.stack(answers), names, run)


def answers_of(table: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The answer of an arm: the true class if most seeds name it, else the most frequent wrong one.  # (seeds, n) -> (n,)"""
    counts = np.stack([(table == value).sum(0) for value in range(int(max(table.max(), labels.max())) + 1)])  # (classes, n)
    everywhere = np.arange(len(labels))
    right = counts[labels, everywhere]
    counts[labels, everywhere] = np.where(2 * right > len(table), right, -1)
    best: NDArray[np.int64] = counts.argmax(0)
    return best


def disagreements(found: Votes) -> tuple[dict[str, int], list[tuple[str, NDArray[np.int64]]]]:
    """How many images all, none or some of the arms get right; for each arm, the images that only it gets right or wrong."""
    good = found.right > 0.5  # (A, n)
    votes_for, arms = good.sum(0), len(found.arms)
    counts = {"all are right": int((votes_for == arms).sum()), "all are wrong": int((votes_for == 0).sum())}
    counts["they disagree"] = int(good.shape[1]) - sum(counts.values())
    groups = []
    for number, arm in enumerate(found.arms):
        others = np.delete(found.right, number, 0)
        alone = good[number] & (votes_for == 1)
        groups.append((f"Only {arm} is right", clearest_first(alone, found.right[number] - others.max(0))))
        if arms > 2:
            alone = ~good[number] & (votes_for == arms - 1)
            groups.append((f"Only {arm} is wrong", clearest_first(alone, others.min(0) - found.right[number])))
    return counts, groups


def clearest_first(mask: NDArray[np.bool_], margin: NDArray[np.float64]) -> NDArray[np.int64]:
    """The indices that the mask holds, those of the largest margin first."""
    chosen = np.flatnonzero(mask)
    return chosen[np.argsort(-margin[chosen], kind="stable")]


def example_section(material: Material, data: str, amount: float) -> dict[str, Any] | None:
    """Counts and galleries, and the reason where pictures cannot be shown."""
    found = votes(material, data, amount)
    if found is None:
        return None
    counts, groups = disagreements(found)
    reader = PictureReader(found)
    galleries = [
        {
            "title": title,
            "total": len(order),
            "cards": [card(material, found, reader, int(index)) for index in order[:PER_GALLERY]],
        }
        for title, order in groups[: 2 * GALLERIES]
        if len(order)
    ]
    about = {"n": len(found.tested.index), "amount": amount}
    return {**about, "counts": counts, "galleries": galleries, "missing": reader.missing}


def card(material: Material, found: Votes, reader: PictureReader, index: int) -> dict[str, Any]:
    """One picture with its label and the answer of every arm."""
    label = found.names[int(found.tested.labels[index])]
    rows = []
    for row, arm in enumerate(found.arms):
        right = float(found.right[row, index])
        answer = {"arm": arm, "number": material.number(arm), "answer": found.names[int(found.answers[row, index])]}
        rows.append({**answer, "right": right > 0.5, "share": f"{100 * right:.0f} %"})
    files = found.tested.files
    answers = ", ".join(f"{row['arm']} answers {row['answer']}" for row in rows)
    return {
        "label": label,
        "rows": rows,
        "file": Path(files[index]).name if files is not None else f"picture {int(found.tested.index[index])}",
        "alt": f"A picture of class {label}; {answers}",
        "picture": reader.get(index),
    }


def is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


class PictureReader:
    """Test pictures from their files, or from the set that the run's config names; `missing` is the reason where they fail."""

    def __init__(self, found: Votes) -> None:
        self.found = found
        self.data: Dataset | None = None
        self.missing: str | None = None
        if found.tested.files is None or not is_file(found.tested.files[0]):
            self.data, self.missing = self.load()

    def load(self) -> tuple[Dataset | None, str | None]:
        try:
            spec = Run(Path(self.found.run)).spec
            options = dict(spec.data_options)
            if is_named(spec.data):
                options["download"] = False  # a report never fetches anything
            data = load_dataset(spec.data, **options)
        except (ValueError, OSError, TypeError) as error:
            reason = in_one_line(error)
            return None, f"The pictures are not shown, because the data set could not be read: {reason[:200]}"
        tested = self.found.tested
        if tested.index.max() >= len(data) or not np.array_equal(data.labels[tested.index], tested.labels):
            return None, f"The pictures are not shown: the data set {data.name} is no longer the one these runs were tested on."
        return data, None

    def get(self, index: int) -> Picture | None:
        tested = self.found.tested
        if self.data is not None:
            return picture(self.data.images[int(tested.index[index])])
        if tested.files is None or self.missing:
            return None
        try:
            with Image.open(tested.files[index]) as image:
                return picture(np.asarray(image.convert("RGB")))
        except (OSError, ValueError):
            self.missing = "Some pictures are not shown: their files could not be read."
            return None
