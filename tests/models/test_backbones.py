"""The table of backbones agrees with timm, and weights that lie on this machine are found."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file
from timm.models import get_pretrained_cfg

from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.models.backbones import BACKBONES, ON_CPU, ON_GPU, find_backbone
from softbias.models.weight_files import UNASKED_MEGABYTES, find_at_hand
from softbias.models.weights import load_weights
from softbias.runs.starting import ImageFacts, choose_start

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


def save_weights(model: str, path: Path, **options) -> None:
    backbone = find_backbone(model)
    built = create_model(backbone.model, img_size=224, **{**backbone.model_options, **options})
    save_file(built.state_dict(), path)


@pytest.mark.parametrize("model", ["deit_tiny", "convit_tiny", "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"])
def test_a_file_is_taken_for_a_backbone_only_if_its_tensors_fit(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(tmp_path))
    backbone = find_backbone(model)
    first, second = (tmp_path / f"{name}.safetensors" for name in backbone.file_names[:2])
    assert find_at_hand(backbone).file is None and not find_at_hand(backbone).unfit
    save_weights(model, second)
    assert find_at_hand(backbone).file.path == second and not find_at_hand(backbone).unfit
    save_weights(model, first, depth=2)
    found = find_at_hand(backbone)
    assert found.file.path == second and len(found.unfit) == 1 and str(first) in found.unfit[0]
    assert backbone.model in found.unfit[0] and "\n" not in found.unfit[0]
    second.write_bytes(second.read_bytes()[:-1])
    assert find_at_hand(backbone).file is None and len(find_at_hand(backbone).unfit) == 2, "a file that was cut off"


def test_weights_under_timm_s_own_names_fit_as_well(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(tmp_path))
    for model in ("convit_tiny", "resnet50"):
        backbone = find_backbone(model)
        save_file(timm.create_model(backbone.name).state_dict(), tmp_path / f"{model}.safetensors")
        assert find_at_hand(backbone).file is not None


def test_the_command_lists_them_and_says_which_are_at_hand(tmp_path, monkeypatch, capsys):
    save_weights("deit_tiny", tmp_path / "deit_tiny.safetensors")
    (tmp_path / "convit_tiny.safetensors").write_bytes(b"x")
    monkeypatch.setenv("SOFTBIAS_WEIGHTS", str(tmp_path))
    assert main(["models", "--pretrained", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["deit_tiny"]["at_hand"] == str(tmp_path / "deit_tiny.safetensors") and rows["resnet50"]["at_hand"] is None
    assert main(["models", "deit_*", "--pretrained"]) == 0
    printed = capsys.readouterr().out
    assert "apache-2.0" in printed and "in SOFTBIAS_WEIGHTS" in printed and "resnet50" not in printed
    assert main(["models", "convit_*", "--pretrained"]) == 0
    printed = capsys.readouterr().out
    assert "in SOFTBIAS_WEIGHTS" not in printed and str(tmp_path / "convit_tiny.safetensors") in printed.replace("\n", "")
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
