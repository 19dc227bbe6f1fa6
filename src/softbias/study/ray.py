"""The runs of a study on a Ray cluster. Every run is one Ray task with its share of CPUs and GPUs.

All nodes must see the study's folder under the same path. Tasks write their results there, and only a line about them
travels; how far a run is stands in its metrics.jsonl. When a node is lost, Ray raises an error, and the run goes to another
node, where it continues from its checkpoint as soon as the claim of the lost node has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Self

from softbias import environment
from softbias.errors import SoftbiasError
from softbias.runs.run import Run
from softbias.runs.store import Store
from softbias.study.estimate import time_steps
from softbias.study.execute import POLL, ExecutionSettings, RunQueue, StudyStoppedError, asked_to_stop
from softbias.study.plan import PlannedRun
from softbias.study.progress import StudyDisplay
from softbias.study.task import RunResult, RunTask, perform


class RayCluster:
    """Does the runs on a cluster: that of `on`, or the one that the process has joined."""

    jobs = None

    def __init__(self, on: str, settings: ExecutionSettings) -> None:
        self.on, self.settings = on, settings

    def seconds_per_step(self, run: PlannedRun, at_once: int) -> float:
        return time_steps(run.spec, self.settings.device, None)

    def run(self, queue: RunQueue) -> None:
        ray = import_ray()
        joined = connect(ray, self.on)
        under_way: dict[Any, PlannedRun] = {}
        try:
            with asked_to_stop():
                needs = resources_of_a_run(ray, queue.settings)
                # a lost task returns to us as an error, so that the queue counts attempts and tells the user
                remote = ray.remote(max_retries=0, **needs)(remote_run)
                threads = 1 if "num_gpus" not in needs else None
                watch = MetricsWatch(queue.display, Store(queue.settings.store))
                while True:
                    queue.display.at_once = capacity(ray, needs)
                    while len(under_way) < queue.display.at_once and (run := queue.next_now()) is not None:
                        task = queue.settings.task(run, threads)
                        under_way[remote.remote(task.to_dict(), os.getcwd())] = run
                    if not under_way and not queue.waiting:
                        return
                    ready, _ = ray.wait(list(under_way), timeout=POLL) if under_way else ([], [])
                    if not under_way:
                        time.sleep(POLL)
                    for reference in ready:
                        run = under_way.pop(reference)
                        queue.report(run, result_of(ray, reference, run))
                    for run in under_way.values():
                        watch.look(run)
        except StudyStoppedError:
            queue.stop()
            for reference in under_way:
                ray.cancel(reference, force=True)  # the steps since the last checkpoint are done again
            raise
        finally:
            if joined:
                ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SoftbiasError("--on ray needs Ray: pip install 'softbias[ray]'") from error
    return ray


def address_of(on: str) -> str | None:
    """The cluster's address; None: the one that runs here (RAY_ADDRESS), or a new one on this machine."""
    if on == "ray":
        return environment.variable("RAY_ADDRESS")
    if on.startswith("ray://") or on == "auto":
        return on
    raise SoftbiasError(f"--on takes ray, or ray://HOST:PORT for a cluster elsewhere, but got {on!r}")


def connect(ray: Any, on: str) -> bool:
    """Join the cluster; True if it was joined here, and must be left again."""
    address = address_of(on)
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError) as error:
        raise SoftbiasError(f"no Ray cluster answers at {address}: {error}") from error
    return True


def resources_of_a_run(ray: Any, settings: ExecutionSettings) -> dict[str, float]:
    """A CPU, and a GPU where the cluster has some."""
    if settings.device in ("auto", "cuda") and ray.cluster_resources().get("GPU", 0) > 0:
        return {"num_cpus": 1, "num_gpus": 1}
    return {"num_cpus": 1}


def capacity(ray: Any, needs: Mapping[str, float]) -> int:
    """The number of runs that the cluster can do at a time, now."""
    resources = ray.cluster_resources()
    kind, amount = ("GPU", needs["num_gpus"]) if "num_gpus" in needs else ("CPU", needs["num_cpus"])
    return max(1, int(resources.get(kind, 0) / amount))


def remote_run(task: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """One run, on the node. It waits here until the claim of a lost node has ended."""
    if os.path.isdir(folder):
        os.chdir(folder)  # data may be named relative to the folder in which the study was started
    while True:
        result = perform(RunTask.from_dict(task))
        if result.state != "busy":
            return result.to_dict()
        time.sleep(POLL)


def result_of(ray: Any, reference: Any, run: PlannedRun) -> RunResult:
    try:
        return RunResult.from_dict(ray.get(reference))
    except ray.exceptions.RayTaskError as error:  # raised by our own code on the node
        return RunResult(run.id, "failed", f"{type(error.cause).__name__}: {error.cause}")
    except ray.exceptions.RayError as error:
        return RunResult(run.id, "lost", f"its node or process was lost ({type(error).__name__})")


class MetricsWatch:
    """Tells a display how far runs on other machines are, by the last row that each has written to its metrics.jsonl."""

    def __init__(self, display: StudyDisplay, store: Store) -> None:
        self.display, self.store = display, store
        self.last_step: dict[str, int] = {}

    def look(self, run: PlannedRun) -> None:
        try:
            text = Run(self.store.folder(run.spec)).metrics_path.read_text(encoding="utf-8")
            row = json.loads(text.rpartition("\n")[0].rpartition("\n")[2])  # what follows the last line break is half written
        except (OSError, json.JSONDecodeError):
            return
        if self.last_step.get(run.id) != row["step"]:
            self.last_step[run.id] = row["step"]
            total = run.spec.recipe.steps or round(row["step"] / row["epoch"] * row["epochs"])
            self.display.event(run, {"event": "step", "step": row["step"], "total": total, "loss": row["loss"]})
