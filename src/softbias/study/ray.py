"""The runs of a study on a Ray cluster. Every run is one task with its share of CPUs and GPUs.

The study's folder must be seen under the same path by all nodes; tasks leave their results there, and only a line about
them travels. How far a run is, its metrics.jsonl says. When a node is lost, Ray tells us so, and the run goes to another one,
where it continues from its checkpoint as soon as the lost one's claim has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from softbias import environment
from softbias.errors import SoftbiasError
from softbias.runs.run import Run
from softbias.study.execute import POLL, Schedule, Settings, StudyStoppedError, asked_to_stop
from softbias.study.progress import Quiet
from softbias.study.spec import PlannedRun
from softbias.study.store import Store
from softbias.study.worker import Done, Task, perform


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SoftbiasError("--on ray needs Ray: pip install 'softbias[ray]'") from error
    return ray


def address_of(on: str) -> str | None:
    """What to connect to: a cluster's address; None: the one that runs here (RAY_ADDRESS), or a new one on this machine."""
    if on == "ray":
        return environment.variable("RAY_ADDRESS")
    if on.startswith("ray://") or on == "auto":
        return on
    raise SoftbiasError(f"--on takes ray, or ray://HOST:PORT for a cluster elsewhere, but got {on!r}")


def connect(ray: Any, on: str) -> bool:
    """Join the cluster; True if it was joined here, and is to be left again."""
    address = address_of(on)
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError) as error:
        raise SoftbiasError(f"no Ray cluster answers at {address}: {error}") from error
    return True


def share(ray: Any, settings: Settings) -> dict[str, float]:
    """What one run takes: a CPU, or a GPU where the cluster has some."""
    if settings.device in ("auto", "cuda") and ray.cluster_resources().get("GPU", 0) > 0:
        return {"num_cpus": 1, "num_gpus": 1}
    return {"num_cpus": 1}


def remote_run(task: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """On the node: one run. A claim that a lost node left is waited for here."""
    if os.path.isdir(folder):
        os.chdir(folder)  # pictures may be named relative to where the study was started
    while True:
        done = perform(Task.from_dict(task))
        if done.state != "busy":
            return asdict(done)
        time.sleep(POLL)


def on_ray(schedule: Schedule, settings: Settings) -> dict[str, Done]:
    ray = import_ray()
    joined = connect(ray, settings.on or "ray")
    under_way: dict[Any, PlannedRun] = {}
    try:
        with asked_to_stop():
            one = share(ray, settings)
            # a lost task comes back to us as an error, so that the schedule counts attempts and says what happened
            remote = ray.remote(max_retries=0, **one)(remote_run)
            threads = 1 if "num_gpus" not in one else None
            watch = Watch(schedule.display, Store(settings.store))
            while True:
                schedule.display.at_once = room(ray, one)
                while len(under_way) < schedule.display.at_once and (run := schedule.next_now()) is not None:
                    task = settings.task(run, threads)
                    under_way[remote.remote(task.to_dict(), os.getcwd())] = run
                if not under_way and not schedule.waiting:
                    return schedule.results
                ready, _ = ray.wait(list(under_way), timeout=POLL) if under_way else ([], [])
                if not under_way:
                    time.sleep(POLL)
                for reference in ready:
                    run = under_way.pop(reference)
                    schedule.report(run, result_of(ray, reference, run))
                for run in under_way.values():
                    watch.look(run)
    except StudyStoppedError:
        schedule.stop()
        for reference in under_way:
            ray.cancel(reference, force=True)  # what is lost since the last checkpoint is done again
        raise
    finally:
        if joined:
            ray.shutdown()


class Watch:
    """Tells a display how far runs are that somebody else does: the last epoch that each has noted in its folder."""

    def __init__(self, display: Quiet, store: Store) -> None:
        self.display, self.store = display, store
        self.told: dict[str, int] = {}

    def look(self, run: PlannedRun) -> None:
        try:
            text = Run(self.store.place(run.spec)).metrics_path.read_text(encoding="utf-8")
            row = json.loads(text.rpartition("\n")[0].rpartition("\n")[2])  # what follows the last line's end is half written
        except (OSError, json.JSONDecodeError):
            return
        if self.told.get(run.id) != row["step"]:
            self.told[run.id] = row["step"]
            total = run.spec.recipe.steps or round(row["step"] / row["epoch"] * row["epochs"])
            self.display.event(run, {"event": "step", "step": row["step"], "total": total, "loss": row["loss"]})


def room(ray: Any, one: Mapping[str, float]) -> int:
    """How many runs the cluster can do at a time, now; a few more wait there, so that no node is idle in between."""
    resources = ray.cluster_resources()
    kind, amount = ("GPU", one["num_gpus"]) if "num_gpus" in one else ("CPU", one["num_cpus"])
    return max(1, int(resources.get(kind, 0) / amount))


def result_of(ray: Any, reference: Any, run: PlannedRun) -> Done:
    try:
        done = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # raised by our own code on the node
        return Done(run.id, "failed", f"{type(error.cause).__name__}: {error.cause}")
    except ray.exceptions.RayError as error:
        return Done(run.id, "lost", f"its node or process was lost ({type(error).__name__})")
    return Done(**{**done, "notes": tuple(done["notes"])})
