"""Runs as plain files in a folder that several processes, on several machines, may fill together.

    <store>/<data>-<model>-<id>/     a run directory; summary.json is written last, so a run is whole or it is not finished
    <store>/.claims/<id>             the process that works on a run: its host, its number, and a heartbeat (the file's time)

A claim is made by creating its file exclusively, which is atomic on every file system, NFS included; a file lock is not. It
ends when its owner removes it, when its process is gone from this machine, or when its heartbeat has been silent for `SILENCE`
seconds. The time is that of the file system, because the clocks of two machines may differ.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

from softbias.errors import SoftbiasError, describe_error
from softbias.files import write_text
from softbias.json_file import read_json
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.schema import from_plain

BEAT, SILENCE = 15.0, 180.0  # seconds
FAILURE = "failure.json"

State = Literal["finished", "running", "failed", "stopped", "missing"]


class Failure(TypedDict):
    """What failure.json says."""

    error: str
    traceback: str
    time: float


class Store:
    """A folder of runs, with claims on those that a process works on."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def claims(self) -> Path:
        return self.path / ".claims"

    def folder(self, spec: RunSpec) -> Path:
        return self.path / spec.title

    def finished(self, spec: RunSpec) -> bool:
        """Whether a run is finished, and its model and scores are as they were written."""
        return is_whole(self.folder(spec), spec.id) and not self.lost(spec)[0]

    def lost(self, spec: RunSpec) -> tuple[list[str], list[str]]:
        """What a finished run has lost: files that the results need, for which it is trained again, and others."""
        from softbias.runs.artifacts import find_lost, needed_for_results  # torch

        lost = find_lost(Run(self.folder(spec)), page=False)
        return [name for name in lost if needed_for_results(name)], [name for name in lost if not needed_for_results(name)]

    def state(self, spec: RunSpec) -> State:
        return self.state_of(self.folder(spec), spec.id)

    def state_of(self, folder: Path, id: str) -> State:
        if is_whole(folder, id):
            return "finished"
        if self.owner(id) is not None:
            return "running"
        if (folder / FAILURE).is_file():
            return "failed"
        return "stopped" if (folder / "config.yaml").is_file() else "missing"

    def owner(self, id: str) -> dict[str, Any] | None:
        """The process that works on a run now; None if there is none."""
        file = self.claims / id
        found = read_claim(file)
        return None if found is None or self.is_stale(file, found) else found

    def claim(self, id: str) -> Claim | None:
        """The right to work on a run, or None while another process has it."""
        self.claims.mkdir(parents=True, exist_ok=True)
        file, mine = self.claims / id, Claim(self.claims / id)
        for _ in range(3):
            if mine.take():
                return mine
            other = read_claim(file)
            if other is None:
                continue  # its owner released it just now
            if not self.is_stale(file, other):
                return None
            self.remove_stale(file, other)
        return None

    def is_stale(self, file: Path, claim: dict[str, Any]) -> bool:
        if claim.get("host") == socket.gethostname() and claim.get("pid"):
            if claim["pid"] == os.getpid():
                return claim.get("token") not in Claim.held
            if started(claim["pid"]) != claim.get("started"):
                return True
        try:
            return self.now() - file.stat().st_mtime > SILENCE
        except FileNotFoundError:  # it was released just now; what has its name next is the claim of another process
            return False

    def now(self) -> float:
        """The time as the file system has it."""
        probe = self.claims / f".now-{uuid.uuid4().hex}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def remove_stale(self, file: Path, claim: dict[str, Any]) -> None:
        """Set a dead claim aside. Renaming is atomic: if the claim turns out to be a fresh one, it is put back."""
        aside = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
        try:
            os.rename(file, aside)
        except FileNotFoundError:
            return
        caught = read_claim(aside)
        if caught is not None and caught.get("token") != claim.get("token"):
            with suppress(OSError):  # a third process was quicker; the owner notices at its next heartbeat
                os.link(aside, file)
        aside.unlink(missing_ok=True)

    def mend(self, spec: RunSpec) -> None:
        """Prepare an unfinished run for its continuation: files that cannot be read are removed. Needs the claim."""
        folder = self.folder(spec)
        directory = Run(folder)
        (folder / FAILURE).unlink(missing_ok=True)
        if directory.begun:
            try:
                whole = directory.spec.id == spec.id
            except SoftbiasError:  # a power cut tore the file
                whole = False
            if not whole:
                shutil.rmtree(folder)
                return
        directory.summary_path.unlink(missing_ok=True)  # it is not complete, or this would not be called

    def clear(self, spec: RunSpec) -> None:
        """Forget a run, for a new start. Needs the claim."""
        shutil.rmtree(self.folder(spec), ignore_errors=True)

    def fail(self, spec: RunSpec, error: BaseException) -> str:
        """Write the error into the run's folder, and return it in one line."""
        folder = self.folder(spec)
        folder.mkdir(parents=True, exist_ok=True)
        line = describe_error(error)
        text = "".join(traceback.format_exception(error))
        failure = Failure(error=line, traceback=text, time=time.time())
        write_text(folder / FAILURE, json.dumps(failure, indent=2) + "\n")
        return line

    def folders(self) -> Iterator[Path]:
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if path.is_dir() and not path.name.startswith("."):
                yield path


def is_whole(folder: Path, id: str) -> bool:
    """Whether a run is finished and complete: its summary can be read, is of this run, and the model lies beside it."""
    run = Run(folder)
    try:
        summary = run.summary()
        same = summary.get("id") == id == run.spec.id
    except (OSError, SoftbiasError):
        return False
    return same and all((folder / "model" / name).is_file() for name in ("config.json", "model.safetensors"))


def read_failure(folder: Path) -> str | None:
    """The error of a run that failed; None for any other run."""
    try:
        found = read_json(folder / FAILURE)
    except (OSError, ValueError):
        return None
    return from_plain(Failure, found, str(folder / FAILURE))["error"]


def read_claim(file: Path) -> dict[str, Any] | None:
    """A claim's owner; {} while its owner has created but not yet signed it; None if there is no claim."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def started(pid: int) -> str | None:
    """When a process of this machine began, in ticks, so that a reused number is recognized; None: the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"


@dataclass
class Claim:
    """The right to work on one run, kept alive by a thread."""

    file: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    held: ClassVar[set[str]] = set()  # tokens of this process

    def take(self) -> bool:
        try:
            descriptor = os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        Claim.held.add(self.token)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": started(os.getpid()), "token": self.token}
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(owner, stream)
            stream.flush()
            os.fsync(stream.fileno())
        self.over = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()
        return True

    def beat(self) -> None:
        while not self.over.wait(BEAT):
            if (read_claim(self.file) or {}).get("token") != self.token:
                return  # another process took it over; the lock of the run directory keeps one of the two out
            try:
                os.utime(self.file)
            except OSError:
                continue

    def release(self) -> None:
        self.over.set()
        Claim.held.discard(self.token)
        if (read_claim(self.file) or {}).get("token") == self.token:
            self.file.unlink(missing_ok=True)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
