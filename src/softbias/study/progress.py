"""What a person sees while a study runs: bars in a terminal, a line per run elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from softbias.study.spec import PlannedRun, makespan
from softbias.study.worker import Done
from softbias.training.display import Quiet as QuietRun


class Quiet:
    """Nothing; and what all displays count: which part of the estimated work is done, and how long that took.

    at_once   how many runs are done at a time
    """

    def __init__(self) -> None:
        self.total = self.count = 0
        self.at_once = 1
        self.missing: Sequence[PlannedRun] = ()
        self.work: dict[str, float] = {}  # seconds that were expected
        self.part: dict[str, float] = {}  # done of it
        self.first: dict[str, tuple[float, float]] = {}  # when we saw a run begin, and which part of it was done then
        self.last: dict[str, float] = {}  # when we heard of it

    def message(self, text: str) -> None: ...

    def begin(self, runs: Sequence[PlannedRun], missing: Sequence[PlannedRun], seconds: Mapping[str, float]) -> None:
        """`seconds`: what each missing run is expected to take."""
        self.total, self.count = len(runs), len(runs) - len(missing)
        usual = sum(seconds.values()) / len(seconds) if seconds else 1.0
        self.missing = missing
        self.work = {run.id: seconds.get(run.id, usual) for run in missing}
        self.part = dict.fromkeys(self.work, 0.0)
        self.first, self.last = {}, {}

    def start(self, run: PlannedRun) -> None: ...

    def event(self, run: PlannedRun, event: Mapping[str, Any]) -> None:
        if event.get("total"):
            self.part[run.id], self.last[run.id] = event["step"] / event["total"], time.monotonic()
            self.first.setdefault(run.id, (self.last[run.id], self.part[run.id]))

    def done(self, run: PlannedRun, done: Done) -> None:
        self.part[run.id] = 1.0 if done.state in ("finished", "failed") else 0.0
        self.count += done.state == "finished"
        if done.state == "finished":
            self.last[run.id] = time.monotonic()
        else:
            self.first.pop(run.id, None)  # it says nothing about the pace

    def stop(self) -> None: ...

    def left(self) -> float | None:
        """Seconds until the end at the pace so far, that of a run's own arm where it is known; None until there is one."""
        spent, worked = defaultdict[str, float](float), defaultdict[str, float](float)  # of all, and by arm and data
        for run in self.missing:
            if run.id in self.first:
                began, part = self.first[run.id]
                for name in ("", f"{run.arm} {run.spec.data}"):
                    spent[name] += self.last[run.id] - began
                    worked[name] += self.work[run.id] * (self.part[run.id] - part)
        if worked[""] <= 0:
            return None
        rest = {}
        for run in self.missing:
            name = f"{run.arm} {run.spec.data}"
            name = name if worked[name] > 0 else ""
            rest[run.id] = self.work[run.id] * (1 - self.part[run.id]) * spent[name] / worked[name]
        return makespan([run for run in self.missing if rest[run.id] > 0], rest, self.at_once)

    def line(self, run: PlannedRun, done: Done) -> str:
        what = f"failed: {done.error}" if done.state == "failed" else done.state
        if done.state == "finished":
            accuracy = "" if done.accuracy is None else f"{done.accuracy:.1%} in "
            what = f"{accuracy}{duration(done.seconds)}"
        left = self.left()
        rest = f", about {duration(left)} left" if left and self.count < self.total else ""
        return f"{self.count}/{self.total}  {run.label}  {what}{rest}"


class Lines(Quiet):
    def message(self, text: str) -> None:
        print(text, flush=True)

    def done(self, run: PlannedRun, done: Done) -> None:
        super().done(run, done)
        print(self.line(run, done), flush=True)


class Json(Quiet):
    def message(self, text: str) -> None:
        print(json.dumps({"event": "message", "text": text}), flush=True)

    def start(self, run: PlannedRun) -> None:
        print(json.dumps({"event": "start", **about(run)}), flush=True)

    def done(self, run: PlannedRun, done: Done) -> None:
        super().done(run, done)
        print(json.dumps({"event": "run", **about(run), **{k: v for k, v in vars(done).items() if k != "id"}}), flush=True)


class Bars(Quiet):
    """One bar for the study and one for every run under way."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = Console(highlight=False)
        self.bars = Progress(
            BarColumn(24), TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}"),
            console=self.console, transient=True,
        )  # fmt: skip
        self.tasks: dict[str, Any] = {}
        self.whole: Any = None

    def message(self, text: str) -> None:
        self.console.print(text, markup=False)

    def begin(self, runs: Sequence[PlannedRun], missing: Sequence[PlannedRun], seconds: Mapping[str, float]) -> None:
        super().begin(runs, missing, seconds)
        self.whole = self.bars.add_task("", total=sum(self.work.values()) or 1.0)
        self.refresh()
        self.bars.start()

    def refresh(self) -> None:
        left = self.left()
        text = f"{self.count} of {self.total} runs" + (f", about {duration(left)} left" if left else "")
        self.bars.update(self.whole, completed=sum(self.work[id] * part for id, part in self.part.items()), description=text)

    def start(self, run: PlannedRun) -> None:
        if run.id not in self.tasks:
            self.tasks[run.id] = self.bars.add_task(run.label, total=None)

    def event(self, run: PlannedRun, event: Mapping[str, Any]) -> None:
        super().event(run, event)
        if run.id in self.tasks and event.get("total"):
            loss = f"  loss {event['loss']:.3f}" if "loss" in event else ""
            self.bars.update(
                self.tasks[run.id], total=event["total"], completed=event["step"], description=f"{run.label}{loss}"
            )
            self.refresh()

    def done(self, run: PlannedRun, done: Done) -> None:
        super().done(run, done)
        if run.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.id))
        self.refresh()
        self.message(self.line(run, done))

    def stop(self) -> None:
        self.bars.stop()


class OfRun(QuietRun):
    """A run's own display inside a study's, for runs in this process."""

    def __init__(self, study: Quiet, run: PlannedRun) -> None:
        self.study, self.run, self.total = study, run, 0

    def start(self, step: int, total: int) -> None:
        self.total = total
        self.study.event(self.run, {"event": "start", "step": step, "total": total})

    def step(self, step: int, row: dict[str, Any]) -> None:
        self.study.event(self.run, {"event": "step", "step": step, "total": self.total, **row})


def about(run: PlannedRun) -> dict[str, Any]:
    spec = run.spec
    return {"id": run.id, "arm": run.arm, "data": spec.data, "train_fraction": spec.train_fraction, "seed": spec.seed}


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (0.3, 42, 150, 8000, 400_000)]
    ['0 s', '42 s', '2.5 min', '2.2 h', '4.6 days']
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def choose(*, quiet: bool = False, json: bool = False) -> Quiet:
    if quiet:
        return Quiet()
    if json:
        return Json()
    return Bars() if sys.stdout.isatty() else Lines()
