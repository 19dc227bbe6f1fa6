"""A run that is stopped at any moment continues to the same weights, bit for bit, as one that never stopped."""

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

from softbias.runs.fit import fit
from softbias.training.plan import LoopSettings

GIVEN = {
    "data": "fashion", "model": "convit_nano", "recipe": "small", "model_options": {"patch_size": 8}, "resume": True,
    "train_fraction": 0.06, "epochs": 4, "batch_size": 32, "device": "cpu", "page": False,
}  # fmt: skip
SCRIPT = f"""
import sys, torch
torch.set_num_threads(1)
from softbias.runs.fit import fit
from softbias.training.loop import StoppedError
from softbias.training.plan import LoopSettings
settings = LoopSettings(checkpoint_seconds=0.0, middle_seconds=float(sys.argv[2]))
try:
    fit(out=sys.argv[1], settings=settings, **{GIVEN!r})
except StoppedError as stop:
    sys.exit(128 + stop.signal)
"""


def start(out: Path, every: float = 0.05) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out), str(every)], env=environment, stderr=subprocess.PIPE)


def finish(out: Path) -> None:
    """Begin or continue the run, in this process: another one has the same bits."""
    fit(out=out, settings=LoopSettings(checkpoint_seconds=0.0, middle_seconds=1e9), **GIVEN)


def wait_for_checkpoint(out: Path, more_than: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        steps = [int(path.name[5:]) for path in out.glob("checkpoints/step-*")]
        if (steps and max(steps) > more_than) or (out / "summary.json").is_file():
            return
        time.sleep(0.01)
    raise AssertionError("no checkpoint appeared")


def outcome(out: Path) -> tuple[dict, list, dict]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timing = ("seconds", "images_per_second")
    rows = [{name: value for name, value in row.items() if name not in timing} for row in rows]
    summary = json.loads((out / "summary.json").read_text())
    kept = {name: summary[name] for name in ("id", "test", "steps", "best_epoch", "validation_accuracy")}
    return (
        {name: tensor.numpy().tobytes() for name, tensor in load_file(out / "model/model.safetensors").items()},
        rows,
        kept,
    )


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    finish(out)
    return out


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_times_ends_with_the_same_weights(never_stopped, tmp_path, seed):
    out, rng, seen = tmp_path / "run", random.Random(seed), 0
    for _ in range(2 if seed == 0 else 4):
        process = start(out)
        wait_for_checkpoint(out, seen)
        time.sleep(rng.random() * 0.6)
        process.kill()  # SIGKILL: no handler, no goodbye
        process.wait()
        seen = max((int(path.name[5:13]) for path in out.glob("checkpoints/step-*")), default=0)
    finish(out)
    assert outcome(out) == outcome(never_stopped)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_asked_to_stop_saves_its_state_and_says_so(never_stopped, tmp_path, number):
    out = tmp_path / "run"
    process = start(out, every=1e9)
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    assert not (out / "summary.json").exists() and list(out.glob("checkpoints/step-*"))
    finish(out)
    assert outcome(out) == outcome(never_stopped)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(never_stopped, tmp_path):
    out = tmp_path / "run"
    process = start(out)
    wait_for_checkpoint(out, 8)
    process.kill()
    process.wait()
    newest = sorted(out.glob("checkpoints/step-*"))[-1]
    file = newest / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    finish(out)
    assert outcome(out) == outcome(never_stopped)


def test_a_finished_run_is_left_alone(never_stopped):
    before = {path: path.stat().st_mtime_ns for path in never_stopped.rglob("*") if path.is_file()}
    finish(never_stopped)
    assert {path: path.stat().st_mtime_ns for path in never_stopped.rglob("*") if path.is_file()} == before
