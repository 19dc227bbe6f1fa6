"""One run of a study, from its claim to its summary; the same in this process, in a worker process and on a Ray node."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from softbias.errors import FewTokensWarning, describe_error
from softbias.notes import Note
from softbias.runs.fit import run_fit
from softbias.runs.spec import RunSpec
from softbias.runs.store import Store
from softbias.study.estimate import time_steps
from softbias.study.plan import load_once
from softbias.training.checkpoint import AllCheckpointsDamagedError
from softbias.training.display import Display
from softbias.training.loop import StoppedError

Event = dict[str, Any]


@dataclass(frozen=True)
class RunTask:
    """A run to do.

    test         False: the run does not see the test images (for choosing settings)
    only_time    time a few training steps, and write nothing

    The others are explained at `execute.ExecutionSettings`.
    """

    spec: RunSpec
    store: str
    device: str = "auto"
    baseline: bool = True
    test: bool = True
    threads: int | None = None
    only_time: bool = False
    keep: str | None = None
    probe_every: int | None = None
    test_curve: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**{name: value for name, value in vars(self).items() if name != "spec"}, "spec": self.spec.to_dict()}

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> RunTask:
        return RunTask(**{**given, "spec": RunSpec.from_dict(given["spec"])})


@dataclass(frozen=True)
class RunResult:
    """What became of a task.

    state     "busy": another process works on the run; "lost": its process or node died
    seconds   of the run, or of one training step where the task was to time it
    notes     that it continued at a step, or that it began again
    """

    id: str
    state: Literal["finished", "failed", "stopped", "busy", "lost"]
    error: str | None = None
    accuracy: float | None = None
    seconds: float = 0.0
    signal: int = 0
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> RunResult:
        return RunResult(**{**given, "notes": tuple(Note(**note) for note in given["notes"])})


class EventDisplay(Display):
    """A run's display that sends its progress as events, at most one every `seconds`, and notes where the run continued."""

    def __init__(self, send: Callable[[Event], None] = lambda event: None, seconds: float = 0.0) -> None:
        self.send, self.seconds = send, seconds
        self.last, self.total = 0.0, 0
        self.notes: list[Note] = []

    def start(self, step: int, total: int) -> None:
        self.total = total
        if step:
            self.notes.append(Note("run-continued", {"step": step, "total": total}))
        self.send({"event": "start", "step": step, "total": total})

    def step(self, step: int, row: dict[str, Any]) -> None:
        if time.monotonic() - self.last >= self.seconds:
            self.last = time.monotonic()
            self.send({"event": "step", "step": step, "total": self.total, **row})


def perform(task: RunTask, display: EventDisplay | None = None) -> RunResult:
    """Do one run. Only a claimed run is touched; an error is written to its folder and returned."""
    spec, store, display = task.spec, Store(task.store), display or EventDisplay()
    began = time.perf_counter()
    if task.only_time:
        try:
            return RunResult(spec.id, "finished", seconds=time_steps(spec, task.device, task.threads))
        except Exception as error:
            return RunResult(spec.id, "failed", describe_error(error))
    claim = store.claim(spec.id)
    if claim is None:
        return RunResult(spec.id, "busy")
    with claim:
        if store.finished(spec):
            return RunResult(spec.id, "finished")
        try:
            store.mend(spec)
            summary = train_run(task, store, display)
        except StoppedError as stop:
            return RunResult(spec.id, "stopped", signal=stop.signal, seconds=time.perf_counter() - began)
        except Exception as error:
            return RunResult(spec.id, "failed", store.fail(spec, error), seconds=time.perf_counter() - began)
    accuracy = (summary.get("test") or {}).get("accuracy")
    seconds = time.perf_counter() - began
    return RunResult(spec.id, "finished", accuracy=accuracy, seconds=seconds, notes=tuple(display.notes))


def train_run(task: RunTask, store: Store, display: EventDisplay) -> dict[str, Any]:
    """Train by the same function as `softbias fit`, and return the run's summary."""
    if task.threads:
        torch.set_num_threads(task.threads)
    reset_peak_memory()
    data = load_once(task.spec.data, task.spec.data_options)
    if not task.test:
        data = data.with_splits({name: indices for name, indices in data.splits.items() if name != "test"})
    path = store.folder(task.spec)

    def fit() -> dict[str, Any]:
        return run_fit(
            task.spec, path, resume=True, data=data, display=display, device=task.device, trackers=(),
            baseline=task.baseline and task.test, keep=task.keep or "last,best", probe_every=task.probe_every,
            test_curve=task.test_curve and task.test,
        ).summary  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewTokensWarning)  # it appeared when the study was planned
        try:
            summary = fit()
        except AllCheckpointsDamagedError as error:
            display.notes.append(Note("run-began-again", {"reason": str(error)}))
            store.clear(task.spec)
            summary = fit()
    if task.keep is None:
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return summary


def reset_peak_memory() -> None:
    """Forget the peak of memory that an earlier run of this process left."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # where Linux does not allow it, the peak is that of the process
        Path("/proc/self/clear_refs").write_text("5")
