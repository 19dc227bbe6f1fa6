"""Weights that come with the package: a card describes them, an automatic start takes them last, and a script makes them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import make_backbone
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import softbias
from softbias.checksums import sha256
from softbias.cli import main
from softbias.data.dataset import Dataset
from softbias.errors import SoftbiasError
from softbias.models import create_model, packaged
from softbias.models.backbones import find_backbone
from softbias.models.weights import head_names
from softbias.pages.wording import text
from softbias.runs.named_starts import weights_start
from softbias.runs.partial import PartialRunSpec
from softbias.runs.prepare import weights_of_start
from softbias.runs.resolve import resolve
from softbias.runs.start import Start
from softbias.runs.starting import ImageFacts, choose_start

REAL = Path(packaged.__file__).with_name("soft_nano.safetensors")
SEEN = packaged.SeenSet("noise", "train", 10, "none", "made here", 0.5, 10)


def make_stand_in(folder: Path, seed: int = 0) -> packaged.Card:
    """Random weights of soft_nano with a card, as the script writes them."""
    torch.manual_seed(seed)
    model = create_model("soft_nano", 7, 32, patch_size=8)
    head = head_names(model)
    state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()}
    file = folder / "soft_nano.safetensors"
    save_file({name: tensor for name, tensor in state.items() if name not in head}, file)
    card = packaged.Card(
        "soft_nano", "7", "apache-2.0", sha256(file), file.stat().st_size, 157_468, 32, 8, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2),
        (SEEN,), "python make.py", "torch",
    )  # fmt: skip
    packaged.card_path(file).write_text(json.dumps(card.to_dict()))
    return card


@pytest.fixture
def card(tmp_path, monkeypatch) -> packaged.Card:
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setattr(packaged, "FOLDER", folder)
    return make_stand_in(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Two classes of 10 pictures of 70 × 70 pixels."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for label, color in (("a", 40), ("b", 200)):
        (folder / label).mkdir()
        for number in range(10):
            noise = rng.integers(0, 30, (70, 70, 3)) + color
            Image.fromarray(noise.astype(np.uint8)).save(folder / label / f"{number}.png")
    return folder


def test_a_card_that_is_written_is_read_as_it_was(card):
    assert packaged.find_card("soft_nano") == card and packaged.cards() == (card,)
    assert packaged.find_card("deit_tiny") is None
    packaged.card_path(packaged.weights_path("soft_nano")).unlink()
    assert packaged.cards() == () and find_backbone("soft_nano") is None, "weights without a card count as none"


def test_without_the_file_nobody_knows_weights_of_soft_nano(tmp_path, monkeypatch):
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    assert find_backbone("soft_nano") is None
    assert choose_start("auto", "soft_nano", {}, "cpu", ImageFacts(32)).note.values["why"] == "no-weights"
    assert choose_start("auto", None, {}, "cpu", ImageFacts(32)).note.values["why"] == "offline"


@pytest.mark.parametrize("model", [None, "soft_nano"])
def test_a_cpu_without_network_takes_them_and_says_which_they_are(card, model):
    found = choose_start("auto", model, {}, "cpu", ImageFacts(128, count=2000))
    start = found.start
    assert start.kind == "pretrained" and start.name == "softbias/soft_nano" and start.revision == "7"
    assert start.sha256 == card.sha256 and start.license == "apache-2.0" and start.mean == card.mean
    assert found.model == "soft_nano" and found.model_options == {"patch_size": 8} and not found.unfit
    assert found.note.values["origin"] == "package" and found.note.values["trained_on"] == "noise"
    assert "softbias/soft_nano" in text(found.note) and "\n" not in text(found.note)
    assert found.note.values.get("better") == (None if model else "deit_tiny")


def test_better_weights_at_hand_go_first(card, tmp_path, monkeypatch):
    state = {name: torch.zeros(1).expand(tensor.shape).contiguous() for name, tensor in deit_state().items()}
    save_file(state, tmp_path / "deit_tiny.safetensors")
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(tmp_path))
    assert choose_start("auto", None, {}, "cpu", ImageFacts(128)).model == "deit_tiny"
    assert choose_start("auto", "soft_nano", {}, "cpu", ImageFacts(128)).model == "soft_nano"


def deit_state() -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        return {
            name: torch.zeros(tensor.shape, device="cpu")
            for name, tensor in create_model("deit_tiny", img_size=224, patch_size=16).state_dict().items()
        }


@pytest.mark.parametrize(
    ("device", "known", "options", "why"),
    [
        ("cuda", ImageFacts(128), {}, "not-measured"),
        ("cpu", ImageFacts(32, count=50_000), {}, "not-measured"),
        ("cpu", ImageFacts(32), {"depth": 2}, "model-options"),
        ("cpu", ImageFacts(28, named=True, size=(28, 28)), {}, "other-size"),
        ("cpu", ImageFacts(224, named=True, size=(224, 224)), {}, "other-size"),
        ("cpu", ImageFacts(32, named=True, size=(32, 64)), {}, None),
    ],
)
def test_an_automatic_start_takes_them_only_where_they_were_measured(card, device, known, options, why):
    found = choose_start("auto", "soft_nano", options, device, known)
    assert found.start.learned == (why is None) and found.note.values.get("why") == why and text(found.note)
    assert choose_start("pretrained", "soft_nano", {}, device, known).start.learned, "who asks for them gets them"
    unnamed = choose_start("auto", None, options, device, known)
    assert unnamed.start.learned == (why is None), "a model that is chosen has the same limits"


def test_a_damaged_file_is_left_out_and_named(card):
    file = packaged.weights_path("soft_nano")
    torch.manual_seed(1)
    state = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in load_file(file).items()}
    save_file(state, file)
    found = choose_start("auto", None, {}, "cpu", ImageFacts(128))
    assert found.start == Start() and found.note.values["why"] == "offline"
    assert [str(file) in text(note) for note in found.unfit] == [True]
    with pytest.raises(SoftbiasError, match="install softbias again"):
        choose_start("pretrained", "soft_nano", {}, "cpu", ImageFacts(128))


def test_fit_begins_with_them_and_records_what_they_are(card, images, tmp_path):
    short = {"steps": 2, "batch_size": 4, "device": "cpu", "page": False, "baseline": False, "trackers": ()}
    result = softbias.fit(images, out=tmp_path / "run", **short)
    spec = result.run.spec
    assert spec.model == "soft_nano" and spec.start.sha256 == card.sha256 and spec.start.revision == "7"
    assert spec.start.license == "apache-2.0" and spec.finetune == "full" and spec.model_options == {"patch_size": 8}
    assert result.run.classifier().img_size == (64, 64), "pictures of 70 pixels: twice the side of the weights"
    assert result.run.classifier().mean == card.mean
    scratch = softbias.fit(images, out=tmp_path / "scratch", start="scratch", **short).run.spec
    assert not scratch.start.learned and scratch.model == "soft_nano"


def test_a_run_finds_the_weights_of_another_installation_by_their_hash(card, tmp_path):
    start = choose_start("auto", "soft_nano", {}, "cpu", ImageFacts(32)).start
    moved = dataclasses.replace(start, path=str(tmp_path / "elsewhere" / "soft_nano.safetensors"))
    assert weights_of_start(moved) == packaged.weights_path("soft_nano")


def test_the_recipe_is_that_of_scratch_with_its_own_rate_and_a_named_one_stays(card):
    labels = np.arange(400) % 2
    noise = np.random.default_rng(0).integers(0, 255, (400, 32, 32, 3), dtype=np.uint8)
    data = Dataset("noise", noise, labels.astype(np.int64), ("a", "b"), {"train": np.arange(400)})
    found, fresh = (
        resolve(PartialRunSpec(data="noise", start=start).completed(), "cpu", data) for start in ("auto", "scratch")
    )
    assert found.spec.start.learned and not fresh.spec.start.learned and found.minutes is None
    assert found.spec.recipe.epochs == fresh.spec.recipe.epochs and found.spec.recipe.lr < fresh.spec.recipe.lr
    assert found.spec.recipe.frozen_blocks == 0 and found.spec.recipe.augmentation == fresh.spec.recipe.augmentation
    named = resolve(PartialRunSpec(data="noise", recipe="finetune").completed(), "cpu", data).spec
    assert named.start.learned and named.recipe.augmentation.crop == "resized"


def test_the_file_is_a_start_by_its_name_too(card):
    found = weights_start(packaged.weights_path("soft_nano"), None)
    assert found.model == "soft_nano" and found.start.sha256 == card.sha256 and found.model_options == {"patch_size": 8}


def test_the_list_of_pretrained_models_has_them(card, capsys):
    assert main(["models", "soft_*", "--pretrained"]) == 0
    printed = capsys.readouterr().out
    assert "softbias/soft_nano" in printed and "in the package" in printed and "apache-2.0" in printed


def test_the_script_makes_weights_that_fit_and_a_card_without_folders_of_this_machine(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)

    def small(name: str, classes: int, counts: dict[str, int]) -> Dataset:
        total, splits, first = sum(counts.values()), {}, 0
        for split, count in counts.items():
            splits[split] = np.arange(first, first + count)
            first += count
        noise = rng.integers(0, 255, (total, 32, 32, 3), dtype=np.uint8)
        return Dataset(name, noise, np.arange(total) % classes, tuple(map(str, range(classes))), splits)

    monkeypatch.setattr(make_backbone, "read_cifar100", lambda _: small("cifar100", 4, {"train": 40, "test": 12}))
    monkeypatch.setattr(make_backbone, "read_flowers", lambda _: small("flowers102", 3, {"train": 9, "val": 9, "test": 6}))
    out = tmp_path / "made" / "soft_nano.safetensors"
    words = ["--cifar100", str(tmp_path), "--flowers", str(tmp_path), "--out", str(out), "--steps", "2", "--device", "cpu"]
    make_backbone.main([*words, "--set", "batch_size=16"])
    assert "112 pictures an epoch" in capsys.readouterr().out, "40 of one set, and 18 of the other four times"
    monkeypatch.setattr(packaged, "FOLDER", out.parent)
    card = packaged.find_card("soft_nano")
    assert card.sha256 == sha256(out) and card.bytes == out.stat().st_size
    assert [seen.images for seen in card.saw] == [40, 18] and [seen.test_images for seen in card.saw] == [12, 6]
    assert str(tmp_path) not in json.dumps(card.to_dict())
    state = load_file(out)
    assert {tensor.dtype for tensor in state.values()} == {torch.float16, torch.int64} and "head.weight" not in state
    assert choose_start("auto", None, {}, "cpu", ImageFacts(32)).start.sha256 == card.sha256
    with pytest.raises(SystemExit, match="--minutes"):
        make_backbone.main(words[:-4])


@pytest.mark.skipif(not REAL.is_file(), reason="the package has no weights yet")
def test_the_weights_of_the_package_are_small_and_as_their_card_says():
    found = json.loads(packaged.card_path(REAL).read_text())
    assert found["sha256"] == sha256(REAL) and found["bytes"] == REAL.stat().st_size <= packaged.MOST_BYTES
