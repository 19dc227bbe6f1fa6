"""Probes while a model trains: `fit --probe-every K` appends rows to RUN/probes/<name>.jsonl, at the start and every K epochs.

They look at validation pictures (training pictures where there are none), never at test pictures, and at the weights as they
are, not averaged. Nothing of the training changes: no random number is drawn, and the model is put back into its mode.

A run that was killed comes by the same epochs again. So the first rows that a process writes take the place of all that are as
late or later, and of a line that the kill tore: the files end as if the run had never been stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softbias.classifier import Classifier
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.probes import find_probe
from softbias.probes.writing import append_rows
from softbias.runs.fit import Watch
from softbias.runs.run import Run
from softbias.training import checkpoint
from softbias.training.loop import Plan, set_mode

LIVE = ("locality", "gates", "masks")  # one pass, or none
PICTURES = 200


class LiveProbes:
    """Called with the row of every epoch."""

    def __init__(
        self, plan: Plan, data: Dataset, split: Split, directory: Run, every: int, names: Sequence[str] = LIVE
    ) -> None:
        self.plan, self.every, self.folder = plan, every, directory.path / "probes"
        self.data = data.with_splits({"val": split.train if split.val is None else split.val})
        self.name = directory.path.name
        self.probes = {name: find_probe(name) for name in names}
        self.own: set[Path] = set()  # files that end with rows of this process

    def start(self) -> None:
        """The untrained model, of a run that begins."""
        self.measure(step=0, epoch=0)

    def __call__(self, row: dict[str, Any]) -> None:
        if row["epoch"] % self.every == 0 or row["epoch"] == row["epochs"]:
            self.measure(step=row["step"], epoch=row["epoch"])

    def measure(self, step: int, epoch: int) -> None:
        if not self.plan.accelerator.is_main_process:
            return
        batches = self.plan.batches
        known = {"mean": batches.mean, "std": batches.std, "class_names": None, "when": {"step": step, "epoch": epoch}}
        classifier = Classifier.of(self.plan.model, self.name, **known)
        try:
            for name, probe in list(self.probes.items()):
                options = {"n": PICTURES, "split": "val"} if probe.pictures else {}
                try:
                    rows = probe.measure(classifier, self.data, **options)
                except ValueError:  # the model has no such thing, and will not get it
                    del self.probes[name]
                    continue
                file = self.folder / f"{name}.jsonl"
                if file not in self.own:
                    forget(file, step)
                    self.own.add(file)
                append_rows(rows, file)
        finally:
            set_mode(self.plan)


def watching(every: int) -> Watch:
    """For `run_fit(watch=…)`: probes at the start of a run and every so many epochs."""
    if every < 1:
        raise SoftbiasError(f"--probe-every takes a number of epochs of at least 1, but got {every}")

    def watch(plan: Plan, data: Dataset, split: Split, directory: Run) -> LiveProbes:
        live = LiveProbes(plan, data, split, directory, every)
        if not checkpoint.listed(directory.checkpoint_folder):
            live.start()
        return live

    return watch


def forget(file: Path, step: int) -> None:
    """Keep the lines before a step alone; the file is there whole at any moment."""
    if file.is_file():
        write_text(file, "".join(f"{line}\n" for line in checkpoint.rows_until(file, step - 1)))
