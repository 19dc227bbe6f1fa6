"""Runs that learn without labels: killed and continued, exported without their head, continued with classes, and refused."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import softbias
from softbias.checksums import DamagedError
from softbias.cli import main
from softbias.data import load_dataset
from softbias.runs import automatic
from softbias.runs.feature_learning import choose
from softbias.runs.fit import fit
from softbias.runs.neighbors import NeighborRows
from softbias.runs.printed import verdict
from softbias.runs.run import Run
from softbias.training.checkpoint import listed, read_some
from softbias.training.plan import LoopSettings

GIVEN = {
    "data": "fashion", "model": "convit_nano", "model_options": {"patch_size": 8}, "train_fraction": 0.03, "epochs": 3,
    "batch_size": 32, "device": "cpu", "page": False, "trackers": (),
}  # fmt: skip
SCRIPT = f"""
import sys, torch
torch.set_num_threads(1)
from softbias.runs.fit import fit
from softbias.training.plan import LoopSettings
settings = LoopSettings(checkpoint_seconds=0.0, middle_seconds=0.02)
fit(recipe=sys.argv[1], out=sys.argv[2], resume=True, settings=settings, **{GIVEN!r})
"""


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Folders of finished runs by objective."""
    root = tmp_path_factory.mktemp("learned")
    settings = LoopSettings(checkpoint_seconds=0.0, middle_seconds=1e9)
    for name in ("views", "instances"):
        fit(recipe=name, out=root / name, settings=settings, keep="last,every=1", **GIVEN)
    return root


def rows_of(out) -> list[dict]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "images_per_second")} for row in rows]


@pytest.mark.parametrize("name", ["views", "instances"])
def test_a_killed_run_continues_to_the_same_features(learned, tmp_path, name):
    out = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, name, str(out)], env=environment)
    deadline = time.monotonic() + 120
    while not listed(out / "checkpoints") and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()  # SIGKILL: no handler, no goodbye
    process.wait()
    assert listed(out / "checkpoints") and not (out / "summary.json").exists()
    fit(recipe=name, out=out, resume=True, **GIVEN)
    ours, whole = (load_file(path / "model/model.safetensors") for path in (out, learned / name))
    assert all(torch.equal(tensor, whole[key]) for key, tensor in ours.items()) and rows_of(out) == rows_of(learned / name)
    assert Run(out).summary()["neighbors"] == Run(learned / name).summary()["neighbors"]


@pytest.mark.parametrize("name", ["views", "instances"])
def test_the_head_is_in_the_checkpoints_and_not_in_the_model(learned, name):
    out = learned / name
    kept = listed(out / "checkpoints")[-1]
    head = "ema/head.0.weight" if name == "views" else "ema/head.weight"
    assert read_some(kept, [head]), "a checkpoint holds the head, also the averaged one"
    assert not any(key.startswith("head") for key in load_file(out / "model/model.safetensors"))
    model = softbias.load(out / "model")
    assert model.num_classes == 0 and model.class_names is None
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, model.num_features)
    summary = Run(out).summary()
    assert summary["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert "test" not in summary and summary["pretext"] and summary["validation_accuracy"] is None


def test_a_checkpoint_opens_without_the_head(learned):
    run = Run(learned / "views")
    early, late = run.classifier(run.checkpoints[0]), run.classifier(run.checkpoints[-1])
    assert early.model.num_classes == late.model.num_classes == 0
    final = run.classifier().model.state_dict()
    assert all(torch.equal(tensor, final[key]) for key, tensor in late.model.state_dict().items())
    assert any(not torch.equal(tensor, final[key]) for key, tensor in early.model.state_dict().items())


@pytest.mark.parametrize("finetune", ["full", "linear"])
def test_a_classifier_starts_from_learned_features(learned, tmp_path, finetune):
    given = {name: value for name, value in GIVEN.items() if name not in ("model", "model_options", "epochs")}
    result = fit(start=learned / "views", finetune=finetune, out=tmp_path / "run", epochs=1, baseline=False, **given)
    before = load_file(learned / "views" / "model/model.safetensors")
    after = load_file(result.path / "model/model.safetensors")
    assert result.model.num_classes == 10 and after["head.weight"].shape == (10, 64)
    unchanged = all(torch.equal(tensor, after[name]) for name, tensor in before.items() if not name.startswith("head"))
    assert unchanged == (finetune == "linear")


def test_the_page_shows_neighbors_and_how_to_go_on(learned, tmp_path):
    run = Run(learned / "views")
    html = run.page().read_text()
    summary = run.summary()
    assert html.count('<tr><th scope="row"><img') == 12 and f"{100 * summary['neighbors']['accuracy']:.1f}" in html
    assert f"--start {run.path}" in html and "--finetune linear" in html
    found = NeighborRows.read(run.neighbors_path)
    data = load_dataset("fashion")
    split = run.split(data)
    assert set(found.index) <= set(split.test) and set(found.neighbors.flat) <= set(split.train)


def test_a_damaged_file_of_neighbors_is_refused_and_made_again(learned, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(learned / "views", out)
    content = bytearray(Run(out).neighbors_path.read_bytes())
    content[len(content) // 2] ^= 1
    Run(out).neighbors_path.write_bytes(content)
    with pytest.raises(DamagedError):
        Run(out).page()
    fit(recipe="views", out=out, resume=True, **GIVEN)
    assert Run(out).neighbors_path.read_bytes() == Run(learned / "views").neighbors_path.read_bytes()


@pytest.mark.parametrize(("accuracy", "good"), [(0.7, True), (0.52, False), (0.4, False)])
def test_features_are_praised_only_above_those_of_random_weights(accuracy, good):
    found = {"accuracy": accuracy, "accuracy_interval": [accuracy - 0.05, accuracy + 0.05], "random_weights": 0.5}
    assert verdict({"neighbors": found})[0] is good
    assert verdict({"neighbors": None}) is None and verdict({"neighbors": {**found, "random_weights": None}}) is None


@pytest.mark.parametrize("command", ["predict", "evaluate", "explain", "app"])
def test_a_model_without_classes_is_refused_in_one_line(learned, tmp_path, capsys, command):
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "dark.png")
    more = [str(tmp_path / "dark.png")] if command in ("predict", "explain") else []
    more += ["--out", str(tmp_path / "out")] if command == "explain" else []
    assert main([command, str(learned / "views"), *more]) == 2
    printed = capsys.readouterr().err
    assert "--start" in printed and printed.count("\n") == 1


@pytest.mark.parametrize("name", ["views", "instances"])
def test_the_loss_goes_down_and_images_are_recognized_more_often(learned, name):
    rows = Run(learned / name).metrics()
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["accuracy"] >= rows[0]["accuracy"]


@pytest.mark.parametrize("name", ["views", "instances"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pretraining_takes_the_model_and_about_the_time_of_training_from_scratch(name, device):
    scratch, chosen = (automatic.choose(5000, (32, 32), device, 2), choose(5000, (32, 32), device, 2, objective=name))
    assert chosen.model == scratch.model and chosen.model_options == scratch.model_options
    views = 2 if name == "views" else 1
    assert views * chosen.recipe.epochs == pytest.approx(scratch.recipe.epochs, rel=0.1)
    assert chosen.recipe.objective == chosen.recipe_name == name


@pytest.mark.slow
def test_learned_features_are_better_than_random_ones(tmp_path):
    """Seconds on 500 pictures: neighbors share their class more often than by the features of random weights."""
    given = {**GIVEN, "train_fraction": 0.1, "epochs": 15, "batch_size": 64}
    found = fit(recipe="views", out=tmp_path / "run", lr=1e-3, **given).summary["neighbors"]
    assert found["accuracy"] > found["random_weights"] + 0.02
