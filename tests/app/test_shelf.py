"""Models, checkpoints and pictures of the page: what is refused, left out or forgotten, and what lives on."""

import shutil

import pytest
import torch

from softbias.app.shelf import Shelf, unfolded
from softbias.models import create_model
from softbias.runs.opening import open_classifier
from softbias.runs.run import Run


def test_a_damaged_checkpoint_is_refused_and_the_others_live(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    damaged = sorted((copy / "checkpoints").glob("step-*"))[0] / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-7] + b"garbage")
    shelf = Shelf([copy])
    with pytest.raises(ValueError, match="damaged"):
        shelf.look(0, 1, "d0")
    assert shelf.look(0, 2, "d0").maps


def test_a_checkpoint_that_training_removes_in_the_meantime_is_left_out(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shelf = Shelf([copy])
    shutil.rmtree(sorted((copy / "checkpoints").glob("step-*"))[0])
    assert [row["epoch"] for row in shelf.models[0].gates()] == [2, 3]
    with pytest.raises(ValueError, match="damaged"):
        shelf.look(0, 1, "d0")


def test_a_study_stands_for_its_finished_runs(run, tmp_path):
    study = tmp_path / "study"
    (study / "runs" / "stopped").mkdir(parents=True)
    (study / "study.yaml").write_text("name: s\ndata: [fashion]\narms: [convit_nano]\n")
    (study / "runs" / "stopped" / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    with pytest.raises(ValueError, match="no finished run"):
        unfolded(study)
    shutil.copytree(run, study / "runs" / "done")
    assert unfolded(study) == [study / "runs" / "done"]
    assert unfolded(run) == [run] and unfolded("ibit_nano") == ["ibit_nano"]


def test_uploads_and_maps_are_not_kept_without_end(shelf, png, monkeypatch):
    names = [shelf.upload(png(4 + number)) for number in range(30)]
    assert len(shelf.uploads) == 24
    with pytest.raises(ValueError, match="any more"):
        shelf.picture(names[0])
    monkeypatch.setattr("softbias.app.shelf.MEMORY", 1)
    shelf.seen.clear()
    for number in range(3):
        shelf.look(0, None, f"d{number}")
    assert len(shelf.seen) == 1


def test_only_safetensors_are_loaded(run, tmp_path):
    """A model folder whose weights are pickled is refused, not unpickled."""
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        open_classifier(tmp_path / "model")
    shutil.copy(tmp_path / "model" / "pytorch_model.bin", tmp_path / "model" / "model.safetensors")
    with pytest.raises(Exception, match="header"):
        open_classifier(tmp_path / "model")


def test_the_start_is_the_model_that_training_began_with(shelf, run):
    torch.manual_seed(Run(run).spec.seed)
    fresh = create_model("convit_nano", num_classes=3, img_size=shelf.models[0].classifier.img_size)
    start = shelf.models[0].at(0)
    assert start.weights == "untrained"
    for name, tensor in start.model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name
