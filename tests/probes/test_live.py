"""`fit --probe-every` of a run that is killed and continued leaves the same rows as one that was never stopped."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from softbias.cli import main

WORDS = [
    "fit",
    "fashion",
    "--fraction",
    "0.04",
    "--model",
    "convit_nano",
    "--model-option",
    "patch_size=8",
    "--recipe",
    "quick",
]
WORDS += ["--recipe.epochs", "5", "--recipe.batch-size", "32", "--no-baseline", "--trackers", "none", "--device", "cpu"]
WORDS += ["--quiet", "--keep", "every=2", "--probe-every", "1"]
PLAIN = """
import sys
from softbias.cli import main
sys.exit(main(sys.argv[1:]))
"""
TORN = """
import os, signal, sys
from softbias.cli import main
from softbias.runs import live

def write(rows, file, whole=live.append_rows):
    whole(rows, file)
    if file.name == "gates.jsonl" and rows[0]["epoch"] == 4:
        os.truncate(file, file.stat().st_size - 20)
        os.kill(os.getpid(), signal.SIGKILL)

live.append_rows = write
main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def quick_and_alone(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("softbias.runs.fit.write_page", lambda run, summary, data: run.page_path)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("softbias.runs.fit.write_page", lambda run, summary, data: run.page_path)
        assert main([*WORDS, "--out", str(out)]) == 0
    return out


def start(script: str, out: Path) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", script, *WORDS, "--out", str(out), "--resume"], env=environment)


def files(run: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (run / "probes").iterdir()}


def epochs(run: Path, name: str) -> Counter:
    return Counter(json.loads(line)["epoch"] for line in (run / "probes" / name).read_text().splitlines())


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_row_leaves_no_trace(never_stopped, tmp_path):
    out = tmp_path / "run"
    process = start(TORN, out)
    assert process.wait(timeout=120) == -9
    left = (out / "probes" / "gates.jsonl").read_text().splitlines()
    with pytest.raises(json.JSONDecodeError):
        json.loads(left[-1])
    assert max(epochs(out, "locality.jsonl")) == 4 and not list(out.glob("checkpoints/step-*4")), "probed, and not yet saved"
    assert main([*WORDS, "--out", str(out), "--resume"]) == 0
    assert files(out) == files(never_stopped)
    assert list(epochs(out, "gates.jsonl")) == [0, 1, 2, 3, 4, 5] and len(set(epochs(out, "gates.jsonl").values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kills_at_random_times_leave_no_trace(never_stopped, tmp_path, seed):
    out, rng = tmp_path / "run", random.Random(seed)
    for number in range(3):
        process = start(PLAIN, out)
        deadline = time.monotonic() + 120
        while not (out / "probes" / "gates.jsonl").is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.random() * (1 if number == 0 else 8))  # later ones may fall into the imports
        process.kill()
        process.wait()
    assert main([*WORDS, "--out", str(out), "--resume"]) == 0
    assert files(out) == files(never_stopped)
