"""Opening what a user names: above all a run that was killed, by explain, probe and app alike."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import softbias
from softbias.app.answers import describe_state
from softbias.app.state import AppState
from softbias.cli import main
from softbias.models import create_model
from softbias.runs.opening import open_classifier
from softbias.runs.run import Run

PATCHES = ["--model-option", "patch_size=8"]


def words(out: Path, epochs: int) -> list[str]:
    """A small run of six steps an epoch."""
    arguments = ["fit", "fashion", "--fraction", "0.04", "--model", "convit_nano", "--recipe", "quick"]
    arguments += ["--recipe.batch-size", "32"]
    arguments += ["--recipe.epochs", str(epochs), "--no-baseline", "--trackers", "none", "--device", "cpu", "--quiet"]
    return [*arguments, "--out", str(out)]


@pytest.fixture(scope="module", autouse=True)
def quick_and_alone():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("softbias.runs.fit.write_page", lambda run, summary, data: run.page_path)
        yield


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """A run that got SIGKILL in the middle of its training, with two checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "killed"
    command = [sys.executable, "-m", "softbias", *words(out, 500), *PATCHES, "--recipe.ema", "0.9"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", "SOFTBIAS_CHECKPOINT_SECONDS": "0"})
    deadline = time.monotonic() + 120
    while (len(checkpoints(out)) < 2 or not epochs(out)) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(checkpoints(out)) >= 2 and not (out / "model").exists() and not (out / "summary.json").exists()
    return out


@pytest.fixture
def picture(tmp_path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / "x.png")
    return tmp_path / "x.png"


def epochs(run: Path) -> int:
    return (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").is_file() else 0


def checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/step-*"))


def state(checkpoint: Path) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of the averaged weights."""
    tensors = load_file(checkpoint / "state.safetensors")
    return {name.removeprefix("ema/"): tensor for name, tensor in tensors.items() if name.startswith("ema/")}


def same(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> bool:
    found = model.state_dict()
    return found.keys() == tensors.keys() and all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_killed_run_is_its_last_checkpoint_and_sees_images_as_a_finished_one(killed, tmp_path):
    classifier = open_classifier(killed)
    last = checkpoints(killed)[-1]
    assert same(classifier.model, state(last)) and not classifier.model.training
    step = int(last.name[5:])
    assert classifier.name == f"killed (step {step} of 3,000)" and classifier.weights == "trained"
    assert main([*words(tmp_path / "run", 1), *PATCHES]) == 0
    finished = open_classifier(tmp_path / "run")
    assert finished.name == "run"
    for name in ("img_size", "resize_mode", "class_names"):
        assert getattr(classifier, name) == getattr(finished, name), name
    assert classifier.mean == pytest.approx(finished.mean) and classifier.mean != (0, 0, 0)
    assert classifier.std == pytest.approx(finished.std)


def test_a_damaged_checkpoint_is_skipped_and_a_half_written_one_stays_for_the_run_that_writes_it(killed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(killed, copy)
    *_, before, last = checkpoints(copy)
    (last / "state.safetensors").write_bytes(b"junk")
    growing = copy / "checkpoints" / ".step-99999999.1-0123456789abcdef.tmp"
    growing.mkdir()
    classifier = open_classifier(copy)
    assert same(classifier.model, state(before)) and growing.is_dir()
    assert last.name in classifier.name  # nobody takes it for the newest
    assert [note.values["name"] for note in softbias.evaluate(copy).notes if note.kind == "run-not-finished"] == [
        classifier.name
    ]


def test_explain_probe_and_app_show_a_killed_run_and_say_where_it_stands(killed, picture, tmp_path, capsys):
    assert main(["explain", str(killed), str(picture), "--html", "--out", str(tmp_path / "why")]) == 0
    assert "killed (step " in (tmp_path / "why" / "x.html").read_text()
    with (killed / "metrics.jsonl").open("a") as stream:
        stream.write('{"event": "epo')  # as a kill may leave it
    asked = ["--probes", "gates,patch-shuffle", "--n", "8", "--checkpoints", "--out", str(tmp_path)]
    assert main(["probe", str(killed), *asked]) == 0
    with (tmp_path / "probes" / "gates.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    steps = [0, *(int(path.name[5:]) for path in checkpoints(killed))]
    assert [*dict.fromkeys(int(row["step"]) for row in rows)] == steps
    assert {row["weights"] for row in rows if row["step"] == "0"} == {"untrained"}
    assert rows[0]["model"].startswith("killed (step ")
    app_state = AppState([killed])
    assert describe_state(app_state)["models"][0]["finished"] is False
    assert app_state.names[0].startswith("killed (step ")
    assert [checkpoint["step"] for checkpoint in app_state.models[0].steps()] == steps
    now, last = app_state.explain(0, None, "d0"), app_state.explain(0, len(steps) - 1, "d0")
    assert np.array_equal(now.probabilities, last.probabilities)
    capsys.readouterr()


@pytest.mark.parametrize("command", [["explain", "RUN", "x.png"], ["probe", "RUN"], ["app", "RUN", "--no-browser"]])
def test_a_run_without_any_checkpoint_says_what_to_do_in_one_line(killed, picture, tmp_path, capsys, command):
    (tmp_path / "run").mkdir()
    shutil.copy(killed / "config.yaml", tmp_path / "run")
    words = {"RUN": str(tmp_path / "run"), "x.png": str(picture)}
    assert main([words.get(word, word) for word in command]) == 2
    printed = capsys.readouterr().err
    assert "it has no checkpoint yet" in printed and "with --resume" in printed and printed.count("\n") == 1


def test_a_name_gives_the_same_fresh_weights_every_time_and_leaves_the_seed_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = open_classifier("convit_nano", num_classes=3)
    assert torch.equal(torch.rand(3), expected)
    assert same(open_classifier("convit_nano", num_classes=3).model, one.model.state_dict())
    assert one.weights == "untrained" and one.output_names == ("class 0", "class 1", "class 2")


def test_options_are_for_models_that_are_built_here(tmp_path, capsys):
    folder = softbias.save(create_model("convit_nano", num_classes=3), tmp_path / "saved", class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match="model options are for models that are built by name"):
        open_classifier(folder, patch_size=8)
    assert main(["probe", str(folder), "--data", "fashion", "--model-option", "patch_size=8", "--out", str(tmp_path)]) == 2
    assert "--model-option is for models that are built by name" in capsys.readouterr().err


def test_a_head_trained_on_a_fresh_backbone_is_called_so(tmp_path):
    torch.manual_seed(0)
    base = softbias.save(create_model("convit_nano", num_classes=10, patch_size=8), tmp_path / "base")
    assert main([*words(tmp_path / "run", 1), "--start", str(base), "--finetune", "linear"]) == 0
    run = Run(tmp_path / "run")
    assert run.classifier().weights == "untrained but for its head"
    (saved,) = run.checkpoints
    assert run.classifier(saved).weights == "untrained but for its head"
