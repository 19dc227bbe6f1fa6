"""save and load, and timm reading what we wrote."""

import json

import pytest
import timm
import torch

from softbias import create_model, list_models, load, save


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
