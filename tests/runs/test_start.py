"""What a run begins with: found once, written into its spec, and the same ever after."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

import softbias
from softbias.errors import SoftbiasError
from softbias.models import create_model, weight_files
from softbias.models.hub import NoWeightsError
from softbias.pages.wording import text
from softbias.runs.fit import run_fit
from softbias.runs.named_starts import run_start, weights_start
from softbias.runs.partial import PartialRunSpec
from softbias.runs.prepare import build_model
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start
from softbias.runs.starting import ImageFacts, choose_start
from softbias.training.recipe import Recipe

REAL = Path(__file__).resolve().parents[3] / "shared" / "weights" / "deit_tiny_patch16_224.safetensors"
SHORT = {"device": "cpu", "epochs": 1, "recipe": "quick", "page": False, "baseline": False, "trackers": ()}


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Path:
    """A folder with a file of DeiT's weights, all of which are zero."""
    folder = tmp_path / "weights"
    folder.mkdir()
    save_zeros("deit_tiny", folder / "deit_tiny_patch16_224.safetensors")
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(folder))
    return folder


def save_zeros(model: str, file: Path, **options) -> None:
    shapes = create_model(model, img_size=224, device="meta", **{"patch_size": 16, **options}).state_dict()
    save_file({name: torch.zeros(tensor.shape) for name, tensor in shapes.items()}, file)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir()
        for number in range(10):
            image = rng.integers(0, 255, (80, 80, 3), np.uint8) // (1 if name == "a" else 2)
            Image.fromarray(image).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def first(images, tmp_path_factory):
    """A run with fresh weights."""
    out = tmp_path_factory.mktemp("runs") / "first"
    return softbias.fit(images, "deit_nano", out=out, data_options={"img_size": 32}, start="scratch", **SHORT).run


def test_weights_in_the_folder_are_taken_with_their_hash_and_license(weights):
    found = choose_start("auto", None, {}, "cpu", ImageFacts(128))
    start = found.start
    assert start.kind == "pretrained" and found.model == "deit_tiny" and found.model_options == {"patch_size": 16}
    assert start.license == "apache-2.0" and start.name == "timm/deit_tiny_patch16_224.fb_in1k"
    assert start.sha256 == weight_files.digest(weights / "deit_tiny_patch16_224.safetensors")
    assert start.mean == (0.485, 0.456, 0.406) and start.img_size == (224, 224)
    assert found.note.values["origin"] == "folder" and "apache-2.0" in text(found.note)


@pytest.mark.parametrize(
    ("known", "device", "why"),
    [
        (ImageFacts(32), "cpu", None),
        (ImageFacts(32), "cuda", None),
        (ImageFacts(32, named=True), "cpu", "small-pictures"),
        (ImageFacts(32, named=True), "cuda", "small-pictures"),
        (ImageFacts(128, count=50_000), "cpu", "many-pictures"),
        (ImageFacts(64, count=49_999), "cpu", None),
        (ImageFacts(32, count=60_000), "cpu", None),
    ],
)
def test_auto_stays_from_scratch_where_a_cpu_would_waste_its_time(weights, known, device, why):
    found = choose_start("auto", "deit_tiny", {}, device, known)
    assert found.note.values.get("why") == why and found.start.learned == (why is None)
    assert text(found.note) and "\n" not in text(found.note)
    assert choose_start("pretrained", "deit_tiny", {}, device, known).start.learned


def test_auto_says_why_a_model_has_no_weights():
    found = choose_start("auto", "convit_nano", {}, "cpu", ImageFacts(128))
    assert found.start == Start() and found.note.values == {"kind": "scratch", "why": "no-weights", "model": "convit_nano"}
    offline = choose_start("auto", "deit_tiny", {}, "cpu", ImageFacts(128))
    assert offline.start == Start() and offline.note.values["why"] == "offline" and offline.note.values["megabytes"] == 23
    with pytest.raises(SoftbiasError, match="no pretrained weights are known for convit_nano"):
        choose_start("pretrained", "convit_nano", {}, "cpu", ImageFacts(128))
    with pytest.raises(NoWeightsError, match="--start scratch"):
        choose_start("pretrained", "deit_tiny", {}, "cpu", ImageFacts(128))


def test_a_gpu_takes_what_is_at_hand_and_names_what_may_do_better(weights):
    found = choose_start("auto", None, {}, "cuda", ImageFacts(128))
    assert found.model == "deit_tiny" and found.note.values["better"] == "deit_small"
    save_zeros("deit_small", weights / "deit_small.safetensors")
    assert choose_start("auto", None, {}, "cuda", ImageFacts(128)).model == "deit_small"


def test_a_model_of_a_named_file_is_read_off_its_name(weights, tmp_path):
    found = weights_start(weights / "deit_tiny_patch16_224.safetensors", None)
    assert found.model == "deit_tiny" and found.start.name == "timm/deit_tiny_patch16_224.fb_in1k"
    other = tmp_path / "mine.safetensors"
    save_zeros("deit_tiny", other)
    with pytest.raises(SoftbiasError, match="name the model"):
        weights_start(other, None)
    for name in ("mine.safetensors", "model.safetensors"):
        file = other.rename(tmp_path / name)
        found = weights_start(file, "deit_tiny").start
        assert found.license is None and found.name == file.name, "nobody knows the license of an unknown file"
        other = file


@pytest.mark.parametrize("content", ["another model", "garbage", "nothing"])
def test_a_file_that_does_not_hold_what_its_name_says_is_left_out_or_refused(weights, content):
    file = weights / "deit_tiny_patch16_224.safetensors"
    if content == "another model":
        save_zeros("deit_tiny", file, depth=2)
    else:
        file.write_bytes(b"x" * 40 if content == "garbage" else b"")
    found = choose_start("auto", None, {}, "cpu", ImageFacts(128))
    assert found.start == Start() and found.note.values["why"] == "offline"
    (left_out,) = found.unfit
    assert found.notes == (left_out, found.note) and str(file) in text(left_out) and "\n" not in text(left_out)
    for ask in (
        lambda: choose_start("pretrained", None, {}, "cpu", ImageFacts(128)),
        lambda: weights_start(file, "deit_tiny"),
        lambda: PartialRunSpec(data="fashion", weights=str(file)).completed(),
    ):
        with pytest.raises(SoftbiasError, match=file.stem):
            ask()
    save_zeros("convit_tiny", weights / "convit_tiny.safetensors")
    other = choose_start("auto", None, {}, "cpu", ImageFacts(128))
    assert other.model == "convit_tiny" and other.unfit == (left_out,), "the next model of the table is taken"


def test_options_that_the_weights_do_not_fit_are_refused_before_images_are_read(weights):
    given = {"data": "nowhere", "weights": str(weights / "deit_tiny_patch16_224.safetensors")}
    assert PartialRunSpec(**given).completed().model == "deit_tiny"
    with pytest.raises(SoftbiasError, match="does not hold the weights of deit_tiny"):
        PartialRunSpec(**given, model_options={"patch_size": 8}).completed()


def test_the_id_of_a_run_depends_on_the_hash_of_its_weights_and_not_on_their_path():
    one, moved, other = (
        RunSpec("x", "deit_tiny", Recipe(), start=Start("pretrained", name, path, sha256=sha256))
        for name, path, sha256 in (("a", "a/w", "0" * 64), ("b", "b/w", "0" * 64), ("a", "a/w", "1" * 64))
    )
    assert one.id == moved.id != other.id and RunSpec.from_dict(one.to_dict()) == one
    assert RunSpec("x", "deit_tiny", Recipe()).id != one.id


def test_weights_are_found_again_by_their_hash_and_changed_ones_refused(weights, tmp_path):
    file = weights / "deit_tiny_patch16_224.safetensors"
    state = create_model("deit_nano", num_classes=5, img_size=32, patch_size=8).state_dict()
    save_file(state, file)
    start = weights_start(file, "deit_nano").start
    spec = RunSpec("x", "deit_nano", Recipe(), model_options={"patch_size": 8}, start=start)
    assert torch.equal(build_model(spec, 3, (32, 32)).state_dict()["pos_embed"], state["pos_embed"])
    file.rename(weights / "renamed.safetensors")
    assert torch.equal(build_model(spec, 3, (32, 32)).state_dict()["pos_embed"], state["pos_embed"])
    (weights / "renamed.safetensors").unlink()
    with pytest.raises(SoftbiasError, match="is gone"):
        build_model(spec, 3, (32, 32))
    save_file({name: tensor + 1 for name, tensor in state.items()}, file)
    with pytest.raises(SoftbiasError, match="has changed"):
        build_model(spec, 3, (32, 32))


def test_changed_weights_are_refused_before_the_images_are_read(first, images, tmp_path, monkeypatch):
    file = tmp_path / "deit_tiny_patch16_224.safetensors"
    save_zeros("deit_tiny", file)
    options = {**SHORT, "data_options": {"img_size": 64}}
    tuned = softbias.fit(images, weights=file, out=tmp_path / "tuned", **options, steps=1).run
    copied = tmp_path / "first"
    shutil.copytree(first.path, copied)
    second = softbias.fit(images, start=copied, out=tmp_path / "second", **SHORT, steps=1).run
    save_zeros("deit_tiny", file, depth=2)
    (copied / "model" / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("softbias.data.sources.Source.read_with", lambda *_: pytest.fail("the images were read"))
    monkeypatch.setattr("softbias.runs.fit.load_dataset", lambda *_, **__: pytest.fail("the images were read"))
    for run in (tuned, second):
        with pytest.raises(SoftbiasError, match="has changed"):  # repeated
            softbias.fit(config=run.path, out=tmp_path / "again", device="cpu")
        assert not (tmp_path / "again").exists()
        (run.path / "summary.json").unlink()
        with pytest.raises(SoftbiasError, match="has changed"):  # continued
            softbias.fit(out=run.path, resume=True, device="cpu")
        with pytest.raises(SoftbiasError, match="has changed"):  # as a study does
            run_fit(run.spec, tmp_path / "study", device="cpu")


def test_a_run_from_another_run_keeps_its_normalization_and_size(first, images, tmp_path):
    darker = tmp_path / "darker"
    for file in images.glob("*/*.png"):
        (darker / file.parent.name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.array(Image.open(file)) // 4).save(darker / file.parent.name / file.name)
    second = softbias.fit(darker, start=first.path, out=tmp_path / "second", **SHORT).run
    start = second.spec.start
    assert start.kind == "run" and start.name == first.path.name and second.spec.finetune == "full"
    assert start.sha256 == weight_files.digest(first.model_folder) and start.img_size == (32, 32)
    assert second.classifier().mean == first.classifier().mean == start.mean and second.summary()["img_size"] == [32, 32]
    tensors = load_file(first.model_folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    changed = second.spec.start.__class__(**{**vars(start), "sha256": "0" * 64})
    with pytest.raises(SoftbiasError, match="has changed"):
        build_model(RunSpec("x", "deit_nano", Recipe(), start=changed), 2, (32, 32), first.path)


def test_a_run_is_continued_and_repeated_with_the_start_that_it_found(first, images, tmp_path, weights):
    repeated = softbias.fit(config=first.path, out=tmp_path / "again", device="cpu", page=False, baseline=False, trackers=())
    assert repeated.run.spec.start == Start(), "weights that lie around now change nothing"
    assert repeated.run.spec.id == first.spec.id
    other = softbias.fit(config=first.path, out=tmp_path / "tuned", start=first.path, device="cpu", page=False, trackers=())
    again = yaml.safe_load((other.path / "config.yaml").read_text())["start"]
    assert again["kind"] == "run" and again["path"] == str(first.path)
    with pytest.raises(SoftbiasError, match=r"start\.kind was run, is scratch"):
        softbias.fit(out=other.path, resume=True, start="scratch", device="cpu")


def test_a_run_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(SoftbiasError, match="neither a finished run nor a saved model"):
        run_start(str(tmp_path))


@pytest.mark.skipif(not REAL.is_file(), reason="the pretrained weights are not here")
def test_real_weights_give_a_run_that_predicts_with_their_normalization(images, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(REAL.parent))
    small = {"img_size": 64}
    result = softbias.fit(images, out=tmp_path / "run", data_options=small, **{**SHORT, "epochs": 1})
    spec = Run(result.path).spec
    assert spec.model == "deit_tiny" and spec.start.kind == "pretrained" and spec.model_options == {"patch_size": 16}
    classifier = result.run.classifier()
    assert classifier.mean == (0.485, 0.456, 0.406) and classifier.img_size == (64, 64)
    assert result.summary["start"]["license"] == "apache-2.0"
    assert len(softbias.predict(result.run, sorted(images.glob("a/*.png")))) == 10
