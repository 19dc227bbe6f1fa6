"""A study in several processes, and studies that are killed: real processes, really killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softbias.runs.store import Store
from softbias.study.compare import run_study
from softbias.study.spec import write_study

from .small_studies import outcome

SCRIPT = """
import sys
from softbias.study.compare import run_study
from softbias.study.execute import StudyStoppedError
from softbias.study.spec import read_study
try:
    done = run_study(read_study(sys.argv[1]), sys.argv[2], device="cpu", jobs=int(sys.argv[3]), report=False, baseline=False)
except StudyStoppedError as stop:
    sys.exit(128 + stop.signal)
sys.exit(1 if done.failed else 0)
"""


def start(spec, out: Path, jobs: int = 0) -> subprocess.Popen:
    write_study(spec, out.parent / "given")
    words = [sys.executable, "-c", SCRIPT, str(out.parent / "given"), str(out), str(jobs)]
    return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1", "SOFTBIAS_CHECKPOINT_SECONDS": "0.2"})


def wait_until(what, process=None, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to that"
        if process is not None and process.poll() is not None:
            return
        time.sleep(0.01)


def finished(out: Path) -> int:
    return len(list(out.glob("runs/*/summary.json")))


def checkpoints(out: Path) -> int:
    return len(list(out.glob("runs/*/checkpoints/step-*[0-9]")))


def whole(spec, out: Path) -> dict:
    run_study(spec, out, device="cpu", report=False, baseline=False)
    return outcome(out)


@pytest.mark.slow
def test_a_killed_study_ends_as_one_that_was_never_stopped(little_study, tmp_path):
    spec = little_study("deit_nano,convit_nano", seeds=1, fractions=1, overrides={"steps": 40})
    process = start(spec, tmp_path / "s")
    wait_until(lambda: checkpoints(tmp_path / "s") >= 1, process)
    process.kill()
    process.wait()
    assert finished(tmp_path / "s") < 2 and list((tmp_path / "s" / "runs" / ".claims").iterdir())
    assert whole(spec, tmp_path / "s") == whole(spec, tmp_path / "never")


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_its_run_continues(little_study, tmp_path):
    spec = little_study("deit_nano", seeds=1, fractions=1, overrides={"steps": 40})
    process = start(spec, tmp_path / "s", jobs=1)
    claims = tmp_path / "s" / "runs" / ".claims"
    wait_until(lambda: owners(claims), process)
    os.kill(owners(claims)[0], signal.SIGKILL)
    assert process.wait(240) == 0
    assert outcome(tmp_path / "s") == whole(spec, tmp_path / "never")
    assert not owners(claims)


def owners(claims: Path) -> list[int]:
    found = []
    for file in claims.glob("[!.]*") if claims.is_dir() else ():
        try:
            found.append(json.loads(file.read_text())["pid"])
        except (OSError, json.JSONDecodeError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_study_asked_to_stop_takes_its_processes_along_and_continues_later(little_study, tmp_path, number):
    spec = little_study("deit_nano,convit_nano", seeds=1, fractions=1, overrides={"steps": 4000})
    process = start(spec, tmp_path / "s", jobs=2)
    claims = tmp_path / "s" / "runs" / ".claims"
    wait_until(lambda: len(owners(claims)) == 2 and len(list((tmp_path / "s").glob("runs/*/metrics.jsonl"))) == 2, process)
    children = owners(claims)
    process.send_signal(number)
    assert process.wait(120) == 128 + number
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert finished(tmp_path / "s") == 0 and checkpoints(tmp_path / "s") >= 2 and not owners(claims)
    store = Store(tmp_path / "s" / "runs")
    assert {store.state_of(folder, folder.name[-10:]) for folder in store.folders()} == {"stopped"}


@pytest.mark.slow
def test_workers_of_a_killed_study_save_their_state_and_end(little_study, tmp_path):
    process = start(
        little_study("deit_nano,convit_nano", seeds=1, fractions=1, overrides={"steps": 4000}), tmp_path / "s", jobs=2
    )
    claims = tmp_path / "s" / "runs" / ".claims"
    wait_until(lambda: len(owners(claims)) == 2 and checkpoints(tmp_path / "s") >= 2, process)
    children = owners(claims)
    process.kill()
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), seconds=120)
    assert not owners(claims)


@pytest.mark.slow
def test_two_studies_at_once_in_one_folder_share_the_work(little_study, tmp_path):
    spec = little_study("deit_nano,convit_nano", fractions=(0.5, 1), seeds=3, overrides={"steps": 40})
    together = [start(spec, tmp_path / "s"), start(spec, tmp_path / "s")]
    assert [process.wait(400) for process in together] == [0, 0]
    assert outcome(tmp_path / "s") == whole(spec, tmp_path / "never")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [0, 2])
def test_24_runs_killed_three_times_end_bit_for_bit_as_if_never_stopped(little_study, tmp_path, jobs):
    spec = little_study("deit_nano,convit_nano,resnet_nano", fractions=(0.5, 1), seeds=4, overrides={"steps": 60})
    out, rng = tmp_path / "s", random.Random(jobs)
    for kill in range(3):
        process = start(spec, out, jobs)
        wait_until(lambda kill=kill: finished(out) >= 5 * (kill + 1), process)
        time.sleep(rng.random())
        assert process.poll() is None, "it ended before it could be killed"
        victims = owners(out / "runs" / ".claims") if kill != 1 else []  # in the second round workers are left to notice
        for pid in {*victims, process.pid}:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        assert finished(out) < 24
    assert start(spec, out, jobs).wait(400) == 0
    again, never = outcome(out), whole(spec, tmp_path / "never")
    assert len(again) == 24 and again == never
