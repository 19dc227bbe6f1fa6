"""Models, checkpoints and pictures of the page: what is refused, left out or forgotten, and what still works then."""

import shutil

import pytest
import torch
from starlette.testclient import TestClient

from softbias.app.safety import Access
from softbias.app.server import make_app
from softbias.app.state import AppState, runs_in
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.runs.opening import open_classifier
from softbias.runs.run import Run

ACCESS = Access()


def client(state):
    """Somebody who knows the token; an exception of the server would be an answer of 500."""
    cookies = {"softbias-80": ACCESS.cookie}
    return TestClient(make_app(state, ACCESS), base_url="http://localhost", cookies=cookies, raise_server_exceptions=False)


def test_a_damaged_checkpoint_is_refused_and_the_others_live(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    damaged = sorted((copy / "checkpoints").glob("step-*"))[0] / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-7] + b"garbage")
    app_state = AppState([copy])
    with pytest.raises(ValueError, match="damaged"):
        app_state.explain(0, 1, "d0")
    assert app_state.explain(0, 2, "d0").maps


def test_a_damaged_checkpoint_is_a_sentence_for_the_page_and_not_an_error_of_the_server(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    app = client(AppState([copy]))
    damaged = sorted((copy / "checkpoints").glob("step-*"))[0] / "state.safetensors"
    damaged.write_bytes(b"garbage")
    answer = app.get("/api/explanation?model=0&checkpoint=1&picture=d0")
    assert answer.status_code == 409 and "damaged" in answer.json()["error"]
    training = app.get("/api/training?model=0")
    assert training.status_code == 200 and [row["epoch"] for row in training.json()["gates"]] == [2, 3]


def test_of_several_models_a_broken_one_leaves_a_note(run, tmp_path):
    shutil.copytree(run / "model", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").unlink()
    state = AppState([tmp_path / "broken", "ibit_nano"])
    (note,) = state.notes
    assert note.kind == "model-not-opened" and note.values["model"] == "broken" and state.names == ["ibit_nano"]
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        AppState([tmp_path / "broken"])


def test_a_checkpoint_that_training_removes_in_the_meantime_is_left_out(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    app_state = AppState([copy])
    shutil.rmtree(sorted((copy / "checkpoints").glob("step-*"))[0])
    rows, damaged = app_state.models[0].gates()
    assert [row["epoch"] for row in rows] == [2, 3] and damaged == 1
    with pytest.raises(ValueError, match="damaged"):
        app_state.explain(0, 1, "d0")


def test_a_study_stands_for_its_finished_runs(run, tmp_path):
    study = tmp_path / "study"
    (study / "runs" / "stopped").mkdir(parents=True)
    (study / "study.yaml").write_text("name: s\ndata: [fashion]\narms: [convit_nano]\n")
    (study / "runs" / "stopped" / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    with pytest.raises(ValueError, match="no finished run"):
        runs_in(study)
    shutil.copytree(run, study / "runs" / "done")
    assert runs_in(study) == [study / "runs" / "done"]
    assert runs_in(run) == [run] and runs_in("ibit_nano") == ["ibit_nano"]


def test_uploads_and_maps_are_not_kept_without_end(app_state, png, monkeypatch):
    names = [app_state.upload(png(4 + number)) for number in range(30)]
    assert len(app_state.uploads) == 24
    with pytest.raises(ValueError, match="any more"):
        app_state.picture(names[0])
    monkeypatch.setattr("softbias.app.state.MEMORY", 1)
    app_state.explained.clear()
    for number in range(3):
        app_state.explain(0, None, f"d{number}")
    assert len(app_state.explained) == 1


def test_only_safetensors_are_loaded(run, tmp_path):
    """A model folder whose weights are pickled is refused, not unpickled."""
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        open_classifier(tmp_path / "model")
    shutil.copy(tmp_path / "model" / "pytorch_model.bin", tmp_path / "model" / "model.safetensors")
    with pytest.raises(SoftbiasError, match=r"model\.safetensors"):
        open_classifier(tmp_path / "model")


def test_the_start_is_the_model_that_training_began_with(app_state, run):
    torch.manual_seed(Run(run).spec.seed)
    fresh = create_model("convit_nano", num_classes=3, img_size=app_state.models[0].classifier.img_size)
    start = app_state.models[0].at(0)
    assert start.weights == "untrained"
    for name, tensor in start.model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name
