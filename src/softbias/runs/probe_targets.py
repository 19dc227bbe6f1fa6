"""Models with the images to measure them on: what `softbias probe` opens, each set of images once.

A run brings its own images, split as training split them, and its checkpoints. Every other model needs a set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softbias.classifier import Classifier
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.errors import SoftbiasError
from softbias.runs.opening import Source, at_checkpoint, find_run, is_built, open_classifier
from softbias.runs.run import Run


@dataclass(frozen=True)
class ProbeTarget:
    """A classifier with a set of images, and its run where it has one."""

    classifier: Classifier
    data: Dataset
    run: Run | None = None

    def renamed(self, name: str) -> ProbeTarget:
        return replace(self, classifier=replace(self.classifier, name=name))


class DatasetCache:
    """Sets of images, each read once."""

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

    def of_run(self, run: Run) -> Dataset:
        """The run's set, split as training split it: a validation image is no training image."""
        data = run.data(self.load)
        return data.with_splits(run.split(data).as_dict())


def open_target(
    source: Source, data: str | None, cache: DatasetCache, *, device: str = "cpu", options: Mapping[str, Any] | None = None
) -> ProbeTarget:
    """A source with `data`, or with the run's own set; everything that is not a run needs `data`.

    options   of a model that is built by name, for the classes and the size of these images
    """
    if isinstance(source, str | Path) and is_built(source):
        size = (options or {}).get("img_size")
        found = cache.load(needed(source, data), **({"img_size": size} if size else {}))
        fitting = {**(options or {}), "num_classes": len(found.class_names), "img_size": found.img_size}
        return ProbeTarget(open_classifier(source, device=device, **fitting), found)
    run = find_run(source)
    classifier = open_classifier(run or source, device=device, read=cache.load)
    if data is None and run is not None:
        return ProbeTarget(classifier, cache.of_run(run), run)
    return ProbeTarget(classifier, cache.load(needed(source, data), img_size=classifier.img_size), run)


def needed(source: Source, data: str | None) -> str:
    if data is None:
        named = source if isinstance(source, str | Path) else "the model"
        raise SoftbiasError(f"{named} is not a run, so it has no pictures of its own: name some with --data")
    return data


def through_training(target: ProbeTarget) -> Iterator[Classifier]:
    """The classifier of a run at its start and at every checkpoint, in order."""
    run = target.run
    if run is None:
        raise SoftbiasError(f"{target.classifier.name} is not a run, so it has no checkpoints")
    checkpoints = run.checkpoints
    if not checkpoints:
        raise SoftbiasError(f"{run.path} keeps no checkpoints; fit with --keep every=1, or --probe-every 1")
    rows = run.metrics()
    if not rows:
        raise SoftbiasError(f"{run.path} has no epoch in its metrics.jsonl, so the epochs of its checkpoints are not known")
    steps = rows[0]["step"] / rows[0]["epoch"]
    for checkpoint in checkpoints:
        classifier = at_checkpoint(run, target.classifier, checkpoint)
        yield replace(classifier, when={**classifier.when, "epoch": round(checkpoint.step / steps, 4)})
