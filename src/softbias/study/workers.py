"""Worker processes for the runs of a study, on this machine; each does one run after another.

    python -m softbias.study.workers      reads tasks from stdin and writes events to stdout, a line of JSON each

A worker is a plain process that reads and writes text: nothing is pickled, no script is imported a second time, and it can be
killed at any moment. When its study is gone (stdin ends), it saves its state and stops.
"""

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
from typing import Any, Self, TextIO

import torch

from softbias import environment
from softbias.errors import SoftbiasError
from softbias.study.execute import ExecutionSettings, RunQueue, asked_to_stop
from softbias.study.plan import PlannedRun
from softbias.study.task import EventDisplay, RunResult, RunTask, perform

PATIENCE = 120.0  # seconds that a worker has for saving its state when it is asked to stop
EVERY = 0.5  # seconds between two events of a run, at least


class WorkerProcess:
    """A process that does one run after another; it is started again when it dies."""

    def __init__(self, variables: dict[str, str], log: Path, threads: int) -> None:
        self.variables, self.log, self.threads = variables, log, threads
        self.process: subprocess.Popen[str] | None = None

    def do(self, task: RunTask, on_event: Callable[[dict[str, Any]], None]) -> RunResult:
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
                    return RunResult.from_dict(event)
                on_event(event)
        except (BrokenPipeError, json.JSONDecodeError):
            pass  # it died in the middle of a line
        status = process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return RunResult(task.spec.id, "lost", f"its process ended ({how}; see {self.log})")

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "softbias.study.workers"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8",
                env=self.variables, start_new_session=True,  # Ctrl-C reaches the study alone, which then asks the workers
            )  # fmt: skip

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def close(self, patience: float) -> None:
        """End it: an idle worker at once, a working one when it has saved its state."""
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
    """The workers of a study. They start when first needed, and stay: each imports torch and reads the images once.

    On a CPU each worker has one torch thread; GPUs are shared out in turn.
    """

    def __init__(self, settings: ExecutionSettings, jobs: int) -> None:
        self.settings, self.jobs = settings, jobs
        gpus: list[str] = []
        if settings.device in ("auto", "cuda") and torch.cuda.is_available():
            named = environment.variable("CUDA_VISIBLE_DEVICES")
            gpus = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
        threads = max(1, environment.count_cores() // jobs) if gpus else 1
        log = settings.store / ".logs" / f"workers-{os.getpid()}.log"
        self.workers = []
        for number in range(jobs):
            changes = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
            if gpus:
                changes["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
            self.workers.append(WorkerProcess(environment.variables_with(changes), log, threads))
        self.warm = False

    def seconds_per_step(self, run: PlannedRun, at_once: int) -> float:
        """The time of a step while `at_once` workers train the same, as they will in the study."""
        task = replace(self.settings.task(run), only_time=True)

        def one(worker: WorkerProcess) -> RunResult:
            return worker.do(replace(task, threads=worker.threads), lambda event: None)

        with ThreadPoolExecutor(at_once) as pool:
            if not self.warm:  # a worker that starts before the others would have the machine for itself
                list(pool.map(one, self.workers[:at_once]))
                self.warm = True
            found = list(pool.map(one, self.workers[:at_once]))
        for result in found:
            if result.state != "finished":
                raise SoftbiasError(f"the arm {run.arm} cannot be trained with {at_once} at a time: {result.error}")
        return sum(result.seconds for result in found) / len(found)

    def run(self, queue: RunQueue) -> None:
        busy = self.workers[: max(1, len(queue.waiting))]
        queue.display.at_once = len(busy)
        errors: list[BaseException] = []

        def work(worker: WorkerProcess) -> None:
            try:
                while (run := queue.next()) is not None:
                    on_event = functools.partial(queue.display.event, run)
                    queue.report(run, worker.do(queue.settings.task(run, worker.threads), on_event))
            except BaseException as error:  # a bug: the other threads must not wait for ever
                errors.append(error)
                queue.stop()

        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in busy]
        try:
            with asked_to_stop():
                for thread in threads:
                    thread.start()
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.2)
        except BaseException:
            queue.stop()
            for worker in busy:
                worker.ask_to_stop()
            try:
                for thread in threads:
                    thread.join(PATIENCE)
            except KeyboardInterrupt:  # a second Ctrl-C: at once
                self.close(0.0)
            raise
        if errors:
            self.close(1.0)
            raise errors[0]

    def close(self, patience: float = PATIENCE) -> None:
        for worker in self.workers:
            worker.close(patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> int:
    """Do tasks until stdin ends."""
    events: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not end up among the events
    tasks: list[str] = []
    more, ended = threading.Semaphore(0), threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the study, which asks us to stop by SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def listen() -> None:
        for line in sys.stdin:
            tasks.append(line)
            more.release()
        ended.set()
        more.release()
        os.kill(os.getpid(), signal.SIGTERM)  # a training saves its state; an idle worker ends

    def send(event: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the study is gone; `listen` notices as well
            events.write(json.dumps(event) + "\n")
            events.flush()

    threading.Thread(target=listen, daemon=True).start()
    send({"event": "ready"})
    while True:
        more.acquire()
        if not tasks:
            return 0
        result = perform(RunTask.from_dict(json.loads(tasks.pop(0))), EventDisplay(send, EVERY))
        send({"event": "done", **result.to_dict()})
        if ended.is_set() or result.state == "stopped":
            return 0


if __name__ == "__main__":
    sys.exit(main())
