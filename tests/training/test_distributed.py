"""Two processes see what one sees: the same losses for the same global batch."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from softbias.runs.fit import fit
fit("fashion", "convit_nano", "small", out=sys.argv[1], train_fraction=0.04, epochs=2, page=False, batch_size=32, drop_path=0.0,
    accumulate=2,
    model_options={"patch_size": 8}, device="cpu")
"""

HURRIED = """
import os, sys, time, torch
torch.set_num_threads(1)
from softbias.training import pace
from softbias.runs.fit import run_fit
from softbias.training.recipe import RECIPES
from softbias.runs.spec import RunSpec
rank = int(os.environ["RANK"])
pace.measure_steps = lambda *_: [0.01 * (1 + 2 * rank)]  # one process measures a faster step than the other
recipe = RECIPES["quick"].with_overrides({"epochs": 50, "batch_size": 32})
spec = RunSpec("fashion", "deit_nano", recipe, train_fraction=0.04, model_options={"patch_size": 8})
print("steps", run_fit(spec, sys.argv[1], minutes=0.02, device="cpu", baseline=False).summary["steps"])
"""


def two_processes(script, out):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launch, script, out], capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.slow
def test_processes_that_measure_different_speeds_end_at_the_same_step(tmp_path):
    (tmp_path / "train.py").write_text(HURRIED)
    done = two_processes(tmp_path / "train.py", tmp_path / "out")
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [line for line in done.stdout.splitlines() if line.startswith("steps")]
    assert len(steps) == 2 and len(set(steps)) == 1


def test_two_processes_give_the_losses_of_one(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, launch in (("one", [sys.executable]), ("two", two)):
        run = subprocess.run(
            [*launch, tmp_path / "train.py", tmp_path / name], capture_output=True, text=True, env=environment, timeout=300
        )
        assert run.returncode == 0, run.stderr[-2000:]
    rows = {
        name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    }
    assert len(rows["one"]) == len(rows["two"]) == 2
    for one, two_row in zip(rows["one"], rows["two"], strict=True):
        assert two_row["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert two_row["val_loss"] == pytest.approx(one["val_loss"], abs=1e-4)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")]
    assert summaries[0]["test"]["accuracy"] == pytest.approx(summaries[1]["test"]["accuracy"], abs=0.01)
