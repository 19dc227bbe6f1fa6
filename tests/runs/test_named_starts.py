"""Models that bring their weights in a folder: Hugging Face's, timm's, and files that state nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import softbias
from softbias.errors import SoftbiasError
from softbias.runs.named_starts import hugging_face_start, weights_start
from softbias.runs.prepare import build_model
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start
from softbias.training.recipe import Recipe

SHORT = {"device": "cpu", "steps": 1, "recipe": "quick", "page": False, "baseline": False, "trackers": ()}
TIMM = {"architecture": "vit_tiny_patch16_224", "num_classes": 4, "model_args": {"depth": 1, "patch_size": 8}}
CFG = {"mean": [0.1, 0.2, 0.3], "std": [0.2, 0.2, 0.2], "input_size": [3, 32, 32], "license": "mit"}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir()
        for number in range(8):
            Image.fromarray(rng.integers(0, 255, (70, 70, 3), np.uint8)).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def timm_folder(tmp_path) -> Path:
    folder = tmp_path / "timm model"
    folder.mkdir()
    learned = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, patch_size=8, num_classes=4)
    save_file(learned.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**TIMM, "pretrained_cfg": CFG}))
    return folder


@pytest.fixture
def hugging_face_folder(tmp_path, hugging_face_vit) -> Path:
    hugging_face_vit(5, hidden_size=32, intermediate_size=64).save_pretrained(tmp_path / "vit")
    about = {"image_mean": CFG["mean"], "image_std": CFG["std"]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(about))
    (tmp_path / "vit" / "README.md").write_text("---\nlicense: bsd-3-clause\n---\n# A model\n")
    return tmp_path / "vit"


def test_a_folder_of_timm_s_is_trained_and_the_run_needs_only_its_weights(images, timm_folder, tmp_path):
    run = softbias.fit(images, f"timm:local-dir:{timm_folder}", out=tmp_path / "run", start="pretrained", **SHORT).run
    assert run.spec.model == "timm:vit_tiny_patch16_224" and run.spec.model_options == {"depth": 1, "patch_size": 8}
    assert (
        run.spec.start.license == "mit" and run.classifier().mean == (0.1, 0.2, 0.3) and run.classifier().img_size == (32, 32)
    )


def test_a_folder_of_hugging_face_starts_from_its_weights_or_from_fresh_ones(images, hugging_face_folder, tmp_path):
    name = f"hf:{hugging_face_folder}"
    run = softbias.fit(images, name, out=tmp_path / "run", **SHORT).run
    start = run.spec.start
    assert start.kind == "pretrained" and start.license == "bsd-3-clause" and start.img_size == (32, 32)
    assert run.classifier().mean == (0.1, 0.2, 0.3) and run.summary()["preprocessing"]["std"] == [0.2, 0.2, 0.2]
    learned = load_file(hugging_face_folder / "model.safetensors")
    key = "vit.embeddings.position_embeddings"
    for given, same in ((start, True), (Start(), False)):
        built = build_model(RunSpec("x", name, Recipe(), start=given), 2, (32, 32)).state_dict()
        (own,) = [tensor for parameter, tensor in built.items() if parameter.endswith(key)]
        assert torch.equal(own, learned[key]) == same


def test_a_folder_without_weights_cannot_be_started_from(hugging_face_folder):
    (hugging_face_folder / "model.safetensors").unlink()
    assert hugging_face_start(f"hf:{hugging_face_folder}", asked=False).start == Start()
    with pytest.raises(SoftbiasError, match="holds no weights"):
        hugging_face_start(f"hf:{hugging_face_folder}", asked=True)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ([1], "config.json"),
        ({**TIMM, "pretrained_cfg": 3}, "pretrained_cfg"),
        ({**TIMM, "pretrained_cfg": {"mean": "grey"}}, "pretrained_cfg.mean"),
        ({**TIMM, "pretrained_cfg": {"mean": [0.1] * 3, "std": [0.0] * 3}}, "std"),
        ({**TIMM, "pretrained_cfg": {"input_size": [3, 0, 0]}}, "img_size"),
    ],
)
def test_nonsense_beside_weights_is_refused_by_its_field(timm_folder, config, field):
    (timm_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SoftbiasError, match=field):
        weights_start(timm_folder, "timm:vit_tiny_patch16_224")
