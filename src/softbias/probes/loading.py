"""Subjects from what a user names: a run, a saved model's folder, one of our names, timm:NAME, or hf:FOLDER.

A run brings its own pictures along (its data, its splits) and, with checkpoints, itself at earlier times: epoch 0 is the model
as it was before its first step, built again from its seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.models import PRESETS, create_model
from softbias.probes.subject import Subject, weights_of
from softbias.training import checkpoint
from softbias.training.predict import model_folder, preprocessing
from softbias.training.preparing import build_model, split_up
from softbias.training.run import RunDirectory, RunSpec

HEAD_ONLY = "untrained but for its head"


@dataclass(frozen=True)
class Named:
    """A subject, the pictures to show it, and its run where it has one."""

    subject: Subject
    data: Dataset
    run: RunDirectory | None = None


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
        parts = split_up(data, spec)
        splits = {"train": parts.train, "val": parts.val, "test": parts.test}
        return data.with_splits({name: indices for name, indices in splits.items() if indices is not None})


def find_subject(name: str, data: str | None, sets: Sets, *, device: str = "cpu", **options: Any) -> Named:
    """What a name stands for; `data` wins over a run's own pictures, and is needed by everything that is not a run."""
    if is_name(name):
        return from_name(name, needed(name, data), sets, device, options)
    if options:
        raise ValueError(f"options of a model are for one that is built here, but {name} is read from files")
    folder = model_folder(name)
    subject = from_folder(folder, device)
    run = RunDirectory(Path(name))
    known = run.config.is_file()
    subject = replace(subject, name=Path(name).resolve().name)
    if known and run.spec().finetune == "probe" and subject.weights == "untrained":
        subject = replace(subject, weights=HEAD_ONLY)
    if data is None and known:
        return Named(subject, sets.of_run(run.spec()), run)
    size = size_of(subject, folder)
    return Named(subject, sets.load(needed(name, data), img_size=size), run if known else None)


def is_name(name: str) -> bool:
    return name.startswith(("timm:", "hf:")) or (name in PRESETS and not Path(name).exists())


def needed(name: str, data: str | None) -> str:
    if data is None:
        raise ValueError(f"{name} is not a run, so it brings no pictures along: name some with --data")
    return data


def from_name(name: str, data: str, sets: Sets, device: str, options: dict[str, Any]) -> Named:
    if name.startswith("hf:"):
        model: Any = create_model(name, device=device)
        folder = Path(name.removeprefix("hf:"))
        cfg = preprocessing(model, folder)
        subject = Subject.of(model, name, mean=tuple(cfg["mean"]), std=tuple(cfg["std"]))
        generic = subject.class_names is not None and all(one.startswith("LABEL_") for one in subject.class_names)
        size = tuple(cfg["input_size"][1:])
        return Named(replace(subject, class_names=None) if generic else subject, sets.load(data, img_size=size))
    if name in PRESETS:
        options.setdefault("img_size", None)
        size = options["img_size"] or sets.load(data).img_size
        found = sets.load(data, img_size=size)
    else:
        found = sets.load(data, **({"img_size": options["img_size"]} if options.get("img_size") else {}))
    torch.manual_seed(0)
    model = create_model(name, **{**options, "num_classes": len(found.class_names), "img_size": found.img_size}, device=device)
    return Named(Subject.of(model, name, class_names=None), found)


def from_folder(folder: Path, device: str) -> Subject:
    from softbias.models.storage import load

    model: Any = load(folder, device=torch.device(device))
    cfg = preprocessing(model, folder)
    return Subject.of(model, mean=tuple(cfg["mean"]), std=tuple(cfg["std"]))


def size_of(subject: Subject, folder: Path) -> tuple[int, int]:
    _, height, width = preprocessing(subject.model, folder)["input_size"]
    return height, width


def through_training(named: Named) -> Iterator[Subject]:
    """The subject at its start and at every checkpoint of its run, in order."""
    if named.run is None:
        raise ValueError(f"{named.subject.name} is not a run, so it has no checkpoints")
    saved = checkpoint.listed(named.run.checkpoints)
    if not saved:
        raise ValueError(f"{named.run.path} keeps no checkpoints; fit with --keep every=1, or --probe-every 1")
    spec, subject = named.run.spec(), named.subject
    steps = steps_per_epoch(named.run)
    if spec.source is None and not spec.pretrained and spec.weights is None:
        yield moment(subject, spec, named.data, None, 0, steps)
    for path in saved:
        tensors, meta = checkpoint.read(path)
        weights = checkpoint.part("average", tensors) or checkpoint.part("model", tensors)
        yield moment(subject, spec, named.data, weights, meta["step"], steps)


def moment(
    subject: Subject, spec: RunSpec, data: Dataset, weights: dict[str, torch.Tensor] | None, step: int, steps: float
) -> Subject:
    torch.manual_seed(spec.seed)  # as `preparing.make_plan` does
    classes = 4 if spec.recipe.objective == "rotation" else len(data.class_names)
    model = build_model(spec, classes, data.img_size)
    if weights is not None:
        model.load_state_dict(weights)
    model = model.to(subject.device).eval()
    when = {"step": step, "epoch": round(step / steps, 4)}
    return replace(subject, model=model, weights=weights_of(model), when=when)


def steps_per_epoch(run: RunDirectory) -> float:
    """From the first line of metrics that tells of an epoch."""
    from softbias.training.page import epoch_rows

    rows = epoch_rows(run.metrics)
    if not rows:
        raise ValueError(f"{run.path} has no epoch in its metrics.jsonl, so its checkpoints cannot be placed")
    return rows[0]["step"] / rows[0]["epoch"]
