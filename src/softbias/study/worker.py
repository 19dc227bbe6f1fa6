"""One run, from claim to summary; and the process that does one run after another for a study.

    python -m softbias.study.worker      reads tasks from stdin and writes events to stdout, a line of JSON each

A worker is a plain process that is talked to in text: nothing is pickled, no script is imported a second time, and it can
be killed at any moment. When its study is gone (stdin ends) it saves its state and stops.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from softbias import environment
from softbias.runs.spec import RunSpec
from softbias.study.store import Store
from softbias.training.display import Display, Quiet

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset

DATASETS = 2  # kept in memory by a process


@dataclass(frozen=True)
class Task:
    """A run to do.

    test         False: the test pictures are kept away (for choosing settings)
    checkpoints  whether those of a finished run stay
    rehearse     only say what a step takes; nothing is written
    """

    spec: RunSpec
    store: str
    device: str = "auto"
    baseline: bool = True
    test: bool = True
    checkpoints: bool = False
    threads: int | None = None
    rehearse: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**{name: value for name, value in vars(self).items() if name != "spec"}, "spec": self.spec.to_dict()}

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> Task:
        return Task(**{**given, "spec": RunSpec.from_dict(given["spec"])})


@dataclass(frozen=True)
class Done:
    """What became of a task.

    "busy": somebody else is working on the run; "lost": its process or node died; notes: where a run continued.
    """

    id: str
    state: Literal["finished", "failed", "stopped", "busy", "lost"]
    error: str | None = None
    accuracy: float | None = None
    seconds: float = 0.0
    signal: int = 0
    notes: tuple[str, ...] = field(default=())


def perform(task: Task, display: Display | None = None) -> Done:
    """Do one run, or say why not. Only a claimed run is touched; an error is noted in its folder and returned."""
    spec, store = task.spec, Store(task.store)
    began = time.perf_counter()
    if task.rehearse:
        return perform_rehearsal(task)
    noting = Noting(display or Quiet())
    claim = store.claim(spec.id)
    if claim is None:
        return Done(spec.id, "busy")
    with claim:
        if store.finished(spec):
            return Done(spec.id, "finished")
        try:
            store.mend(spec)
            summary = train_run(task, store, noting)
        except Exception as error:
            from softbias.training.loop import StoppedError

            if isinstance(error, StoppedError):
                return Done(spec.id, "stopped", signal=error.signal, seconds=time.perf_counter() - began)
            return Done(spec.id, "failed", store.fail(spec, error), seconds=time.perf_counter() - began)
    accuracy = (summary.get("test") or {}).get("accuracy")
    return Done(spec.id, "finished", None, accuracy, time.perf_counter() - began, notes=tuple(noting.notes))


def perform_rehearsal(task: Task) -> Done:
    """`seconds` of the answer are those of one step."""
    from softbias.study.rehearsal import rehearse

    try:
        return Done(task.spec.id, "finished", seconds=rehearse(task.spec, task.device, task.threads))
    except Exception as error:
        return Done(task.spec.id, "failed", f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")


def train_run(task: Task, store: Store, display: Display) -> dict[str, Any]:
    import shutil

    import torch

    from softbias.runs.fit import run_fit
    from softbias.training import loop
    from softbias.training.checkpoint import CheckpointError

    if task.threads:
        torch.set_num_threads(task.threads)
    seconds = environment.variable("SOFTBIAS_CHECKPOINT_SECONDS")
    if seconds:
        loop.CHECKPOINT_SECONDS = loop.MIDDLE_SECONDS = float(seconds)
    forget_earlier_runs()
    data = load_once(task.spec.data, task.spec.data_options)
    if not task.test:
        data = data.with_splits({name: indices for name, indices in data.splits.items() if name != "test"})
    path = store.place(task.spec)

    def fit() -> dict[str, Any]:
        return run_fit(
            task.spec, path, resume=True, data=data, display=display, device=task.device, trackers=(),
            baseline=task.baseline and task.test,
        ).summary  # fmt: skip

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*leaves only .* tokens")  # the plan has said so
        try:
            summary = fit()
        except CheckpointError as error:
            if "every checkpoint" not in str(error):
                raise
            display.message(f"{error}: it begins anew")
            store.clear(task.spec)
            summary = fit()
    if not task.checkpoints:
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return summary


def load_once(data: str, options: Mapping[str, Any]) -> Dataset:
    """A set, kept in memory for the next run of this process."""
    return _load(data, json.dumps(dict(options), sort_keys=True, default=str))


@lru_cache(maxsize=DATASETS)
def _load(data: str, options: str) -> Dataset:
    from softbias.data import load_dataset

    return load_dataset(data, **json.loads(options))


def forget_earlier_runs() -> None:
    """What an earlier run of this process would leave behind: accelerate's settings, and the peak of memory."""
    import torch
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # not Linux, or not allowed: the peak is then that of the process
        Path("/proc/self/clear_refs").write_text("5")


class Noting(Quiet):
    """Another display, and the notes of a run that continues."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.notes: list[str] = []

    def message(self, text: str) -> None:
        if text.startswith("continuing at"):
            self.notes.append(text)
        self.display.message(text)

    def start(self, step: int, total: int) -> None:
        self.display.start(step, total)

    def step(self, step: int, row: dict[str, Any]) -> None:
        self.display.step(step, row)

    def epoch(self, row: dict[str, Any]) -> None:
        self.display.epoch(row)

    def stop(self) -> None:
        self.display.stop()


class Telling(Quiet):
    """Progress as events, at most one every half second."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell, self.last, self.total = tell, 0.0, 0

    def start(self, step: int, total: int) -> None:
        self.total = total
        self.tell({"event": "start", "step": step, "total": total})

    def step(self, step: int, row: dict[str, Any]) -> None:
        if time.monotonic() - self.last > 0.5:
            self.last = time.monotonic()
            self.tell({"event": "step", "step": step, "total": self.total, **row})


def main() -> int:
    """Do tasks until there are no more."""
    events: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up among the events
    tasks: list[str] = []
    more, ended = threading.Semaphore(0), threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the study, which asks us to stop with SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def listen() -> None:
        for line in sys.stdin:
            tasks.append(line)
            more.release()
        ended.set()
        more.release()
        os.kill(os.getpid(), signal.SIGTERM)  # a training saves its state; otherwise it is the end

    def tell(event: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the study is gone; `listen` notices as well
            events.write(json.dumps(event) + "\n")
            events.flush()

    threading.Thread(target=listen, daemon=True).start()
    tell({"event": "ready"})
    while True:
        more.acquire()
        if not tasks:
            return 0
        done = perform(Task.from_dict(json.loads(tasks.pop(0))), Telling(tell))
        tell({"event": "done", **asdict(done)})
        if ended.is_set() or done.state == "stopped":
            return 0


if __name__ == "__main__":
    sys.exit(main())
