"""The progress of a training: a bar in a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from softbias.terminal import echo, make_console

if TYPE_CHECKING:
    from softbias.data.cache import Progress

SECONDS_BETWEEN_MESSAGES = 10.0  # while images are decoded


class Display:
    """Shows nothing; also for the other processes of a distributed run."""

    def message(self, text: str) -> None: ...
    def start(self, step: int, total: int) -> None: ...
    def step(self, step: int, row: dict[str, Any]) -> None: ...
    def epoch(self, row: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


def describe(row: dict[str, Any]) -> str:
    """One line about an epoch."""
    parts = [f"epoch {row['epoch']}/{row['epochs']}", f"step {row['step']}", f"loss {row['loss']:.4f}"]
    parts += [f"accuracy {row['accuracy']:.1%}"]
    if row.get("val_accuracy") is not None:
        parts += [f"validation {row['val_accuracy']:.1%}" + (" (best)" if row.get("best") else "")]
    for name in (key.removesuffix("_active") for key in row if key.endswith("_active")):
        parts += [
            f"{name} {row[f'{name}_loss']:.3f}"
            + (f" ({row[f'{name}_active']:.0%} active)" if row[f"{name}_active"] < 1 else "")
        ]
    parts += [f"lr {row['lr']:.2e}", f"{row['images_per_second']:,.0f} images/s"]
    if row.get("skipped"):
        parts += [f"{row['skipped']} steps skipped (gradient not finite)"]
    if row.get("memory"):
        parts += [f"{row['memory'] / 2**30:.1f} GiB"]
    return "  ".join(parts)


class Lines(Display):
    """A line per epoch, but not more than one every two seconds, and always the last."""

    def __init__(self) -> None:
        self.last = 0.0

    def message(self, text: str) -> None:
        echo(text, flush=True)

    def epoch(self, row: dict[str, Any]) -> None:
        if time.monotonic() - self.last > 2 or row["epoch"] >= row["epochs"]:
            self.last = time.monotonic()
            echo(describe(row), flush=True)


class Json(Display):
    def message(self, text: str) -> None:
        echo(json.dumps({"event": "message", "text": text}), flush=True)

    def epoch(self, row: dict[str, Any]) -> None:
        echo(json.dumps(row), flush=True)


class Bar(Display):
    """A rich progress bar with the time left and the latest numbers."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        self.console = make_console()
        # 80 columns hold everything but the speed. A longer line is cut at its end, and no column is squeezed.
        whole = Column(no_wrap=True)
        rest = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        left = TimeRemainingColumn(compact=True, table_column=whole)
        columns = (BarColumn(12), MofNCompleteColumn(table_column=whole), left, TextColumn("left", table_column=whole), rest)
        self.progress = Progress(*columns, console=self.console, transient=True, expand=True)
        self.count = self.validation = ""
        self.task = self.progress.add_task("", total=None)

    def message(self, text: str) -> None:
        self.console.print(text)

    def start(self, step: int, total: int) -> None:
        self.progress.update(self.task, total=total, completed=step)
        self.progress.start()

    def step(self, step: int, row: dict[str, Any]) -> None:
        speed = row.get("images_per_second", 0)
        parts = [self.count, f"loss {row['loss']:.3f}", self.validation, f"{speed:,.0f} images/s"]
        self.progress.update(self.task, completed=step, description="  ".join(filter(None, parts)))

    def epoch(self, row: dict[str, Any]) -> None:
        self.count = f"epoch {row['epoch']}/{row['epochs']}"
        if row.get("val_accuracy") is not None:
            self.validation = f"validation {row['val_accuracy']:.1%}"

    def stop(self) -> None:
        self.progress.stop()


def choose(*, quiet: bool = False, json: bool = False, main: bool = True) -> Display:
    if quiet or not main:
        return Display()
    if json:
        return Json()
    return Bar() if sys.stdout.isatty() else Lines()


def decoding_progress(display: Display) -> Progress:
    """A message every few seconds while images are decoded."""
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_MESSAGES:
            last = time.monotonic()
            display.message(f"decoding pictures: {done:,} of {total:,}")

    return report
