"""The page's server over real HTTP on loopback: what it answers."""

import io
import json

import numpy as np
import pytest
from PIL import Image

import softbias
from softbias.app.serving import bind
from softbias.cli import main


def test_the_state_lists_models_checkpoints_and_images(served, run):
    state = served.get("/api/state")
    first, second, third = state["models"]
    assert first["name"] == run.name and first["weights"] == "trained" and first["report"] and first["run"]
    assert [one["epoch"] for one in first["checkpoints"]] == [0, 1, 2, 3]
    assert second["weights"] == "untrained" == third["weights"] and not second["checkpoints"]
    assert state["data"]["pictures"] > 3
    assert str(run.parent) not in json.dumps(state)  # no path of this machine


def test_a_look_is_what_explain_says(served, run, app_state):
    look = served.get("/api/explanation?model=0&picture=d1")
    seen = softbias.explain(run, app_state.picture("d1"))
    assert look["label"] == seen.label and look["classes"][0]["p"] == pytest.approx(seen.confidence, abs=1e-5)
    assert look["grid"] == [8, 8] and [layer["kind"] for layer in look["layers"]] == ["gated"] * 3 + ["full"]
    assert look["layers"][1]["gates"] == pytest.approx(seen.gates[1].tolist(), abs=1e-5)
    assert look["relevance"][0]["values"] == pytest.approx(seen.relevance["rollout"].flatten().tolist(), abs=1e-5)
    assert look["truth"] in ("blue", "green", "red")


def test_maps_are_those_of_the_patch_layer_by_layer_and_then_the_biases(served, run, app_state):
    seen = softbias.explain(run, app_state.picture("d0"), query=(2, 3))
    _, headers, body = served.ask("/api/maps?model=0&picture=d0&query=19")
    found = np.frombuffer(body, np.float32).reshape(-1, 8, 8)
    expected = np.concatenate([*seen.attention_from().values(), *seen.bias_from().values()])
    assert found.shape == (4 * 4 + 3 * 4, 8, 8) and found == pytest.approx(expected, abs=1e-5)
    _, _, body = served.ask("/api/maps?model=0&picture=d0&query=token")
    assert np.frombuffer(body, np.float32).reshape(-1, 8, 8) == pytest.approx(seen.class_token_attention()[3], abs=1e-5)
    assert headers["content-type"] == "application/octet-stream"


def test_checkpoints_are_the_model_as_it_was(served, run, app_state):
    start, first, last, final = (
        served.get(f"/api/explanation?model=0&picture=d0{at}")["classes"]
        for at in ("&checkpoint=0", "&checkpoint=1", "&checkpoint=3", "")
    )
    assert start != first != final
    p = {one["name"]: one["p"] for one in last}  # the last checkpoint is the final model, unless an earlier epoch was better
    assert sum(p.values()) == pytest.approx(1, abs=1e-4)
    training = served.get("/api/training?model=0")
    assert [row["epoch"] for row in training["gates"]] == [1, 2, 3] and len(training["gates"][0]["layers"]) == 3
    early = app_state.models[0].at(1).model.blocks[0].attn.gate.sigmoid().tolist()
    assert training["gates"][0]["layers"]["0"] == pytest.approx(early)
    assert [row["epoch"] for row in training["epochs"]] == [1, 2, 3]
    assert served.get("/api/training?model=1") == {"epochs": [], "gates": [], "damaged": 0, "test": None, "report": False}


def test_a_model_without_maps_is_served_too(served):
    look = served.get("/api/explanation?model=2&picture=d0")
    assert (
        look["grid"] is None
        and look["layers"] == []
        and [way["method"] for way in look["relevance"]] == ["gradients", "grad-cam"]
    )
    assert served.ask("/api/maps?model=2&picture=d0&query=0")[0] == 404


def test_an_image_of_ones_own_is_kept_and_appears_as_the_model_sees_it(served, png):
    status, _, body = served.upload(png(50))
    assert status == 201
    name = json.loads(body)["id"]
    status, headers, body = served.ask(f"/api/picture/{name}")
    assert status == 200 and headers["content-type"] == "image/png" and Image.open(io.BytesIO(body)).size == (50, 50)
    seen = Image.open(io.BytesIO(served.ask(f"/api/picture/{name}?model=0")[2]))
    assert seen.size == (32, 32) and seen.getpixel((5, 5)) == (200, 30, 40)
    assert served.get(f"/api/explanation?model=1&picture={name}")["truth"] is None


def test_a_taken_port_and_missing_models_are_one_line(capsys, tmp_path):
    assert main(["app", str(tmp_path / "none"), "--no-browser"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["app", "convit_nano", "--port", "70000"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and all(word in message for word in ("--port", "0", "65,535", "70000"))
    listener = bind(0)
    with pytest.raises(ValueError, match="not available"):
        bind(listener.getsockname()[1])
    listener.close()
