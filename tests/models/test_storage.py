"""save and load, and timm reading what we wrote."""

import json
import math
import os
import subprocess
import sys

import pytest
import timm
import torch
from safetensors.torch import save_file

import softbias
from softbias import create_model, list_models, load, load_weights, save
from softbias.checksums import DamagedError, write_checksums
from softbias.errors import SoftbiasError


@pytest.mark.parametrize("name", list_models("*_nano"))
def test_a_model_comes_back_as_it_was(name, tmp_path):
    model = create_model(name, num_classes=3).eval()
    save(model, tmp_path, class_names=["ant", "bee", "çöl"], preprocessing={"mean": (0.1, 0.2, 0.3)})
    back, x = load(tmp_path), torch.randn(2, 3, 32, 32)
    assert torch.equal(back(x), model(x))
    assert back.class_names == ("ant", "bee", "çöl") and back.spec == model.spec and back.name == name
    assert tuple(back.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3) and not back.training


@pytest.mark.parametrize("name", ["convit_nano", "resnet_nano"])
def test_timm_reads_the_folder(name, tmp_path):
    model = create_model(name, num_classes=3).eval()
    save(model, tmp_path, class_names=["a", "b", "c"])
    back, x = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval(), torch.randn(2, 3, 32, 32)
    assert torch.equal(back(x), model(x))
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=5)
    assert other(x).shape == (2, 5)


def test_timm_models_are_saved_too(tmp_path):
    model = create_model("timm:vit_tiny_patch16_224", num_classes=3, img_size=32, patch_size=4).eval()
    save(model, tmp_path, class_names=["a", "b", "c"])
    back, x = load(tmp_path), torch.randn(2, 3, 32, 32)
    assert torch.equal(back(x), model(x)) and back.class_names == ("a", "b", "c")


def test_the_model_card_says_what_it_is(tmp_path):
    save(create_model("convit_nano", num_classes=2), tmp_path, class_names=["ant", "bee"], card="Trained on ants.")
    card = (tmp_path / "README.md").read_text()
    assert "Trained on ants." in card and "ant, bee" in card and "3 × gated, 1 × full" in card


def test_a_newer_format_is_refused(tmp_path):
    save(create_model("deit_nano"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["softbias"]["format"] = 99
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="upgrade softbias"):
        load(tmp_path)


def test_what_is_missing_or_broken_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load(tmp_path)
    save(create_model("deit_nano"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load(tmp_path)


def test_class_names_must_match_and_preprocessing_be_known(tmp_path):
    with pytest.raises(ValueError, match="10 classes, but 2 class names"):
        save(create_model("deit_nano"), tmp_path, class_names=["a", "b"])
    with pytest.raises(ValueError, match="'meen'"):
        save(create_model("deit_nano"), tmp_path, preprocessing={"meen": 0})


SIZES = {"img_size": [32, 32], "patch_size": [4, 4], "width": 8, "heads": 2}


def changed(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"num_classes": "three"}, ["num_classes", "a whole number", "'three'"]),
        ({"label_names": [1, 2]}, ["label_names"]),
        ({"softbias": {"format": "1", "version": "1", "name": None}}, ["softbias.format", "'1'"]),
        ({"model_args": {"spec": []}}, ["model_args.spec"]),
        ({"model_args": {"spec": {"kind": "transfomer"}}}, ["transfomer", "transformer"]),
        ({"model_args": {"spec": {"width": 64, "depht": 2}}}, ["model_args.spec", "depht"]),
        ({"model_args": {"spec": SIZES | {"layers": [{"attention": 3}]}}}, ["layers[0].attention", "text"]),
        ({"model_args": {}}, ["neither a spec"]),
        ({"model_args": {"spec": SIZES | {"layers": [{"attention": "full"}] * 10**6}}}, ["layers", "entries"]),
        ({"pretrained_cfg": {"mean": [0, 0, "x"], "std": [1, 1, 1]}}, ["pretrained_cfg.mean[2]", "a number"]),
        ({"pretrained_cfg": {"mean": [0, 0, 0], "std": [1, 0, 1]}}, ["pretrained_cfg.std[1]", "more than 0"]),
        ({"pretrained_cfg": {"mean": [0, 0, 0], "std": [1, 1]}}, ["pretrained_cfg.mean", "pretrained_cfg.std"]),
        ({"pretrained_cfg": {"crop_mode": {"a": 1}}}, ["pretrained_cfg.crop_mode", "text"]),
        ({"pretrained_cfg": {"input_size": [3, 0, 32]}}, ["pretrained_cfg.input_size[1]", "from 1"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_field_of_the_config_is_named_with_what_is_allowed(tmp_path, changes, facts):
    save(create_model("deit_nano"), tmp_path)
    changed(tmp_path, **changes)
    with pytest.raises(SoftbiasError) as error:
        load(tmp_path)
    assert all(fact in str(error.value) for fact in facts), error.value


@pytest.mark.parametrize("content", [b"", b"not a tensor in sight", b"\x00" * 64])
@pytest.mark.parametrize("name", ["model.safetensors", "weights.pth"])
def test_weights_that_cannot_be_read_are_named_in_one_line(tmp_path, name, content):
    save(create_model("deit_nano"), tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SoftbiasError, match=name) as error:
        load(tmp_path) if name.endswith("safetensors") else load_weights(create_model("deit_nano"), tmp_path / name)
    assert "\n" not in str(error.value)


def test_weights_that_are_no_tensors_are_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"head.weight": 3}, tmp_path / "number.pth")
    for name in ("list.pth", "number.pth"):
        with pytest.raises(SoftbiasError, match="tensors by name"):
            load_weights(create_model("deit_nano"), tmp_path / name)


def test_weights_of_another_model_in_the_folder_are_listed(tmp_path):
    save(create_model("deit_nano"), tmp_path)
    other = create_model("deit_nano", depth=3)
    save(other, tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(DamagedError, match=r"model\.safetensors"):
        load(tmp_path)
    write_checksums(tmp_path, ["config.json", "model.safetensors"])
    with pytest.raises(SoftbiasError, match=r"blocks\.3\.\S+ is missing"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "SHA256SUMS"])
def test_one_changed_bit_or_a_lost_file_is_damage(tmp_path, name):
    save(create_model("deit_nano", num_classes=2), tmp_path, class_names=["cat", "dog"])
    path = tmp_path / name
    content = path.read_bytes()
    at = {"config.json": content.find(b"cat"), "model.safetensors": len(content) - 30, "SHA256SUMS": 3}[name]
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(DamagedError):
        load(tmp_path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SoftbiasError):
        load(tmp_path)
    path.unlink()
    with pytest.raises(SoftbiasError):
        load(tmp_path)
    path.write_bytes(content)
    assert load(tmp_path).class_names == ("cat", "dog")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_neither_saved_nor_loaded_nor_exported(tmp_path, value):
    model = create_model("deit_nano")
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[3, 4] = value
    for call in (lambda: save(model, tmp_path), lambda: softbias.export(model, tmp_path / "m.onnx")):
        with pytest.raises(SoftbiasError, match=r"1 of \d+ tensors .*blocks\.1\.mlp\.fc1\.weight"):
            call()
    assert not list(tmp_path.iterdir())
    with pytest.raises(SoftbiasError, match=r"blocks\.1\.mlp\.fc1\.weight"):
        load_weights(create_model("deit_nano"), model.state_dict())


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_all_files_of_a_model_have_the_mode_that_the_umask_gives(tmp_path, umask):
    before = os.umask(umask)
    try:
        save(create_model("deit_nano"), tmp_path / "model")
    finally:
        os.umask(before)
    names = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert names == dict.fromkeys(("README.md", "SHA256SUMS", "config.json", "model.safetensors"), 0o666 & ~umask)


@pytest.mark.parametrize(
    "state",
    [
        {"blocks.0.attn.qk.weight": torch.zeros(4, 4)},
        {"blocks.0.attn.qk.weight": torch.zeros(4, 4), "blocks.0.attn.v.weight": torch.zeros(4, 5)},
        {"pos_embed": torch.zeros(7)},
        {"head.weight": torch.zeros(())},
    ],
    ids=lambda state: ",".join(state),
)
def test_tensors_of_any_shape_under_known_names_are_refused_in_one_line(state, tmp_path):
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(SoftbiasError, match="do not fit") as refused:
        load_weights(create_model("deit_nano"), tmp_path / "w.safetensors")
    assert "\n" not in str(refused.value)


def test_a_broken_hugging_face_folder_is_named(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such model"}))
    with pytest.raises(SoftbiasError, match=tmp_path.name):
        load(tmp_path)


@pytest.mark.parametrize("room", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_and_leaves_the_earlier_model(tmp_path, room):
    save(create_model("deit_nano"), tmp_path / "model", card="the earlier one")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    code = f"""
import resource, signal, sys
from softbias import create_model, save
model = create_model("deit_nano", width=128, heads=4)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
try:
    save(model, sys.argv[1])
except (ValueError, OSError) as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model"], capture_output=True, text=True)
    assert done.stdout.startswith("SoftbiasError") and done.stdout.count("\n") == 1, done.stdout + done.stderr
    assert str(tmp_path / "model") in done.stdout and ".tmp" not in done.stdout
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
