"""A real Ray cluster of two nodes on this machine; one is lost in the middle of a study."""

import builtins
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from softbias.runs.run import Run
from softbias.runs.store import Store
from softbias.study.compare import Comparison, run_study
from softbias.study.plan import study_runs
from softbias.study.progress import StudyDisplay
from softbias.study.ray import MetricsWatch, address_of

from .small_studies import outcome


def test_an_address_is_ray_or_ray_colon():
    assert address_of("ray://head:10001") == "ray://head:10001"
    with pytest.raises(ValueError, match="--on takes ray, or ray://HOST:PORT"):
        address_of("slurm")


def test_without_ray_the_error_says_what_to_install(little_study, tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ValueError, match=r"pip install 'softbias\[ray\]'"):
        run_study(little_study(), tmp_path, on="ray", device="cpu", report=False)


def test_how_far_a_run_is_stands_in_its_folder(little_study, tmp_path):
    (run,) = study_runs(little_study("deit_nano", seeds=1, fractions=1, overrides={"steps": 70}))
    display, store = Lines(), Store(tmp_path)
    display.begin([run], [run], {run.id: 10.0})
    watch = MetricsWatch(display, store)
    watch.look(run)  # its folder is not there yet
    metrics = Run(store.folder(run.spec)).metrics_path
    metrics.parent.mkdir()
    rows = [json.dumps({"step": 7 * epoch, "epoch": epoch, "epochs": 10, "loss": 1.0}) + "\n" for epoch in (1, 2, 3)]
    metrics.write_text("".join(rows[:2]) + rows[2][:9])
    watch.look(run)
    watch.look(run)  # nothing new
    assert [(event["step"], event["total"]) for _, event in display.events] == [(14, 70)] and display.part[run.id] == 0.2
    metrics.write_text("".join(rows))
    watch.look(run)
    assert display.part[run.id] == 0.3 and display.left() > 0


class Lines(StudyDisplay):
    def __init__(self):
        super().__init__()
        self.messages, self.notes, self.events, self.finished = [], [], [], []

    def event(self, run, event):
        super().event(run, event)
        self.events.append((run.id, event))

    def message(self, text):
        self.messages.append(text)

    def done(self, run, done):
        super().done(run, done)
        self.notes += done.notes
        self.finished.append(run.id)


@pytest.mark.slow
def test_a_study_survives_the_loss_of_a_node(little_study, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("SOFTBIAS_CHECKPOINT_SECONDS", "0.3")
    spec = little_study("deit_nano", seeds=3, fractions=1, overrides={"steps": 300})
    out = tmp_path / "s"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        display, killed = Lines(), []

        def kill_one() -> None:
            """When both nodes are at work: the second node with all of its processes, at once."""
            deadline = time.monotonic() + 900
            while time.monotonic() < deadline and not killed:
                time.sleep(0.1)
                if (
                    len(claimed(out)) == 2
                    and len({path.parents[1] for path in out.glob("runs/*/checkpoints/step-*[0-9]")}) == 2
                ):
                    raylet = lost.all_processes["raylet"][0].process.pid
                    there = [pid for pid in claimed(out) if parent(pid) == raylet]
                    cluster.remove_node(lost, allow_graceful=False)
                    for pid in there:  # a node that is gone takes its tasks along; here they would live a little longer
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    killed.extend(there)

        thread = threading.Thread(target=kill_one, daemon=True)
        thread.start()
        done = run_study(spec, out, on="ray", device="cpu", report=False, baseline=False, display=display)
        thread.join(10)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(killed) == 1 and not done.failed and len(done.runs) == 3
    assert any("was lost" in text and "continues from its checkpoint" in text for text in display.messages), display.messages
    assert any(note.kind == "run-continued" and note.values["step"] > 0 for note in display.notes)
    assert display.at_once in (1, 2) and {id for id, _ in display.events} == set(display.work)  # each was seen on its way
    assert any(0 < event["step"] < event["total"] == 300 for _, event in display.events)
    run_study(spec, tmp_path / "never", device="cpu", report=False, baseline=False)
    assert outcome(out) == outcome(tmp_path / "never")


@pytest.mark.slow
def test_a_study_of_a_hundred_runs_survives_nodes_that_come_and_go(little_study, tmp_path, monkeypatch):
    """Four times a node is taken away with its runs; once there is no node left for a while."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("SOFTBIAS_CHECKPOINT_SECONDS", "0.1")
    spec = little_study("deit_nano,convit_nano", seeds=26, fractions=(0.5, 1))
    out, small = tmp_path / "s", {"object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        display, lost = Lines(), []

        def study() -> Comparison:
            return run_study(spec, out, on="ray", device="cpu", report=False, baseline=False, display=display)

        def wait_for(what: Callable[[], object]) -> None:
            while not what() and not under_way.done():
                time.sleep(0.01)

        def take_away() -> None:
            node = nodes.pop(0)
            raylet = node.all_processes["raylet"][0].process.pid
            wait_for(lambda: children(raylet) & claimed(out))
            workers = children(raylet)
            lost.extend(workers & claimed(out))
            cluster.remove_node(node, allow_graceful=False)
            for pid in workers:  # a node that is gone takes its tasks along
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        with ThreadPoolExecutor(1) as pool:  # Ray adds nodes in the main thread only
            under_way = pool.submit(study)
            for finished, count in ((10, 1), (30, 2), (60, 1)):
                wait_for(lambda finished=finished: len(list(out.glob("runs/*/summary.json"))) >= finished)
                for _ in range(count):
                    take_away()
                nodes.extend(cluster.add_node(num_cpus=1, **small) for _ in range(count))
            done = under_way.result()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(lost) >= 2 and any("was lost" in text for text in display.messages)
    assert not done.failed and len(done.runs) == 104 == len(set(display.finished)) == len(display.finished)
    assert not list((out / "runs" / ".claims").glob("[!.]*"))
    run_study(spec, tmp_path / "never", device="cpu", jobs=1, report=False, baseline=False)
    assert outcome(out) == outcome(tmp_path / "never")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if parent(int(folder.name)) == pid:
                found.add(int(folder.name))
    return found


def claimed(out: Path) -> set[int]:
    found = set()
    for file in out.glob("runs/.claims/[!.]*"):
        try:
            found.add(json.loads(file.read_text())["pid"])
        except (OSError, json.JSONDecodeError):
            continue
    return {pid for pid in found if os.path.exists(f"/proc/{pid}")}
