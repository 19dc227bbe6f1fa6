"""Processes of torchrun are killed one by one; the same command continues to the same weights, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from softbias.runs.fit import fit
from softbias.training.loop import StoppedError
from softbias.training.plan import LoopSettings
try:
    fit("fashion", "convit_nano", "small", out=sys.argv[1], resume=True, train_fraction=0.06, epochs=5, batch_size=32,
        model_options={"patch_size": 8}, device="cpu", page=False, baseline=False, trackers=(),
        settings=LoopSettings(checkpoint_seconds=0.0, middle_seconds=0.05))
except StoppedError as stop:
    sys.exit(128 + stop.signal)
"""
MOST = 90.0  # seconds that the other processes may take to end

pytestmark = pytest.mark.slow


def start(folder: Path, out: Path) -> subprocess.Popen:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(out)]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(launch, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)


def finish(folder: Path, out: Path) -> None:
    assert start(folder, out).wait(240) == 0, (folder / "log").read_text()[-2000:]


def ranks(torchrun: int) -> dict[str, int]:
    """Rank -> number of the process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == torchrun:
                words = dict(word.partition("=")[::2] for word in (folder / "environ").read_text().split("\0"))
                found[words["RANK"]] = int(folder.name)
        except (OSError, KeyError):  # it ended, or is no rank yet
            continue
    return found


def newest(out: Path) -> int:
    return max((int(path.name[5:]) for path in out.glob("checkpoints/step-*[0-9]")), default=0)


def wait_for_checkpoint(out: Path, process: subprocess.Popen) -> None:
    seen, deadline = newest(out), time.monotonic() + 120
    while newest(out) <= seen:
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.01)


def outcome(out: Path) -> tuple[dict, list, dict]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timing = ("seconds", "images_per_second")
    rows = [{name: value for name, value in row.items() if name not in timing} for row in rows]
    summary = json.loads((out / "summary.json").read_text())
    kept = {name: summary[name] for name in ("id", "test", "steps", "best_epoch", "validation_accuracy")}
    weights = load_file(out / "model/model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in weights.items()}, rows, kept


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    finish(folder, folder / "run")
    return folder / "run"


@pytest.mark.parametrize(
    "kills",
    [
        [("1", signal.SIGKILL), ("0", signal.SIGKILL), ("1", signal.SIGKILL)],
        [("torchrun", signal.SIGTERM), ("0", signal.SIGTERM), ("1", signal.SIGTERM)],
    ],
    ids=["killed", "asked to stop"],
)
def test_processes_that_end_one_by_one_continue_to_the_same_weights(never_stopped, tmp_path, kills):
    out, rng = tmp_path / "run", random.Random(0)
    for who, number in kills:
        process = start(tmp_path, out)
        wait_for_checkpoint(out, process)
        time.sleep(0.2 * rng.random())
        there = {**ranks(process.pid), "torchrun": process.pid}
        os.kill(there[who], number)
        assert process.wait(MOST) != 0  # the others do not wait for ever
        assert not any(Path(f"/proc/{pid}").exists() for pid in there.values())
        assert not (out / "summary.json").exists()
    finish(tmp_path, out)
    assert outcome(out) == outcome(never_stopped)


def test_a_second_start_is_refused_while_processes_without_their_torchrun_work_on(never_stopped, tmp_path):
    out = tmp_path / "run"
    process = start(tmp_path, out)
    wait_for_checkpoint(out, process)
    orphans = list(ranks(process.pid).values())
    for pid in orphans:
        os.kill(pid, signal.SIGSTOP)
    try:
        process.kill()
        process.wait()
        second = start(tmp_path, out)
        assert second.wait(MOST) != 0 and "another process is training" in (tmp_path / "log").read_text()
    finally:
        for pid in orphans:
            os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in orphans):
        assert time.monotonic() < deadline, "they neither finish nor end"
        time.sleep(0.1)
    finish(tmp_path, out)
    assert outcome(out) == outcome(never_stopped)
