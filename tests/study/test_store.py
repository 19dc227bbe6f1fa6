"""The store: claims that hold, end, and are taken over; runs that are half written."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from softbias.runs import store as store_module
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, write_config
from softbias.runs.store import Claim, Store, is_whole
from softbias.training.recipe import Recipe

SPEC = RunSpec("fashion", "deit_nano", Recipe())


def finish(folder: Path, id: str = SPEC.id) -> None:
    (folder / "model").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / "model" / name).write_text("{}")
    (folder / "config.yaml").write_text(write_config(SPEC))
    summary = {
        "id": id, "data": "bright", "model": "deit_nano", "seed": 0, "train_fraction": 1.0, "objective": "supervised",
        "pretext": False, "parameters": 1, "pictures": {"train": 1, "val": 0}, "img_size": [8, 8], "steps": 1000,
        "epochs": 1.0, "seconds": 50.0, "images_per_second": 1.0,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_claim_keeps_others_out_until_it_is_released(tmp_path):
    store = Store(tmp_path)
    with store.claim("a") as claim:
        assert claim is not None and store.claim("a") is None and store.owner("a")["pid"] == os.getpid()
        assert store.claim("b") is not None
    assert store.owner("a") is None and store.claim("a") is not None


def test_of_many_threads_and_processes_one_has_the_claim_at_a_time(tmp_path):
    """Every holder appends twice to a file; if two held the claim at once, their lines would mix."""
    code = """
import sys, time
from softbias.runs.store import Store
store, name, out = Store(sys.argv[1]), sys.argv[2], open(sys.argv[3], "a", buffering=1)
done = 0
while done < 15:
    claim = store.claim("a")
    if claim is None:
        time.sleep(0.001); continue
    out.write(f"in {name}\\n"); time.sleep(0.002); out.write(f"out {name}\\n")
    claim.release(); done += 1
"""
    out = tmp_path / "lines"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number), str(out)]) for number in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    lines = out.read_text().split("\n")[:-1]
    assert len(lines) == 90
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert entered.replace("in ", "") == left.replace("out ", "") and entered.startswith("in")


def test_the_claim_of_a_killed_process_is_taken_over(tmp_path):
    code = (
        "import sys, os, signal; from softbias.runs.store import Store; Store(sys.argv[1]).claim('a'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    store = Store(tmp_path)
    assert (store.claims / "a").is_file() and store.owner("a") is None
    assert store.claim("a") is not None and store.claim("a") is None


def test_a_claim_that_is_released_meanwhile_is_not_stale_so_that_the_next_one_stays(tmp_path):
    store, other = Store(tmp_path), os.getppid()
    store.claims.mkdir(parents=True)
    read = {"host": socket.gethostname(), "pid": other, "started": store_module.started(other), "token": "x"}
    assert not store.is_stale(store.claims / "a", read)


def test_the_claim_of_another_machine_ends_when_its_heartbeat_is_silent(tmp_path):
    store = Store(tmp_path)
    store.claims.mkdir(parents=True)
    file = store.claims / "a"
    file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "x"}))
    assert store.claim("a") is None
    long_ago = store.now() - store_module.SILENCE - 10
    os.utime(file, (long_ago, long_ago))
    claim = store.claim("a")
    assert claim is not None and json.loads(file.read_text())["token"] == claim.token


def test_a_claim_without_signature_counts_by_its_age(tmp_path):
    """Its owner died between creating and writing it, or is about to write."""
    store = Store(tmp_path)
    store.claims.mkdir(parents=True)
    (store.claims / "a").touch()
    assert store.claim("a") is None
    os.utime(store.claims / "a", (1.0, 1.0))
    assert store.claim("a") is not None


def test_a_fresh_claim_caught_while_removing_a_stale_one_is_put_back(tmp_path):
    store = Store(tmp_path)
    claim = store.claim("a")
    store.remove_stale(store.claims / "a", {"token": "the one that was stale"})
    assert json.loads((store.claims / "a").read_text())["token"] == claim.token
    assert [path.name for path in store.claims.iterdir()] == ["a"]


def test_a_heart_beats_while_the_claim_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "BEAT", 0.01)
    claim = Store(tmp_path).claim("a")
    os.utime(claim.file, (1.0, 1.0))
    for _ in range(500):
        if claim.file.stat().st_mtime > 2:
            break
        threading.Event().wait(0.01)
    assert claim.file.stat().st_mtime > 2
    claim.release()
    assert not claim.file.exists() and claim.token not in Claim.held


def test_a_run_is_finished_only_when_all_of_it_is_there(tmp_path):
    store, folder = Store(tmp_path), Store(tmp_path).folder(SPEC)
    assert store.state(SPEC) == "missing"
    finish(folder)
    assert store.state(SPEC) == "finished"
    (folder / "model" / "model.safetensors").unlink()
    assert store.state(SPEC) == "stopped"
    finish(tmp_path / "other", id="another")
    assert not is_whole(tmp_path / "other", SPEC.id)
    (folder / "summary.json").write_text('{"id": "5e')  # cut off
    assert store.state(SPEC) == "stopped"
    store.fail(SPEC, ValueError("too dark"))
    assert store.state(SPEC) == "failed"
    with store.claim(SPEC.id):
        assert store.state(SPEC) == "running"
    store.mend(SPEC)
    assert store.state(SPEC) == "stopped" and not (folder / "summary.json").exists()


def test_a_config_that_was_cut_off_makes_the_run_begin_anew(tmp_path):
    store, folder = Store(tmp_path), Store(tmp_path).folder(SPEC)
    finish(folder)
    Run(folder).config_path.write_text("data: [fash")
    (folder / "summary.json").unlink()
    store.mend(SPEC)
    assert not folder.exists()


@pytest.mark.parametrize("error", [ValueError("no light"), RuntimeError("no light")])
def test_a_failure_is_noted_with_its_traceback(tmp_path, error):
    store = Store(tmp_path)
    assert "no light" in store.fail(SPEC, error)
    noted = json.loads((store.folder(SPEC) / "failure.json").read_text())
    assert "no light" in noted["error"] and "no light" in noted["traceback"]
