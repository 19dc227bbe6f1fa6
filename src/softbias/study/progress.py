"""What a study shows while it runs: bars in a terminal, a line per run elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from softbias.pages.format import estimated_duration
from softbias.study.estimate import makespan
from softbias.study.plan import PlannedRun
from softbias.study.task import RunResult
from softbias.terminal import echo, make_console


class StudyDisplay:
    """Shows nothing, and counts for all displays: the share of the expected work that is done, and the time it took.

    at_once   the number of runs at a time
    """

    def __init__(self) -> None:
        self.total = self.count = 0
        self.at_once = 1
        self.missing: Sequence[PlannedRun] = ()
        self.work: dict[str, float] = {}  # expected seconds
        self.part: dict[str, float] = {}  # the share of them that is done
        self.first: dict[str, tuple[float, float]] = {}  # the time of a run's first event, and its share at that time
        self.last: dict[str, float] = {}  # the time of its last event

    def message(self, text: str) -> None: ...

    def begin(self, runs: Sequence[PlannedRun], missing: Sequence[PlannedRun], seconds: Mapping[str, float]) -> None:
        """`seconds` are expected for the missing runs, by id."""
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

    def done(self, run: PlannedRun, result: RunResult) -> None:
        self.part[run.id] = 1.0 if result.state in ("finished", "failed") else 0.0
        self.count += result.state == "finished"
        if result.state == "finished":
            self.last[run.id] = time.monotonic()
        else:
            self.first.pop(run.id, None)  # its time says nothing about the speed

    def stop(self) -> None: ...

    def left(self) -> float | None:
        """Seconds until the end at the speed so far; None before the first step.

        A run is expected to be as fast as the other runs of its arm, and as the average before they have begun.
        """
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

    def line(self, run: PlannedRun, result: RunResult) -> str:
        what = f"failed: {result.error}" if result.state == "failed" else result.state
        if result.state == "finished":
            accuracy = "" if result.accuracy is None else f"{result.accuracy:.1%} in "
            what = f"{accuracy}{estimated_duration(result.seconds)}"
        left = self.left()
        rest = f", about {estimated_duration(left)} left" if left and self.count < self.total else ""
        return f"{self.count}/{self.total}  {run.label}  {what}{rest}"


class StudyLines(StudyDisplay):
    """A line per run that ends."""

    def message(self, text: str) -> None:
        echo(text, flush=True)

    def done(self, run: PlannedRun, result: RunResult) -> None:
        super().done(run, result)
        echo(self.line(run, result), flush=True)


class StudyJson(StudyDisplay):
    """A line of JSON per event."""

    def message(self, text: str) -> None:
        echo(json.dumps({"event": "message", "text": text}), flush=True)

    def start(self, run: PlannedRun) -> None:
        echo(json.dumps({"event": "start", **describe(run)}), flush=True)

    def done(self, run: PlannedRun, result: RunResult) -> None:
        super().done(run, result)
        echo(json.dumps({"event": "run", **describe(run), **result.to_dict()}), flush=True)


class StudyBars(StudyDisplay):
    """One bar for the study, and one for every run under way."""

    def __init__(self) -> None:
        super().__init__()
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = make_console()
        self.bars = Progress(
            BarColumn(24), TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}"),
            console=self.console, transient=True,
        )  # fmt: skip
        self.tasks: dict[str, Any] = {}
        self.whole: Any = None

    def message(self, text: str) -> None:
        self.console.print(text)

    def begin(self, runs: Sequence[PlannedRun], missing: Sequence[PlannedRun], seconds: Mapping[str, float]) -> None:
        super().begin(runs, missing, seconds)
        self.whole = self.bars.add_task("", total=sum(self.work.values()) or 1.0)
        self.refresh()
        self.bars.start()

    def refresh(self) -> None:
        left = self.left()
        text = f"{self.count} of {self.total} runs" + (f", about {estimated_duration(left)} left" if left else "")
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

    def done(self, run: PlannedRun, result: RunResult) -> None:
        super().done(run, result)
        if run.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.id))
        self.refresh()
        self.message(self.line(run, result))

    def stop(self) -> None:
        self.bars.stop()


def describe(run: PlannedRun) -> dict[str, Any]:
    spec = run.spec
    return {"id": run.id, "arm": run.arm, "data": spec.data, "amount": spec.amount, "seed": spec.seed}


def choose_display(*, quiet: bool = False, json: bool = False) -> StudyDisplay:
    if quiet:
        return StudyDisplay()
    if json:
        return StudyJson()
    return StudyBars() if sys.stdout.isatty() else StudyLines()
