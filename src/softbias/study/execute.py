"""Doing the runs of a study: in this process, or in several of this machine. One that fails does not stop the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.study.progress import OfRun, Quiet
from softbias.study.spec import PlannedRun, in_order
from softbias.study.worker import Done, Task, perform
from softbias.training.signals import handled

if TYPE_CHECKING:
    from softbias.study.processes import WorkerPool

ATTEMPTS = 3  # for a run whose process dies under it
POLL = 1.0  # seconds between two looks at a run that somebody else is doing


class StudyStoppedError(KeyboardInterrupt):
    """Asked to stop (Ctrl-C, SIGTERM); what is finished stays, and what was under way continues next time."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.signal = number


@dataclass(frozen=True)
class Settings:
    """How runs are done, which does not change what comes of them.

    jobs     processes at a time; 0: in this process
    on       None: this machine; "ray" or "ray://…": a Ray cluster
    """

    store: Path
    device: str = "auto"
    jobs: int = 0
    on: str | None = None
    baseline: bool = True
    test: bool = True
    checkpoints: bool = False

    def task(self, run: PlannedRun, threads: int | None = None) -> Task:
        return Task(
            run.spec, str(self.store.absolute()), self.device, self.baseline, self.test, self.checkpoints, threads
        )  # fmt: skip


class Schedule:
    """Which run is next. Safe to be asked by several threads."""

    def __init__(self, runs: Sequence[PlannedRun], display: Quiet) -> None:
        self.waiting = in_order(runs)
        self.planned = {run.id for run in runs}
        self.display = display
        self.under_way: set[str] = set()
        self.begun: set[str] = set()
        self.results: dict[str, Done] = {}
        self.attempts: dict[str, int] = {}
        self.later: dict[str, float] = {}
        self.stopping = False
        self.change = threading.Condition()

    def next(self) -> PlannedRun | None:
        """A run whose needs are met; waits for one, and returns None when there is no more to come."""
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
            self.give_up_hopeless()
            for run in [] if self.stopping else self.waiting:
                free = run.needs is None or run.needs not in self.planned or self.succeeded(run.needs)
                if free and self.later.get(run.id, 0.0) <= time.monotonic():
                    self.waiting.remove(run)
                    self.under_way.add(run.id)
                    if run.id not in self.begun:  # one that another study is doing is looked at again and again
                        self.begun.add(run.id)
                        self.display.start(run)
                    return run
            return None

    def succeeded(self, id: str) -> bool:
        return id in self.results and self.results[id].state == "finished"

    def give_up_hopeless(self) -> None:
        """Runs that start from one that failed."""
        for run in list(self.waiting):
            before = self.results.get(run.needs or "")
            if before is not None and before.state == "failed":
                self.waiting.remove(run)
                self.finish(run, Done(run.id, "failed", f"it starts from run {run.needs}, which failed"))

    def finish(self, run: PlannedRun, done: Done) -> None:
        self.results[run.id] = done
        self.display.done(run, done)

    def report(self, run: PlannedRun, done: Done) -> None:
        with self.change:
            self.under_way.discard(run.id)
            if done.state == "busy":  # somebody else does it: look again after the others
                self.later[run.id] = time.monotonic() + POLL
                self.waiting.append(run)
            elif done.state == "lost":
                self.attempts[run.id] = self.attempts.get(run.id, 0) + 1
                if self.stopping:
                    self.results[run.id] = replace(done, state="stopped")
                elif self.attempts[run.id] < ATTEMPTS:
                    self.display.message(f"{run.label}: {done.error}; it continues from its checkpoint")
                    self.waiting.insert(0, run)
                else:
                    self.finish(run, replace(done, state="failed", error=f"{done.error}, {ATTEMPTS} times"))
            elif done.state == "stopped":
                self.stopping = True
                self.results[run.id] = done
            else:
                self.finish(run, done)
            self.change.notify_all()

    def stop(self) -> None:
        with self.change:
            self.stopping = True
            self.change.notify_all()


def execute(runs: Sequence[PlannedRun], settings: Settings, display: Quiet, crew: WorkerPool | None = None) -> dict[str, Done]:
    """Do the runs, with processes that are there already or with new ones; what became of each, by id."""
    schedule = Schedule(runs, display)
    if settings.on is not None:
        from softbias.study.ray import on_ray

        return on_ray(schedule, settings)
    if settings.jobs:
        from softbias.study.processes import WorkerPool, in_processes

        with nullcontext(crew) if crew else WorkerPool(settings) as those:
            return in_processes(schedule, those, settings, display)
    return in_this_process(schedule, settings, display)


def in_this_process(schedule: Schedule, settings: Settings, display: Quiet) -> dict[str, Done]:
    with asked_to_stop() as asked:
        while (run := schedule.next()) is not None:
            done = perform(settings.task(run), OfRun(display, run))
            schedule.report(run, done)
            if done.state == "stopped":
                raise StudyStoppedError(done.signal)
            if asked:
                raise StudyStoppedError(asked[0])
    return schedule.results


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """SIGTERM ends a study as Ctrl-C does: at the next moment at which nothing is lost."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        asked.append(number)
        raise StudyStoppedError(number)

    with handled(ask):
        yield asked
