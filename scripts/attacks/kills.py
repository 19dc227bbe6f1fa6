"""Trainings and studies that are killed, once or several times, and then continued until they are finished.

A process is killed at the n-th time that it opens a file for writing, renames or removes one: so every state of the disk that
a kill can leave is met. Others are killed at random moments. The outcome must be that of a run that nobody disturbed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.outcomes import outcomes
from attacks.processes import PATIENCE, Training, fit_words
from attacks.verdict import OK, Outcome
from attacks.workshop import CHANGES, WRITES, Workshop, temporary_files

SIGNALS = {
    "SIGKILL": (signal.SIGKILL,), "SIGTERM": (signal.SIGTERM,), "SIGINT": (signal.SIGINT,),
    "SIGTERM twice": (signal.SIGTERM, signal.SIGTERM), "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM, then SIGKILL": (signal.SIGTERM, signal.SIGKILL),
}  # fmt: skip
SHARE_OF_STUDIES = 8  # one case in so many


class Kills:
    """A case: one to three disturbances, then the same command until it says finished."""

    def __init__(self, shop: Workshop, cases: int = 96) -> None:
        self.shop, self.cases = shop, cases
        self.references: dict[str, dict[str, str]] = {}

    def __len__(self) -> int:
        return self.cases

    def plan(self, number: int) -> tuple[str, list[tuple[str, float]]]:
        """What is trained, and the disturbances: a signal, and the number of the operation or, negative, a time."""
        rng = self.shop.rng("kills", number)
        found = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            name = rng.choice(("SIGKILL", "SIGKILL", "SIGKILL", *SIGNALS))
            at = -3 * rng.random() if rng.random() < 0.25 else float(rng.randint(1, self.operations()))
            found.append((name, at))
        return "study" if number % SHARE_OF_STUDIES == SHARE_OF_STUDIES - 1 else "fit", found

    def operations(self) -> int:
        """How often an undisturbed training changes files."""
        return self.shop.once("operations", self.count_operations)

    def count_operations(self) -> int:
        counted = self.shop.root / "operations"
        out = self.shop.root / "counted" / "run"
        training = Training(fit_words(self.shop, out), self.shop.root / "count.log", lambda: count_into(counted, out.parent))
        if training.wait(PATIENCE) != 0:
            raise SystemExit(f"the undisturbed run failed: {training.log.read_text()[-2000:]}")
        shutil.rmtree(out.parent)
        return counted.stat().st_size

    def title(self, number: int) -> str:
        kind, disturbances = self.plan(number)
        at = [f"{name} {f'after {-when:.2f} s' if when < 0 else f'at operation {when:.0f}'}" for name, when in disturbances]
        return f"{kind}: {'; '.join(at)}"

    def words(self, kind: str, out: Path) -> list[str | Path]:
        if kind == "fit":
            return fit_words(self.shop, out)
        return self.shop.study_words(out)

    def run(self, number: int) -> Outcome:
        kind, disturbances = self.plan(number)
        reference = self.reference(kind)
        case = self.shop.root / "case"
        os.chdir(self.shop.root)
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        out, log = case / "run", self.shop.root / "kills.log"
        log.unlink(missing_ok=True)
        for name, when in disturbances:
            found = self.disturb(self.words(kind, out), log, name, when)
            if found is not OK:
                return found
        training = Training(self.words(kind, out), log)
        status = training.wait(PATIENCE)
        if status is None:
            training.end()
            return Outcome("hang", f"continuing took longer than {PATIENCE:g} s")
        text = log.read_text(errors="replace")
        if "Traceback (most recent call last)" in text:
            return Outcome("traceback", text.strip().splitlines()[-1][:200])
        if status != 0:
            return Outcome("lost artefact", f"it cannot be continued: {text.strip().splitlines()[-1][:200]}")
        return compare(reference, outcomes(out), temporary_files(out))

    def disturb(self, words: list[str | Path], log: Path, name: str, when: float) -> Outcome:
        signals = SIGNALS[name]
        if when > 0:
            training = Training(words, log, lambda: signal_at(int(when), signals, self.shop.root / "case"))
        else:
            training = Training(words, log)
            time.sleep(-when)
            for each in signals:
                training.send(each)
        status = training.wait(PATIENCE)
        if status is None:
            training.end()
            return Outcome("hang", f"{name} does not end it")
        expected = {0, *(-each for each in signals), *(128 + each for each in signals)}
        return OK if status in expected else Outcome("unclear", f"exit status {status} after {name}")

    def reference(self, kind: str) -> dict[str, str]:
        """The outcome of a run that nobody disturbed."""
        if kind not in self.references:
            out = self.shop.root / "case" / "run"
            os.chdir(self.shop.root)
            shutil.rmtree(out.parent)
            out.parent.mkdir()
            training = Training(self.words(kind, out), self.shop.root / "reference.log")
            if training.wait(PATIENCE) != 0:
                raise SystemExit(f"the undisturbed {kind} failed: {training.log.read_text()[-2000:]}")
            self.references[kind] = outcomes(out)
        return self.references[kind]


def count_into(path: Path, folder: Path) -> None:
    """Add a byte to a file at every operation of this process that changes something in a folder."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    on_change(folder, lambda: os.write(descriptor, b"."))


def signal_at(wanted: int, signals: tuple[int, ...], folder: Path) -> None:
    """Send signals to this process at its n-th operation."""
    count = 0

    def act() -> None:
        nonlocal count
        count += 1
        if count == wanted:
            for each in signals:
                os.kill(os.getpid(), each)

    on_change(folder, act)


def on_change(folder: Path, act: Callable[[], Any]) -> None:
    root = str(folder)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if not (args[2] or 0) & WRITES:
                return
        elif event not in CHANGES:
            return
        if isinstance(args[0], str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(args[0])).startswith(root):
            act()

    sys.addaudithook(audit)


def compare(reference: dict[str, str], found: dict[str, str], left: list[str]) -> Outcome:
    missing = [name for name in reference if name not in found]
    if missing or left:
        return Outcome(
            "lost artefact", f"missing: {', '.join(missing) or 'nothing'}; temporary files: {', '.join(left) or 'none'}"
        )
    changed = [name for name, digest in reference.items() if found[name] != digest]
    return Outcome("silent wrong number", f"other than undisturbed: {', '.join(changed)}") if changed else OK
