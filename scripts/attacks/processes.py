"""Trainings in processes of their own, which are killed.

A process is forked from this one, which has imported torch already; that saves some seconds a case. It is a process like any
other: its memory and its locks end with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attacks.workshop import OPTIONS, Workshop

PATIENCE = 120.0  # seconds for a training that takes two


class Training:
    """`softbias WORDS` in a forked process, with its output in a file."""

    def __init__(self, words: Sequence[str | Path], log: Path, before: Callable[[], None] | None = None) -> None:
        import softbias.runs.fit  # noqa: F401  imported here, once, and not in each child
        from softbias.cli import main

        self.log = log
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            return
        try:  # the child never returns
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            if before is not None:
                before()
            status = main([os.fspath(word) for word in words])
        except BaseException:
            import traceback

            traceback.print_exc()
            status = 70
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def wait(self, seconds: float) -> int | None:
        """The exit status, negative for a signal; None if the process is still there after that time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        return None

    def send(self, number: int) -> None:
        """Send a signal; a process that ended and was not waited for yet still takes it."""
        os.kill(self.pid, number)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def fit_words(shop: Workshop, out: Path, *more: str) -> list[str | Path]:
    return ["fit", shop.images(), "--out", out, *OPTIONS, "--resume", *more]


def stopped_run(shop: Workshop) -> Path:
    """A run that was killed when its second checkpoint appeared; cases work on copies of it."""
    return shop.once("stopped", lambda: make_stopped(shop))


def make_stopped(shop: Workshop) -> Path:
    path = shop.root / "pristine" / "stopped"
    for _ in range(20):
        training = Training(fit_words(shop, path), shop.root / "stopped.log")
        while len(list(path.glob("checkpoints/step-????????"))) < 2 and not (path / "model").exists():
            time.sleep(0.001)
        training.end()
        if not (path / "model").exists():
            return path
        import shutil

        shutil.rmtree(path)
    raise SystemExit("no run could be stopped between its second checkpoint and its end")
