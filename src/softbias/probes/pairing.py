"""Models with the pictures to show them: a run brings its own along, anything else is shown what is named.

A run with checkpoints also brings itself at earlier times: at its start and at every checkpoint it kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from softbias.classifier import Classifier
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.errors import SoftbiasError
from softbias.runs.opening import Opened, is_built, open_model
from softbias.runs.page import epoch_rows
from softbias.runs.prepare import split_up
from softbias.runs.run import Run, RunSpec


@dataclass(frozen=True)
class Pair:
    opened: Opened
    data: Dataset

    @property
    def classifier(self) -> Classifier:
        return self.opened.classifier

    def called(self, name: str) -> Pair:
        return replace(self, opened=replace(self.opened, classifier=replace(self.classifier, name=name)))


class Sets:
    """Sets of pictures, each read once."""

    def __init__(self, data_dir: str | None = None) -> None:
        self.data_dir = data_dir
        self.read: dict[str, Dataset] = {}

    def load(self, source: str, **options: Any) -> Dataset:
        if self.data_dir is not None:
            options["data_dir"] = self.data_dir
        key = repr((source, sorted(options.items())))
        if key not in self.read:
            self.read[key] = load_dataset(source, **options)
        return self.read[key]

    def of_run(self, spec: RunSpec) -> Dataset:
        """A run's pictures, split as it split them: validation pictures are no training pictures."""
        data = self.load(spec.data, **spec.data_options)
        return data.with_splits(split_up(data, spec).as_dict())


def pair(source: str, data: str | None, sets: Sets, *, device: str = "cpu", options: Mapping[str, Any] | None = None) -> Pair:
    """What a name stands for; `data` wins over a run's own pictures, and is needed by everything that is not a run.

    options   of a model that is built here, which has the classes and the size of the pictures
    """
    if is_built(source):
        size = (options or {}).get("img_size")
        found = sets.load(needed(source, data), **({"img_size": size} if size else {}))
        fitting = {**(options or {}), "num_classes": len(found.class_names), "img_size": found.img_size}
        return Pair(open_model(source, device=device, **fitting), found)
    opened = open_model(source, device=device, read_data=sets.load)
    if data is None and opened.run is not None:
        return Pair(opened, sets.of_run(opened.run.spec()))
    return Pair(opened, sets.load(needed(source, data), img_size=opened.img_size))


def needed(source: str, data: str | None) -> str:
    if data is None:
        raise SoftbiasError(f"{source} is not a run, so it brings no pictures along: name some with --data")
    return data


def through_training(opened: Opened) -> Iterator[Classifier]:
    """The classifier at its start and at every checkpoint of its run, in order."""
    if opened.run is None:
        raise SoftbiasError(f"{opened.classifier.name} is not a run, so it has no checkpoints")
    moments = opened.moments()
    if not moments:
        raise SoftbiasError(f"{opened.run.path} keeps no checkpoints; fit with --keep every=1, or --probe-every 1")
    steps = steps_per_epoch(opened.run)
    for moment in moments:
        classifier = opened.at(moment).classifier
        yield replace(classifier, when={**classifier.when, "epoch": round(classifier.when["step"] / steps, 4)})


def steps_per_epoch(run: Run) -> float:
    """From the first line of metrics that tells of an epoch."""
    rows = epoch_rows(run.metrics)
    if not rows:
        raise SoftbiasError(f"{run.path} has no epoch in its metrics.jsonl, so its checkpoints cannot be placed")
    return rows[0]["step"] / rows[0]["epoch"]
