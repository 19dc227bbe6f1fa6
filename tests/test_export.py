"""ONNX: the exported model gives the same logits, for any batch."""

import numpy as np
import pytest
import torch

from softbias import create_model, export, list_models

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FAST = ["convit_nano"]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in list_models("*_nano")]
)
def test_onnxruntime_gives_the_same_logits_for_any_batch(name, tmp_path):
    torch.manual_seed(0)
    model = create_model(name, num_classes=3).eval()
    path = export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        images = torch.randn(batch, 3, 32, 32)
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        np.testing.assert_allclose(logits, model(images).detach().numpy(), atol=2e-4, rtol=1e-3)


def test_export_leaves_the_mode_alone(tmp_path):
    model = create_model("deit_nano").train()
    export(model, tmp_path / "m.onnx")
    assert model.training


def test_a_file_that_is_not_onnx_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"named \*\.onnx"):
        export(create_model("deit_nano"), tmp_path / "model.pt")
