"""A model folder from somebody else opens no file outside of it, no connection, and runs no code."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from softbias import create_model, load, load_weights, save
from softbias.checksums import write_checksums
from softbias.errors import SoftbiasError
from softbias.models.untrusted import UntrustedError

WATCHED: list[tuple[str, str]] | None = None


def watch(event, arguments):
    if WATCHED is not None and event in ("open", "socket.connect", "socket.getaddrinfo", "exec", "import"):
        WATCHED.append((event, str(arguments[0])))


sys.addaudithook(watch)  # it stays, and does nothing while nobody watches


@pytest.fixture
def watched():
    """Every file that is opened, and every connection."""
    global WATCHED
    WATCHED = []
    yield WATCHED
    WATCHED = None


@pytest.fixture
def secret(tmp_path):
    """A file outside of the model's folder that would make a difference."""
    torch.save(create_model("timm:vit_tiny_patch16_224", 3, 32, depth=1, patch_size=8).state_dict(), tmp_path / "secret.pth")
    return tmp_path / "secret.pth"


@pytest.fixture(scope="module")
def timm_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timm") / "model"
    save(create_model("timm:vit_tiny_patch16_224", 3, 32, depth=1, patch_size=8), folder, class_names=["a", "b", "c"])
    return folder


def changed(folder, copy, **changes):
    shutil.copytree(folder, copy)
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    write_checksums(copy, ["config.json", "model.safetensors"])  # an attacker can do that, too
    return copy


def quiet(watched, *paths) -> bool:
    """No connection was tried, and no file of these was opened."""
    return not any(what.startswith("socket") or any(str(path) in name for path in paths) for what, name in watched)


URL = "http://127.0.0.1:9/weights.pth"
TRICKS = {
    "pretrained": {"pretrained": True},
    "pretrained_cfg": {"pretrained_cfg": {"url": URL}},
    "pretrained and its address": {"pretrained": True, "pretrained_cfg": {"url": URL}},
    "pretrained_cfg_overlay": {"pretrained_cfg_overlay": {"url": URL}},
    "checkpoint_path": {"checkpoint_path": "SECRET"},
    "cache_dir": {"cache_dir": "SECRET"},
    "features_only": {"features_only": True},
    "pruned": {"pruned": True},
    "a path as a word": {"weight_init": "../../secret"},
    "an address as a word": {"weight_init": URL},
    "settings": {"norm_layer": {"path": "x"}},
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_timm_model_is_built_from_options_of_its_architecture_alone(timm_folder, secret, tmp_path, watched, trick):
    options = {name: str(secret) if value == "SECRET" else value for name, value in TRICKS[trick].items()}
    args = {"img_size": 32, "patch_size": 8, "depth": 1, **options}
    watched.clear()
    with pytest.raises(UntrustedError):
        load(changed(timm_folder, tmp_path / "copy", model_args=args))
    assert quiet(watched, secret)


@pytest.mark.parametrize(
    "name", ["timm:hf-hub:someone/model", "timm:local-dir:/etc", "timm:resnet18.x:y", "hf:/etc", "https://x.org", 3]
)
def test_the_name_of_a_model_leads_nowhere(timm_folder, tmp_path, watched, name):
    saved_by = {**json.loads((timm_folder / "config.json").read_text())["softbias"], "name": name}
    watched.clear()
    with pytest.raises(SoftbiasError):
        load(changed(timm_folder, tmp_path / "copy", softbias=saved_by))
    assert quiet(watched)


def test_an_untouched_folder_opens_without_a_connection_and_with_numbers_words_and_lists(timm_folder, tmp_path, watched):
    options = {"img_size": [32, 32], "patch_size": 8, "depth": 1, "drop_rate": 0.1, "act_layer": "gelu", "qkv_bias": True}
    copy = changed(timm_folder, tmp_path / "copy", model_args=options)
    watched.clear()
    assert load(copy).class_names == ("a", "b", "c") and quiet(watched)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "SHA256SUMS"])
def test_links_out_of_the_folder_are_refused(timm_folder, tmp_path, watched, name):
    copy, outside = shutil.copytree(timm_folder, tmp_path / "copy"), tmp_path / f"outside-{name}"
    (copy / name).rename(outside)
    (copy / name).symlink_to(outside)
    watched.clear()
    with pytest.raises(UntrustedError):
        load(copy)
    assert quiet(watched, outside)


def test_the_links_of_the_hugging_face_cache_are_followed(vit, tmp_path):
    cache = tmp_path / "models--a--b"
    snapshot, blobs = cache / "snapshots" / "0123", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in vit.iterdir():
        shutil.copy(file, blobs / f"blob-{file.name}")
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"blob-{file.name}", snapshot))
    assert create_model(f"hf:{snapshot}").num_classes == 3


def test_a_linked_folder_is_as_good_as_the_folder(timm_folder, tmp_path):
    (tmp_path / "link").symlink_to(timm_folder)
    assert load(tmp_path / "link").num_classes == 3


@pytest.fixture(scope="module")
def vit(tmp_path_factory, hugging_face_vit):
    folder = tmp_path_factory.mktemp("hf") / "vit"
    hugging_face_vit(3).save_pretrained(folder)
    return folder


CODE = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass C:\n    pass\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForImageClassification": "mine.C"}},
        {"auto_map": {"AutoModelForImageClassification": "someone/repo--mine.C"}},
        {"model_type": "timm_wrapper", "architecture": "resnet18", "model_args": {"pretrained": True}},
        {"backbone": "resnet18", "use_timm_backbone": True, "use_pretrained_backbone": True},
        {"backbone_config": {"model_type": "timm_backbone"}},
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        {"_attn_implementation": "someone/kernel"},
        {"attn_implementation": "someone/kernel"},
        {"transformers_weights": "../secret.safetensors"},
        {"hidden_act": "../../x"},
    ],
    ids=str,
)
def test_a_hugging_face_folder_runs_no_code_and_leads_nowhere(vit, tmp_path, watched, changes):
    copy = shutil.copytree(vit, tmp_path / "copy")
    (copy / "mine.py").write_text(CODE)
    plain = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(plain | changes))
    watched.clear()
    for name in (f"hf:{copy}", None):
        with pytest.raises(UntrustedError):
            load(copy) if name is None else create_model(name)
    assert quiet(watched, "mine.py", "secret") and not (copy / "ran").exists()


def test_an_adapter_and_shards_of_another_folder_are_refused(vit, tmp_path, watched):
    copy = shutil.copytree(vit, tmp_path / "copy")
    (copy / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/model"}))
    with pytest.raises(UntrustedError, match="adapter"):
        load(copy)
    (copy / "adapter_config.json").unlink()
    (copy / "model.safetensors").rename(tmp_path / "outside.safetensors")
    names = load_file(tmp_path / "outside.safetensors")
    save_file({"x": torch.zeros(1)}, copy / "x.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../outside.safetensors")}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    watched.clear()
    with pytest.raises(UntrustedError, match="weight_map"):
        load(copy)
    assert quiet(watched, "outside")


class Touch:
    """Its pickle creates a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles_run_no_code(vit, tmp_path):
    copy = shutil.copytree(vit, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    torch.save({"head.weight": Touch(tmp_path / "ran")}, copy / "pytorch_model.bin")
    with pytest.raises(SoftbiasError):
        load(copy)
    with pytest.raises(SoftbiasError):
        load_weights(create_model("deit_nano"), copy / "pytorch_model.bin")
    assert not (tmp_path / "ran").exists()


def test_tensors_that_a_hugging_face_folder_lacks_or_has_in_other_shapes_are_named(vit, tmp_path, capfd):
    copy = shutil.copytree(vit, tmp_path / "copy")
    tensors = load_file(vit / "model.safetensors")
    name = "vit.layernorm.weight"
    for wrong in ({k: v for k, v in tensors.items() if k != name}, tensors | {name: torch.zeros(3, 3)}):
        save_file(wrong, copy / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(SoftbiasError, match="do not fit") as refused:
            load(copy)
        assert name in str(refused.value) and capfd.readouterr().err == ""
    save_file(tensors | {name: tensors[name] * float("nan")}, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SoftbiasError, match="not finite"):
        load(copy)


def test_a_hugging_face_model_that_we_saved_carries_its_checksums(vit, tmp_path):
    folder = save(create_model(f"hf:{vit}"), tmp_path / "saved", preprocessing={"mean": (0.1,) * 3, "std": (0.4,) * 3})
    assert load(folder).num_classes == 3
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(SoftbiasError, match=r"model\.safetensors"):
        load(folder)
