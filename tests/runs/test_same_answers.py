"""A fine-tuned model gives a file the probabilities that its evaluation gave it: the same size, resize and normalization."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import softbias
from softbias.models import create_model

MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.3, 0.4)
TIMM = "timm:vit_tiny_patch16_224"
SMALL = {"deit_nano": {"patch_size": 8}, TIMM: {"patch_size": 8, "depth": 1, "embed_dim": 24, "num_heads": 2}}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Photographs in both formats, one of which is turned by its EXIF data, as JPEG files."""
    root, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for number, name in enumerate("ab"):
        (root / name).mkdir()
        for index in range(12):
            size = (90, 70) if index % 2 else (61, 103)
            smooth = Image.fromarray(rng.integers(0, 255, (9, 9, 3), np.uint8) // (1 + number)).resize(
                size, Image.Resampling.BICUBIC
            )
            turned = Image.Exif()
            turned[0x0112] = 6 if index % 3 == 0 else 1
            smooth.save(root / name / f"{index}.jpg", exif=turned)
    return root


@pytest.fixture(scope="module", params=list(SMALL))
def run(request, images, tmp_path_factory):
    model, folder = request.param, tmp_path_factory.mktemp("tuned")
    (folder / "weights").mkdir()
    save_file(create_model(model, 5, 48, **SMALL[model]).state_dict(), folder / "weights" / "model.safetensors")
    about = {"mean": MEAN, "std": STD, "input_size": [3, 48, 48], "license": "mit"}
    (folder / "weights" / "config.json").write_text(json.dumps({"pretrained_cfg": about}))
    sizes = {"data_options": {"img_size": 48, "crop_from": 56}, **({} if model == TIMM else {"train_size": 32})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(folder / "cache"))
        return softbias.fit(
            images, model, "finetune", weights=folder / "weights", model_options=SMALL[model], out=folder / "run", steps=3,
            precision="fp32", device="cpu", baseline=False, page=False, trackers=(), **sizes,
        ).run  # fmt: skip


def test_predict_gives_the_probabilities_of_the_evaluation(run):
    kept = run.predictions()
    rows = softbias.predict(run, kept.files, device="cpu")
    np.testing.assert_allclose([row.probabilities for row in rows], kept.probabilities, atol=2e-5)
    assert np.ptp(kept.probabilities[:, 0]) > 1e-3, "pictures are told apart"
    classifier = run.classifier()
    assert classifier.mean == MEAN and classifier.std == STD and classifier.img_size == (48, 48)


@pytest.mark.slow
def test_an_exported_model_gives_them_as_well(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    kept, classifier = run.predictions(), run.classifier()
    session = onnxruntime.InferenceSession(str(softbias.export(classifier.model, tmp_path / "model.onnx")))
    images = np.stack([classifier.read(file) for file in kept.files]).transpose(0, 3, 1, 2) / np.float32(255)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (MEAN, STD))
    (logits,) = session.run(["logits"], {"images": (images - mean) / std})
    shares = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(shares / shares.sum(1, keepdims=True), kept.probabilities, atol=1e-4)
