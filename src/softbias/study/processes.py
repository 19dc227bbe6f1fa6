"""Several processes of this machine for the runs of a study, each doing one run after another (see `worker`)."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from softbias import environment
from softbias.errors import SoftbiasError
from softbias.study.execute import Schedule, Settings, asked_to_stop
from softbias.study.progress import Quiet
from softbias.study.spec import PlannedRun
from softbias.study.worker import Done, Task

PATIENCE = 120.0  # seconds that a process has for saving its state when it is asked to stop


class Worker:
    """A process that does one run after another; it is started anew when it dies."""

    def __init__(self, environment: dict[str, str], log: Path, threads: int) -> None:
        self.environment, self.log, self.threads = environment, log, threads
        self.process: subprocess.Popen[str] | None = None

    def do(self, task: Task, tell: Callable[[dict[str, Any]], None]) -> Done:
        if self.process is None or self.process.poll() is not None:
            self.start()
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(task.to_dict()) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                event = json.loads(line)
                if event.pop("event") == "done":
                    return Done(**{**event, "notes": tuple(event["notes"])})
                tell(event)
        except (BrokenPipeError, json.JSONDecodeError):
            pass  # it died in the middle of a line
        status = process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return Done(task.spec.id, "lost", f"its process ended ({how}; see {self.log})")

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "softbias.study.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8",
                env=self.environment, start_new_session=True,  # Ctrl-C reaches the study alone, which asks in turn
            )  # fmt: skip

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def close(self, patience: float) -> None:
        """Let it end: an idle one at once, one at work when it has saved its state."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class WorkerPool:
    """The processes of a study. They start when first needed, and stay: each imports torch and reads the pictures once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.workers = workers(settings, settings.jobs)
        self.warm = False

    def rehearse(self, run: PlannedRun, at_once: int) -> float:
        """Seconds per step while so many processes do the same, as they will in the study."""
        task = replace(self.settings.task(run), rehearse=True)

        def one(worker: Worker) -> Done:
            return worker.do(replace(task, threads=worker.threads), lambda event: None)

        with ThreadPoolExecutor(at_once) as pool:
            if not self.warm:  # one that starts sooner would have the machine for itself
                list(pool.map(one, self.workers[:at_once]))
                self.warm = True
            found = list(pool.map(one, self.workers[:at_once]))
        for done in found:
            if done.state != "finished":
                raise SoftbiasError(f"the arm {run.arm} cannot be trained with {at_once} at a time: {done.error}")
        return sum(done.seconds for done in found) / len(found)

    def close(self, patience: float = PATIENCE) -> None:
        for worker in self.workers:
            worker.close(patience)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def workers(settings: Settings, wanted: int) -> list[Worker]:
    """As many as asked for: one torch thread each on a CPU; on GPUs, each is given one of them in turn."""
    import torch

    gpus: list[str] = []
    if settings.device in ("auto", "cuda") and torch.cuda.is_available():
        named = environment.variable("CUDA_VISIBLE_DEVICES")
        gpus = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    threads = max(1, (os.cpu_count() or 1) // wanted) if gpus else 1
    log = settings.store / ".logs" / f"workers-{os.getpid()}.log"
    made = []
    for number in range(wanted):
        changes = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if gpus:
            changes["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
        made.append(Worker(environment.variables_with(changes), log, threads))
    return made


def in_processes(schedule: Schedule, crew: WorkerPool, settings: Settings, display: Quiet) -> dict[str, Done]:
    busy = crew.workers[: max(1, len(schedule.waiting))]
    display.at_once = len(busy)
    errors: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            while (run := schedule.next()) is not None:
                tell = functools.partial(display.event, run)
                schedule.report(run, worker.do(settings.task(run, worker.threads), tell))
        except BaseException as error:  # an error of ours: the others must not wait for ever
            errors.append(error)
            schedule.stop()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in busy]
    try:
        with asked_to_stop():
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
    except BaseException:
        schedule.stop()
        for worker in busy:
            worker.ask_to_stop()
        try:
            for thread in threads:
                thread.join(PATIENCE)
        except KeyboardInterrupt:  # a second Ctrl-C: at once
            crew.close(0.0)
        raise
    if errors:
        crew.close(1.0)
        raise errors[0]
    return schedule.results
