"""The table of backbones agrees with timm, and their weights are found on this machine or fetched from a hub that answers."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import timm
from huggingface_hub import constants
from safetensors.torch import save_file
from timm.models import get_pretrained_cfg

from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.models.backbones import BACKBONES, ON_CPU, ON_GPU, find_backbone
from softbias.models.hub import NoWeightsError
from softbias.models.weight_files import UNASKED_MEGABYTES, at_hand, digest, fetch, megabytes
from softbias.models.weights import load_weights
from softbias.runs.starting import ImageFacts, choose_start

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PERMISSIVE = ("apache-2.0", "mit", "bsd-3-clause")


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda each: each.model)
def test_the_table_says_what_timm_records(backbone):
    known = get_pretrained_cfg(backbone.name)
    assert backbone.repository == known.hf_hub_id and backbone.license == known.license in PERMISSIVE
    assert backbone.mean == known.mean and backbone.std == known.std and backbone.needs and backbone.trained_on
    model = timm.create_model(backbone.name)
    assert sum(parameter.numel() for parameter in model.parameters()) == backbone.parameters
    assert backbone.megabytes == math.floor(4 * backbone.parameters / 1e6 + 0.5)
    ours = create_model(backbone.model, num_classes=3, img_size=backbone.img_size, **backbone.model_options)
    load_weights(ours, model.state_dict(), keep_head=True)  # refuses what does not fit


def test_what_is_chosen_by_itself_is_in_the_table_and_small():
    for model in (*ON_CPU, *ON_GPU):
        backbone = find_backbone(model)
        assert backbone in BACKBONES and backbone.megabytes <= UNASKED_MEGABYTES


def test_weights_are_known_for_models_that_somebody_has_trained():
    assert find_backbone("convit_nano") is None and find_backbone("timm:vit_tiny_patch16_224.nonsense") is None
    found = find_backbone("timm:deit_tiny_patch16_224")
    assert found.model == "timm:deit_tiny_patch16_224" and found.repository == "timm/deit_tiny_patch16_224.fb_in1k"
    other = find_backbone("timm:vit_base_patch16_224")
    assert other.license == "apache-2.0" and other.megabytes is None and other.img_size == 224


@contextmanager
def hub_with(content: bytes):
    """A real server that answers as the hub does, with one file in every repository."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            asked.append(self.path)
            known = self.path.endswith("/model.safetensors") or self.path == "/"
            self.send_response(200 if known else 404)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", '"abc"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body and known:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def online(monkeypatch, tmp_path):
    """The network is allowed, and the hub's cache is empty."""
    for name in ("HF_HUB_OFFLINE", "SOFTBIAS_OFFLINE", "SOFTBIAS_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def test_auto_fetches_small_weights_from_a_hub_that_answers_and_never_again(online, monkeypatch):
    with hub_with(b"weights of a model") as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        first = choose_start("auto", "deit_tiny", {}, "cpu", ImageFacts(128))
        assert first.start.revision == COMMIT and first.note.values["origin"] == "hub"
        assert Path(first.start.path).read_bytes() == b"weights of a model" and digest(Path(first.start.path))
        asked.clear()
        second = choose_start("auto", "deit_tiny", {}, "cpu", ImageFacts(128))
        assert second.start == first.start and second.note.values["origin"] == "cache" and not asked
        assert at_hand(find_backbone("deit_tiny")).revision == COMMIT


def test_nothing_large_is_downloaded_unasked(online, monkeypatch):
    with hub_with(b"x") as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        found = choose_start("auto", "resnet50", {}, "cuda", ImageFacts(128))
        assert found.start.kind == "scratch" and found.note.values["why"] == "large-download"
        assert not any(path.endswith("model.safetensors") for path in asked)
        assert choose_start("pretrained", "resnet50", {}, "cuda", ImageFacts(128)).start.kind == "pretrained"
        assert megabytes(find_backbone("timm:vit_base_patch16_224")) == 1, "the hub is asked where the table has no number"


def test_a_hub_that_is_gone_is_one_line(online, monkeypatch):
    with hub_with(b"x") as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
    found = choose_start("auto", "deit_tiny", {}, "cpu", ImageFacts(128))
    assert found.start.kind == "scratch" and found.note.values["why"] == "unreachable"
    with pytest.raises(NoWeightsError, match="cannot be reached"):
        fetch("timm/deit_tiny_patch16_224.fb_in1k")


def test_the_command_lists_them_and_says_which_are_at_hand(tmp_path, monkeypatch, capsys):
    (tmp_path / "deit_tiny.safetensors").write_bytes(b"x")
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(tmp_path))
    assert main(["models", "--pretrained", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["deit_tiny"]["at_hand"] == str(tmp_path / "deit_tiny.safetensors") and rows["resnet50"]["at_hand"] is None
    assert main(["models", "deit_*", "--pretrained"]) == 0
    printed = capsys.readouterr().out
    assert "apache-2.0" in printed and "in SOFTBIAS_WEIGHTS" in printed and "resnet50" not in printed
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(tmp_path / "nowhere"))
    assert main(["models", "--pretrained"]) == 2


def test_a_folder_in_timm_s_layout_is_a_model_with_weights(tmp_path):
    learned = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, patch_size=8, num_classes=4)
    save_file(learned.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    cfg = {"mean": [0.1] * 3, "std": [0.2] * 3, "input_size": [3, 32, 32], "license": "mit"}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 4, "model_args": {"depth": 1, "patch_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "pretrained_cfg": cfg}))
    found = choose_start("auto", f"timm:local-dir:{tmp_path}", {}, "cpu", ImageFacts(128))
    assert found.model == "timm:vit_tiny_patch16_224" and found.model_options == {"depth": 1, "patch_size": 8}
    assert found.start.mean == (0.1, 0.1, 0.1) and found.start.license == "mit" and found.start.img_size == (32, 32)
    (tmp_path / "config.json").write_text(json.dumps({**config, "architecture": "softbias_deit_nano"}))
    with pytest.raises(SoftbiasError, match="--start"):
        choose_start("auto", f"timm:local-dir:{tmp_path}", {}, "cpu", ImageFacts(128))
