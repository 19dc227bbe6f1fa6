"""Doing the runs of a study: which run is next, and an executor that does them. A run that fails does not stop the others.

An executor does runs in this process (`ThisProcess`), in several processes of this machine (`workers.WorkerPool`), or on a
Ray cluster (`ray.RayCluster`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from softbias.environment import StopSignal, on_stop_signal
from softbias.runs.run import Run
from softbias.runs.store import Store
from softbias.study.estimate import time_steps
from softbias.study.plan import PlannedRun, in_order
from softbias.study.progress import StudyDisplay
from softbias.study.task import EventDisplay, RunResult, RunTask, perform
from softbias.training.checkpoint import listed

ATTEMPTS = 3  # for a run whose process dies, without a new checkpoint in between
POLL = 1.0  # seconds between two looks at a run that another process works on


class StudyStoppedError(StopSignal):
    """The study was asked to stop (Ctrl-C, SIGTERM). Finished runs stay, and runs under way continue next time."""


@dataclass(frozen=True)
class ExecutionSettings:
    """Settings that do not change the result of a run.

    test          False: the runs do not see the test images
    keep          which checkpoints of finished runs stay (`checkpoint.Keep`); None: none, their models stay
    probe_every   measure locality, gates and masks every K epochs
    test_curve    whether the accuracy on test images is recorded at every epoch, which decides nothing
    """

    store: Path
    device: str = "auto"
    baseline: bool = True
    test: bool = True
    keep: str | None = None
    probe_every: int | None = None
    test_curve: bool = False

    def task(self, run: PlannedRun, threads: int | None = None) -> RunTask:
        store = str(self.store.absolute())
        watched: dict[str, Any] = {"keep": self.keep, "probe_every": self.probe_every, "test_curve": self.test_curve}
        return RunTask(run.spec, store, self.device, self.baseline, self.test, threads, **watched)


class RunQueue:
    """Which run is next. Several threads may ask."""

    def __init__(self, runs: Sequence[PlannedRun], settings: ExecutionSettings, display: StudyDisplay) -> None:
        self.waiting = in_order(runs)
        self.planned = {run.id for run in runs}
        self.settings, self.display = settings, display
        self.under_way: set[str] = set()
        self.begun: set[str] = set()
        self.results: dict[str, RunResult] = {}
        self.attempts: dict[str, int] = {}
        self.saved_step: dict[str, int] = {}  # of the newest checkpoint when the run was lost
        self.not_before: dict[str, float] = {}
        self.stopping = False
        self.change = threading.Condition()

    def next(self) -> PlannedRun | None:
        """A run whose needs are met; this waits for one, and returns None when no run is left."""
        with self.change:
            while not self.stopping:
                run = self.next_now()
                if run is not None or not self.waiting:
                    return run
                self.change.wait(POLL)
            return None

    def next_now(self) -> PlannedRun | None:
        """The same without waiting."""
        with self.change:
            self.fail_hopeless()
            for run in [] if self.stopping else self.waiting:
                free = run.needs is None or run.needs not in self.planned or self.succeeded(run.needs)
                if free and self.not_before.get(run.id, 0.0) <= time.monotonic():
                    self.waiting.remove(run)
                    self.under_way.add(run.id)
                    if run.id not in self.begun:  # a run that another study works on is taken up again and again
                        self.begun.add(run.id)
                        self.display.start(run)
                    return run
            return None

    def succeeded(self, id: str) -> bool:
        return id in self.results and self.results[id].state == "finished"

    def fail_hopeless(self) -> None:
        """Runs that start from a failed one fail, too."""
        for run in list(self.waiting):
            before = self.results.get(run.needs or "")
            if before is not None and before.state == "failed":
                self.waiting.remove(run)
                self.finish(run, RunResult(run.id, "failed", f"it starts from run {run.needs}, which failed"))

    def finish(self, run: PlannedRun, result: RunResult) -> None:
        self.results[run.id] = result
        self.display.done(run, result)

    def report(self, run: PlannedRun, result: RunResult) -> None:
        with self.change:
            self.under_way.discard(run.id)
            if result.state == "busy":  # another process works on it: look again after the others
                self.not_before[run.id] = time.monotonic() + POLL
                self.waiting.append(run)
            elif result.state == "lost":
                self.count_attempt(run)
                if self.stopping:
                    self.results[run.id] = replace(result, state="stopped")
                elif self.attempts[run.id] < ATTEMPTS:
                    self.display.message(f"{run.label}: {result.error}; it continues from its checkpoint")
                    self.waiting.insert(0, run)
                else:
                    self.finish(run, replace(result, state="failed", error=f"{result.error}, {ATTEMPTS} times"))
            elif result.state == "stopped":
                self.stopping = True
                self.results[run.id] = result
            else:
                self.finish(run, result)
            self.change.notify_all()

    def count_attempt(self, run: PlannedRun) -> None:
        """Only attempts that came no further count: on machines that are taken away, a long run is lost many times."""
        saved = listed(Run(Store(self.settings.store).folder(run.spec)).checkpoint_folder)
        step = int(saved[-1].name.removeprefix("step-")) if saved else 0
        further = step > self.saved_step.get(run.id, 0)
        self.attempts[run.id] = 1 if further else self.attempts.get(run.id, 0) + 1
        self.saved_step[run.id] = step

    def stop(self) -> None:
        with self.change:
            self.stopping = True
            self.change.notify_all()


class Executor(Protocol):
    """jobs: the number of runs at a time; None where it is unknown until the runs begin."""

    @property
    def jobs(self) -> int | None: ...
    def run(self, queue: RunQueue) -> None: ...
    def seconds_per_step(self, run: PlannedRun, at_once: int) -> float: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def execute(
    runs: Sequence[PlannedRun], executor: Executor, settings: ExecutionSettings, display: StudyDisplay
) -> dict[str, RunResult]:
    """Do the runs; their results by id."""
    queue = RunQueue(runs, settings, display)
    executor.run(queue)
    return queue.results


class ThisProcess:
    """Does the runs one after another, in this process."""

    jobs = 1

    def __init__(self, device: str = "auto") -> None:
        self.device = device

    def run(self, queue: RunQueue) -> None:
        with asked_to_stop() as asked:
            while (run := queue.next()) is not None:
                display = EventDisplay(functools.partial(queue.display.event, run))
                result = perform(queue.settings.task(run), display)
                queue.report(run, result)
                if result.state == "stopped":
                    raise StudyStoppedError(result.signal)
                if asked:
                    raise StudyStoppedError(asked[0])

    def seconds_per_step(self, run: PlannedRun, at_once: int) -> float:
        return time_steps(run.spec, self.device, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """SIGTERM ends a study as Ctrl-C does: at the next moment at which nothing is lost."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        asked.append(number)
        raise StudyStoppedError(number)

    with on_stop_signal(ask):
        yield asked
