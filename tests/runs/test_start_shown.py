"""Whoever shows or uses a model knows what it started from, and under which license."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import save_file

import softbias
from softbias.app.answers import describe_state
from softbias.app.state import AppState
from softbias.cli import main
from softbias.models import backbones, create_model
from softbias.models.backbones import Backbone
from softbias.pages.wording import text
from softbias.runs.partial import PartialRunSpec
from softbias.runs.resolve import resolve
from softbias.runs.start import Start
from softbias.sklearn import SoftbiasClassifier
from softbias.study.spec import read_study

MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.3, 0.4)
TINY = Backbone(
    "deit_nano",
    "deit_nano.made_up",
    "nobody/deit_nano.made_up",
    "mit",
    "noise",
    1,
    1,
    32,
    MEAN,
    STD,
    {"patch_size": 8},
    "a CPU",
)
SHORT = {"device": "cpu", "epochs": 1, "recipe": "quick", "baseline": False, "trackers": ()}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir()
        for number in range(12):
            Image.fromarray(rng.integers(0, 255, (70, 70, 3), np.uint8)).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module", autouse=True)
def weights(tmp_path_factory):
    """A backbone of our own in the table, and its weights in the folder."""
    folder = tmp_path_factory.mktemp("weights")
    save_file(create_model("deit_nano", 7, 32, patch_size=8).state_dict(), folder / "deit_nano.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbones, "BACKBONES", (TINY, *backbones.BACKBONES))
        patch.setenv("SOFTBIAS_WEIGHTS", str(folder))
        patch.setenv("SOFTBIAS_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def run(images, weights, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tuned"
    return softbias.fit(images, "deit_nano", out=out, start="pretrained", **SHORT).run


def test_the_run_keeps_size_and_normalization_of_its_weights(run):
    start = run.spec.start
    assert start.name == TINY.repository and start.license == "mit" and run.spec.data_options["img_size"] == 32
    classifier = run.classifier()
    assert classifier.mean == MEAN and classifier.std == STD and classifier.img_size == (32, 32)
    assert run.spec.model_options == {"patch_size": 8} and run.spec.finetune == "full"


def test_page_card_summary_and_saved_model_name_the_license(run):
    assert TINY.repository in run.page_path.read_text() and "license mit" in run.page_path.read_text()
    head, _, text = (run.model_folder / "README.md").read_text().removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head)["license"] == "mit" and yaml.safe_load(head)["base_model"] == TINY.repository
    assert TINY.repository in text
    saved = json.loads((run.model_folder / "config.json").read_text())["pretrained_cfg"]
    assert saved["license"] == "mit" and saved["mean"] == list(MEAN)
    assert Start(**{**run.summary()["start"], "mean": MEAN, "std": STD, "img_size": (32, 32)}) == run.spec.start


def test_the_list_of_runs_and_the_app_say_it(run, capsys):
    assert main(["runs", str(run.path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["start"] == TINY.repository and row["license"] == "mit"
    (model,) = describe_state(AppState([run.path], device="cpu"))["models"]
    assert TINY.repository in model["start"] and "mit" in model["start"]


def test_a_run_from_such_a_run_inherits_the_license(run, images, tmp_path):
    second = softbias.fit(images, out=tmp_path / "second", start=run.path, page=False, **SHORT).run
    assert second.spec.start.kind == "run" and second.spec.start.license == "mit" and second.classifier().mean == MEAN


def test_it_can_be_explained_probed_and_exported(run, images, tmp_path):
    picture = next(images.glob("a/*.png"))
    explained = softbias.explain(run, picture)
    assert explained.picture.shape == (32, 32, 3) and explained.weights == "trained"
    rows = softbias.probe(run.path, "locality", n=4, device="cpu").rows
    assert len(rows)
    pytest.importorskip("onnxscript")
    assert softbias.export(run.classifier().model, tmp_path / "model.onnx").is_file()


def test_an_estimator_starts_from_weights_and_says_so(images, capsys):
    X = [str(file) for file in sorted(images.glob("*/*.png"))]
    y = [Path(file).parent.name for file in X]
    options = {"recipe_options": {"epochs": 1}, "device": "cpu"}
    fitted = SoftbiasClassifier("deit_nano", start="pretrained", verbose=True, **options).fit(X, y)
    assert TINY.repository in capsys.readouterr().out
    assert fitted.classifier_.mean == MEAN and fitted.classifier_.img_size == (32, 32)
    assert fitted.get_params()["start"] == "pretrained" and len(fitted.predict(X)) == 24


def test_a_comparison_names_the_weights_of_its_arms(images, tmp_path, capsys):
    arms = "deit_nano@start=pretrained@name=learned,deit_nano@patch_size=8@img_size=32"
    command = ["compare", str(images), "--models", arms, "--recipe", "quick", "--steps", "2", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "study"), "--dry-run", "--no-estimate"]) == 0
    assert f"learned: start from pretrained weights {TINY.repository} (license mit)" in capsys.readouterr().out


@pytest.mark.slow
def test_an_arm_starts_from_weights_that_the_study_keeps(images, weights, tmp_path):
    arms = "deit_nano@start=pretrained@name=learned,deit_nano@patch_size=8@img_size=32"
    options = {"seeds": 1, "recipe": {"preset": "quick", "steps": 2}, "out": tmp_path / "study", "device": "cpu"}
    done = softbias.compare(images, arms, **options)
    learned, fresh = read_study(tmp_path / "study").arms
    assert learned.start.license == "mit" and learned.start.sha256 and fresh.start == "scratch"
    assert set(done.runs["arm"]) == {"learned", "deit_nano@patch_size=8@img_size=32"}
    assert "license mit" in done.report.read_text()
    moved = weights / "deit_nano.safetensors"
    moved.rename(weights / "moved.safetensors")
    try:
        again = softbias.compare(images, arms, **options | {"seeds": 2})
    finally:
        (weights / "moved.safetensors").rename(moved)
    assert len(again.runs) == 4 and not again.failed, "found by its hash, and not looked up again"


def test_the_terminal_names_the_start_whoever_named_it(run, images, weights, tmp_path, capsys):
    file = str(weights / "deit_nano.safetensors")
    common = ["fit", str(images), "--recipe", "quick", "--steps", "1", "--device", "cpu"]
    assert main([*common, "--model", "deit_nano", "--weights", file, "--out", str(tmp_path / "named")]) == 0
    assert f"start from pretrained weights {TINY.repository} (license mit)" in capsys.readouterr().out
    assert main([*common, "--start", str(run.path), "--out", str(tmp_path / "run")]) == 0
    assert f"start from the model of {run.path.name}" in capsys.readouterr().out


def test_a_model_that_began_with_pretrained_weights_is_fine_tuned_again_as_they_are(run, images, tmp_path):
    partial = PartialRunSpec(data=str(images), start=str(run.path)).completed()
    assert partial.recipe == "finetune" and partial.start.kind == "run"
    assert PartialRunSpec(data=str(images), start=str(run.path), recipe="quick").completed().recipe == "quick"
    found = resolve(partial, "cpu")
    assert found.spec.recipe.frozen_blocks and found.minutes and found.advice[-1].kind == "finetuning-cost"
    assert "--minutes" in text(found.advice[-1]) and "--minutes" not in text(resolve(partial, "cpu", minutes=2).advice[-1])
    assert PartialRunSpec(data=str(images), start=str(run.path)).completed(run.spec).recipe == run.spec.recipe
