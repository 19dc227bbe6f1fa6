"""Our own models: sizes, grids and costs, and all that other models can do."""

import numpy as np
import pytest
import torch

import softbias
from softbias.errors import SoftbiasError
from softbias.models import create_model, preset_spec
from softbias.models.cost import count_macs, count_parameters
from softbias.models.patch_sizes import fine_patch

SIZES = [(28, 28), (32, 32), (64, 64), (96, 96), (128, 128), (224, 224), (60, 80), (96, 64), (24, 40)]
SHALLOW = {"width": 36, "heads": 9, "depth": 3, "num_classes": 5}  # soft_small, but quick


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["soft_tiny", "soft_small"])
def test_images_of_every_size_have_a_grid_that_can_be_afforded(name, size):
    model = create_model(name, img_size=size, num_classes=3, device="meta")
    assert 49 <= model.spec.grid(0).patches <= 300
    assert model(torch.empty(2, 3, *size, device="meta")).shape == (2, 3)


def test_the_small_one_looks_closely_at_large_images():
    grids = {side: preset_spec("soft_small", img_size=side).grid(0) for side in (32, 64, 96, 128, 224)}
    assert {side: grid.height for side, grid in grids.items()} == {32: 8, 64: 16, 96: 12, 128: 16, 224: 14}
    assert fine_patch((64, 512)) == 16 and fine_patch((60, 80)) == 4 and fine_patch(224) == 16


def test_the_small_one_costs_three_times_the_tiny_one_at_side_96():
    tiny, small = (create_model(name, img_size=96, num_classes=10, device="meta") for name in ("soft_tiny", "soft_small"))
    assert 2.7 < count_macs(small, 3, 96, 96) / count_macs(tiny, 3, 96, 96) < 3.3
    assert count_parameters(small) < 15e6


@pytest.mark.parametrize("name", ["soft_tiny", "soft_small"])
@pytest.mark.parametrize("patch", [4, 8, 16])
def test_channels_of_the_stem_are_multiples_of_eight(name, patch):
    stem = create_model(name, img_size=64, patch_size=patch, device="meta").patch_embed
    channels = [layer.out_channels for layer in stem.convs if isinstance(layer, torch.nn.Conv2d)]
    assert len(channels) == {4: 2, 8: 3, 16: 4}[patch] and all(each % 8 == 0 for each in channels)
    assert channels == sorted(channels)


@pytest.mark.parametrize("side", [96, 128])
def test_the_small_one_is_resized_inspected_converted_and_saved(side, tmp_path):
    torch.manual_seed(0)
    model, images = create_model("soft_small", img_size=side, **SHALLOW).eval(), torch.randn(2, 3, side, side)
    logits = model(images)
    tokens = model.spec.grid(0).patches
    found = softbias.inspect(model, images)
    assert [tuple(one.shape) for one in found.maps.values()] == [(2, 9, tokens, tokens)] * 3
    torch.testing.assert_close(softbias.convert(model, [2], "gated")(images), logits, rtol=1e-3, atol=1e-4)
    assert softbias.resize(model, (64, 32))(torch.randn(1, 3, 64, 32)).shape == (1, 5)
    softbias.save(model, tmp_path / "model")
    torch.testing.assert_close(softbias.load(tmp_path / "model")(images), logits)


@pytest.mark.slow
def test_the_small_one_is_exported(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model, images = create_model("soft_small", **SHALLOW).eval(), torch.randn(3, 3, 96, 96)
    path = softbias.export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    np.testing.assert_allclose(logits, model(images).detach().numpy(), atol=2e-4, rtol=1e-3)


def test_the_mechanism_of_the_biased_blocks_has_options_of_its_own():
    local = {"attention": "window", "attention_options": {"window": 3, "mode": "sliding"}}
    model = create_model("soft_small", img_size=32, **SHALLOW, **local).eval()
    assert str(model.spec.layers[0]) == "window(window=3,mode=sliding)" and str(model.spec.layers[-1]) == "full"
    first, last = (softbias.inspect(model, torch.randn(1, 3, 32, 32)).maps[layer][0, 0] for layer in (0, 2))
    columns = model.spec.grid(0).width
    corner = [0, 1, columns, columns + 1]  # the patches of a window of 3 × 3 there
    assert first[0].nonzero().flatten().tolist() == corner and bool((last[0] > 0).all())
    with pytest.raises(SoftbiasError, match="no option of gated attention 'window'"):
        create_model("soft_small", **SHALLOW, attention_options={"window": 3})
