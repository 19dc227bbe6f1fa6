"""Disks that are full, and files that may not grow: one clear line, and a run that finishes when there is space.

Half of the cases limit the size of every file (RLIMIT_FSIZE). The others train on a small file system in memory, which only
root can mount; where that is not allowed, they limit the size of files as well.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

from attacks.kills import Kills, compare
from attacks.outcomes import outcomes
from attacks.processes import PATIENCE, Training, fit_words
from attacks.verdict import OK, Outcome
from attacks.workshop import Workshop, temporary_files

LARGEST = 600  # KiB: a little more than a training needs


class FullDisk:
    def __init__(self, shop: Workshop, cases: int = 48) -> None:
        self.shop, self.cases = shop, cases
        self.kills = Kills(shop)
        self.mountable = shop.once("mountable", lambda: mount(shop.root / "disk", 64))
        if self.mountable:
            unmount(shop.root / "disk")

    def __len__(self) -> int:
        return self.cases

    def plan(self, number: int) -> tuple[str, int]:
        """The way, and the size in KiB; sizes are spread evenly on a logarithmic scale."""
        size = int(LARGEST ** ((number + self.shop.rng("full disk", number).random()) / self.cases))
        return ("disk" if number % 2 and self.mountable else "file"), max(size, 4 if number % 2 else 1)

    def title(self, number: int) -> str:
        way, size = self.plan(number)
        return f"a {way} of {size} KiB"

    def run(self, number: int) -> Outcome:
        way, size = self.plan(number)
        reference = self.kills.reference("fit")
        os.chdir(self.shop.root)
        shutil.rmtree(self.shop.root / "case", ignore_errors=True)
        (self.shop.root / "case").mkdir()
        if way == "file":
            return self.attempt(self.shop.root / "case" / "run", size, reference)
        disk = self.shop.root / "disk"
        if not mount(disk, size):
            return Outcome("unclear", "the small disk cannot be mounted")
        try:
            return self.attempt(disk / "run", None, reference)
        finally:
            unmount(disk)

    def attempt(self, out: Path, limit: int | None, reference: dict[str, str]) -> Outcome:
        log = self.shop.root / "full.log"
        log.unlink(missing_ok=True)
        training = Training(fit_words(self.shop, out), log, None if limit is None else lambda: limit_files(limit))
        status = training.wait(PATIENCE)
        if status is None:
            training.end()
            return Outcome("hang", f"no end in {PATIENCE:g} s")
        text = log.read_text(errors="replace")
        last = (text.strip().splitlines() or [""])[-1]
        if "Traceback (most recent call last)" in text:
            return Outcome("traceback", last[:200])
        if status not in (0, 2) or (status == 2 and not last.startswith("softbias:")):
            return Outcome("unclear", f"exit status {status}, and the last line is {last[:200]!r}")
        if limit is None:
            subprocess.run(["mount", "-o", "remount,size=64m", str(self.shop.root / "disk")], check=True)
        training = Training(fit_words(self.shop, out), log)
        status = training.wait(PATIENCE)
        if status != 0:
            if status is None:
                training.end()
            last = log.read_text(errors="replace").strip().splitlines()[-1]
            return Outcome("lost artefact", f"it does not finish when there is space: status {status}, {last[:200]}")
        return compare(reference, outcomes(out), temporary_files(out)) if out.exists() else OK


def limit_files(kibibytes: int) -> None:
    """No file of this process may grow larger; writing more is an OSError."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kibibytes, 1024 * kibibytes))


def mount(folder: Path, kibibytes: int) -> bool:
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except OSError:  # there is no such command
        return False


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)
