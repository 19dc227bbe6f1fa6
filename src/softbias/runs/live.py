"""Probes while a model trains: `fit --probe-every K` appends rows to RUN/probes/<name>.jsonl, at the start and every K epochs.

They measure on validation images (on training images where there are none), never on test images, and with the weights of
the step, not with averaged ones. Training is not changed: no random number is drawn, and the model is put back into its mode.

A run that was killed trains some epochs again. The first rows that a process writes therefore replace the rows of the same
and of later steps, and a line that the kill tore: the files end as if the run had never been stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from softbias.classifier import Classifier
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.files import write_text
from softbias.notes import Note
from softbias.probes import find_probe
from softbias.probes.rows import Rows, append_rows
from softbias.runs.probing import not_measurable
from softbias.runs.run import Run
from softbias.schema import from_plain
from softbias.training import checkpoint
from softbias.training.plan import TrainingPlan

LIVE = ("locality", "gates", "masks")  # one pass, or none
IMAGES = 200


class LiveProbes:
    """Is called with the row of every epoch."""

    def __init__(
        self, plan: TrainingPlan, data: Dataset, split: Split, run: Run, every: int, names: Sequence[str] = LIVE
    ) -> None:
        self.plan, self.every, self.folder = plan, every, run.probe_folder
        self.data = data.with_splits({"val": split.train if split.val is None else split.val})
        self.name = run.path.name
        self.probes = {name: find_probe(name) for name in names}
        self.own: set[Path] = set()  # files that this process has appended to
        self.notes: list[Note] = []

    @staticmethod
    def start(plan: TrainingPlan, data: Dataset, split: Split, run: Run, every: int) -> LiveProbes:
        """The probes of a run, which have measured the untrained model if the run begins."""
        live = LiveProbes(plan, data, split, run, every)
        if not checkpoint.listed(run.checkpoint_folder):
            live.measure(step=0, epoch=0)
        return live

    def __call__(self, row: dict[str, Any]) -> None:
        if row["epoch"] % self.every == 0 or row["epoch"] == row["epochs"]:
            self.measure(step=row["step"], epoch=row["epoch"])

    def measure(self, step: int, epoch: int) -> None:
        if not self.plan.accelerator.is_main_process:
            return
        batches = self.plan.batches
        known = {"mean": batches.mean, "std": batches.std, "class_names": None, "when": {"step": step, "epoch": epoch}}
        classifier = Classifier.of(self.plan.in_use(), self.name, **known)
        try:
            for name, probe in list(self.probes.items()):
                options = {"n": IMAGES, "split": "val"} if probe.n else {}
                try:
                    rows = probe.measure(classifier, self.data, **options)
                except NotMeasurableError as error:  # training does not add such a part to the model
                    del self.probes[name]
                    self.notes.append(not_measurable(name, self.name, error))
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_text(self.folder / "notes.json", json.dumps([note.to_dict() for note in self.notes], indent=1) + "\n")
                    continue
                file = self.folder / f"{name}.jsonl"
                if file not in self.own:
                    drop_from(file, step)
                    self.own.add(file)
                append_rows(rows, file)
        finally:
            self.plan.set_mode()


class LiveRow(TypedDict):
    """The entries of a row that its readers rely on."""

    step: int
    epoch: float
    measure: str
    layer: int
    head: int | None
    value: float | None


def read_live(run: Run, name: str) -> Rows:
    """The rows that a probe left while the run trained; none where it was not asked for, or does not apply to the model."""
    file = run.probe_folder / f"{name}.jsonl"
    if not file.is_file():
        return []
    lines = file.read_bytes().splitlines()
    rows = [json.loads(line) for line in checkpoint.rows_until(file, sys.maxsize)]
    if len(rows) < len(lines) and run.finished:
        raise SoftbiasError(f"{file}, line {len(rows) + 1} cannot be read")
    for number, row in enumerate(rows, start=1):
        from_plain(LiveRow, row, f"{file}, line {number}")
    return rows


def drop_from(file: Path, step: int) -> None:
    """Drop the rows of a step and of later ones."""
    if file.is_file():
        write_text(file, "".join(f"{line}\n" for line in checkpoint.rows_until(file, step - 1)))
