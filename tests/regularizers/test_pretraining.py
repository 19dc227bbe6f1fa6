"""ARViT from end to end: rotations are learned, and the frozen backbone is judged beside a random one and raw pixels."""

import json
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from softbias.cli import main
from softbias.data import load_dataset
from softbias.regularizers import REGULARIZERS
from softbias.training.linear import linear_probes

ROOT = Path(__file__).parents[2]


def test_the_documented_python_runs():
    names: dict = {}
    with patch.dict(REGULARIZERS):
        for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs/regularizers.md").read_text(), re.DOTALL):
            exec(code, names)
        assert "sharpness" in REGULARIZERS
    assert names["logits"].shape == (2, 10) and names["values"].shape == (1, 2)


def test_three_backbones_are_probed_by_one_method():
    import torch

    from softbias.models import create_model

    torch.manual_seed(0)
    data = load_dataset("fashion")
    train, test = data.splits["train"][:120], data.splits["test"][:100]
    model = create_model("arvit_nano", num_classes=4, patch_size=8)
    rows = linear_probes(model, data, train, test, (0.2,) * 3, (0.3,) * 3)
    assert rows is not None
    assert [row["backbone"] for row in rows] == ["pre-trained", "random weights", "raw pixels"]
    assert all(row["n"] == 100 and 0.4 < row["accuracy"] < 1 for row in rows)
    assert rows[0]["features"] == rows[1]["features"] == 16 * 64


def test_a_regularized_run_keeps_its_maps_and_draws_them(tmp_path):
    status = main(
        ["fit", "fashion", "--model", "arvit_nano", "--recipe", "quick", "--recipe.steps", "2", "--fraction", "0.04",
         "--model-option", "patch_size=8", "--regularize", "distance:layer=1", "--regularize", "style:layer=1,region=2",
         "--out", str(tmp_path / "run"), "--quiet", "--no-baseline"]
    )  # fmt: skip
    assert status == 0
    with np.load(tmp_path / "run/attention-before.npz") as before, np.load(tmp_path / "run/attention-after.npz") as after:
        assert before["1/map"].shape == after["1/map"].shape == (3, 16, 16)
        assert not np.array_equal(before["1/map"], after["1/map"])
        assert after["1/style/matrix"].shape == (3, 4, 4)
    page = (tmp_path / "run/report.html").read_text()
    assert "distance, layer 1" in page and "style, layer 1" in page
    assert "distance loss, unweighted" in page and "Pictures with style loss" in page


def test_a_mistake_costs_no_reading_of_images(tmp_path, capsys):
    assert main(["fit", str(tmp_path / "nowhere"), "--regularize", "distanse:layer=1"]) == 2
    assert "did you mean 'distance'" in capsys.readouterr().err


@pytest.mark.slow
def test_rotations_of_fashion_are_learned_and_the_probe_stands_beside_its_rivals(tmp_path, monkeypatch, capsys):
    """The README's line. One core needs about two minutes."""
    (line,) = re.findall(r"^softbias pretrain .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    first, second = (command.split()[1:] for command in line.split(" && "))
    assert main(first) == 0
    assert json.loads((tmp_path / "P/summary.json").read_text())["test"]["accuracy"] >= 0.9
    capsys.readouterr()
    assert main([*second, "--recipe.epochs", "4", "--out", "F"]) == 0
    summary = json.loads((tmp_path / "F/summary.json").read_text())
    assert [row["backbone"] for row in summary["probes"]] == ["pre-trained", "random weights", "raw pixels"]
    assert min(row["accuracy"] for row in summary["probes"]) > 0.8
    assert "Probe, random weights" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_give_the_terms_of_one(tmp_path):
    import os
    import subprocess
    import sys

    script = (
        "import sys, torch\ntorch.set_num_threads(1)\nfrom softbias.runs.fit import fit\n"
        'fit("fashion", "arvit_nano", "quick", out=sys.argv[1], train_fraction=0.04, epochs=2, batch_size=32, accumulate=2,\n'
        '    model_options={"patch_size": 8}, device="cpu", regularize=("distance:layer=1", "style:layer=2"), page=False)\n'
    )
    (tmp_path / "train.py").write_text(script)
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rows = {}
    for name, launch in (("one", [sys.executable]), ("two", two)):
        run = subprocess.run(
            [*launch, tmp_path / "train.py", tmp_path / name], capture_output=True, text=True, timeout=600,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-2000:]
        rows[name] = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    for one, other in zip(rows["one"], rows["two"], strict=True):
        for term in ("loss", "task_loss", "distance_loss", "style_loss"):
            assert other[term] == pytest.approx(one[term], abs=1e-4), term
