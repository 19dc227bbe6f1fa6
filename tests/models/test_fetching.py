"""Weights from the hub, fetched by the real client from a real server: once, with their revision, and nothing large unasked."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import timm
from huggingface_hub import constants
from safetensors.torch import save

from softbias.errors import SoftbiasError
from softbias.models import backbones, create_model
from softbias.models.backbones import Backbone, find_backbone
from softbias.models.hub import NoWeightsError, in_cache
from softbias.models.weight_files import WEIGHTS, fetch, find_at_hand, megabytes
from softbias.pages.wording import text
from softbias.runs.named_starts import timm_folder_start
from softbias.runs.start import Start
from softbias.runs.starting import ImageFacts, choose_start

from .hub_server import COMMIT, SmallHub, small_hub

TINY = Backbone(
    "deit_nano", "deit_nano.made_up", "nobody/deit_nano.made_up", "mit", "noise", 1, 1, 32, model_options={"patch_size": 8}
)
UNLISTED = "timm:vit_base_patch16_224"  # our table has no size of it


@pytest.fixture(scope="module")
def content() -> bytes:
    return save(create_model("deit_nano", 7, 32, patch_size=8).state_dict())


@pytest.fixture
def hub(content, monkeypatch, tmp_path):
    """A hub that answers, an empty cache, and a small backbone of our own in the table."""
    for name in ("HF_HUB_OFFLINE", "SOFTBIAS_OFFLINE", "SOFTBIAS_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(backbones, "BACKBONES", (TINY, *backbones.BACKBONES))
    with small_hub(model_safetensors=content) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        yield running


def auto(model: str = "deit_nano"):
    return choose_start("auto", model, {}, "cuda", ImageFacts(128))


def test_small_weights_are_fetched_once_and_their_revision_is_kept(hub, content):
    first = auto()
    assert first.start.revision == COMMIT and first.note.values["origin"] == "hub"
    assert Path(first.start.path).read_bytes() == content
    hub.asked.clear()
    second = auto()
    assert second.start == first.start and second.note.values["origin"] == "cache" and not hub.asked
    assert find_at_hand(TINY).file.revision == COMMIT


def test_nothing_large_is_downloaded_unasked_whatever_our_table_says(hub):
    found = auto("resnet50")
    assert found.start == Start() and found.note.values["why"] == "large-download"
    assert not any("resolve" in line for line in hub.asked), "our table has its size"
    hub.size = 100 * 10**6 + 1
    for model in ("deit_nano", UNLISTED):
        found = auto(model)
        assert found.note.values["why"] == "large-download" and found.note.values["megabytes"] == 101
    assert not hub.asked_for_content()
    hub.size = None
    assert megabytes(find_backbone(UNLISTED).repository) == 1
    assert choose_start("pretrained", "deit_nano", {}, "cuda", ImageFacts(128)).start.kind == "pretrained"


def test_a_download_that_breaks_is_tried_again(hub, content):
    hub.breaks = 1
    assert fetch(TINY.repository).path.read_bytes() == content and not hub.breaks


def test_a_file_that_is_shorter_than_the_hub_says_is_never_used(hub, content):
    hub.size = len(content) + 1
    with pytest.raises(NoWeightsError):
        fetch(TINY.repository)
    assert in_cache(TINY.repository, WEIGHTS) is None and auto().note.values["why"] == "not-fetched"
    hub.size = None
    assert fetch(TINY.repository).path.read_bytes() == content


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        (404, "EntryNotFound", "model.safetensors"),
        (404, "RepoNotFound", "no such repository"),
        (401, "RepoNotFound", "private"),
        (401, "GatedRepo", "log in"),
        (403, "GatedRepo", "log in"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(hub, status, code, word):
    hub.status, hub.code = status, code
    with pytest.raises(NoWeightsError, match=word) as refused:
        fetch(TINY.repository)
    assert "\n" not in str(refused.value) and TINY.repository in str(refused.value)
    found = auto()
    assert found.start == Start() and found.note.values["why"] == "not-fetched" and word in text(found.note)
    with pytest.raises(NoWeightsError, match=word):
        choose_start("pretrained", "deit_nano", {}, "cpu", ImageFacts(128))


def test_a_question_that_is_not_answered_is_given_up_within_two_seconds(hub: SmallHub):
    hub.silence = 4.0
    started = time.monotonic()
    with pytest.raises(NoWeightsError):
        fetch(TINY.repository)
    assert time.monotonic() - started < 2.5


def test_a_hub_that_is_gone_is_one_line(hub, monkeypatch):
    with small_hub() as other:
        monkeypatch.setenv("HF_ENDPOINT", other.address)
    found = auto()
    assert found.start == Start() and found.note.values["why"] == "unreachable"
    with pytest.raises(NoWeightsError, match="cannot be reached"):
        fetch(TINY.repository)


def test_weights_of_another_model_under_that_name_are_not_used(hub):
    hub.files[WEIGHTS] = save(create_model("deit_nano", 7, 32, patch_size=4).state_dict())
    found = auto()
    assert found.start == Start() and "patch_embed" in text(found.note)
    with pytest.raises(SoftbiasError, match="patch_embed"):
        choose_start("pretrained", "deit_nano", {}, "cpu", ImageFacts(128))


def test_a_repository_in_timm_s_layout_is_fetched_with_its_config(hub):
    options = {"depth": 1, "embed_dim": 12, "num_heads": 2, "patch_size": 8}
    learned = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4, **options)
    about = {"mean": [0.1] * 3, "std": [0.2] * 3, "input_size": [3, 32, 32], "license": "mit"}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 4, "model_args": options, "pretrained_cfg": about}
    hub.files |= {WEIGHTS: save(learned.state_dict()), "config.json": json.dumps(config).encode()}
    found = timm_folder_start("timm:hf_hub:nobody/vit")
    assert found.start.revision == COMMIT and found.start.license == "mit" and found.start.img_size == (32, 32)
    assert found.model == "timm:vit_tiny_patch16_224" and found.model_options == options
