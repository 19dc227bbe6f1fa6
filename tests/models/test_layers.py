"""Parts around the attention."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn.functional import conv2d

import softbias
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.models import build
from softbias.models.layers import DepthwiseFeedForward, DropPath, FeedForward, SequencePool, shifted_products
from softbias.models.spec import Layer, ModelSpec, spec_from_dict
from softbias.models.stems import ResidualBlock
from softbias.training.muon import is_for_muon


def test_a_path_is_dropped_as_timm_drops_it():
    from timm.layers import DropPath as TimmDropPath

    x = torch.randn(64, 5, 3)
    drawn = []
    for kind in (DropPath, TimmDropPath):
        torch.manual_seed(0)
        drawn.append(kind(0.3).train()(x))
    assert torch.equal(*drawn)
    zero = (drawn[0] == 0).all(dim=(1, 2))
    assert 5 < zero.sum() < 40
    torch.testing.assert_close(drawn[0][~zero], x[~zero] / 0.7)
    assert torch.equal(DropPath(0.3).eval()(x), x)


def test_models_are_made_without_importing_timm_or_the_compiler():
    code = "import sys, softbias.models; print({'timm', 'torchvision', 'torch._dynamo', 'triton'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


PARTS = {
    "stem": ["conv", "strided", "residual", "shifted"],
    "feed_forward": ["dwconv"],
    "pool": ["sequence"],
    "layer_scale": [0.1],
}
CASES = [(name, value) for name, values in PARTS.items() for value in values]


def spec_with(attention: str = "full", **parts: object) -> ModelSpec:
    plain = {"img_size": (24, 16), "patch_size": (4, 4), "width": 32, "heads": 4, "num_classes": 5, "class_token": None}
    return ModelSpec(**{**plain, "pool": "average", "layers": (Layer(attention),) * 2, **parts})  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["full", "gated", "masked", "window"])
@pytest.mark.parametrize(("name", "value"), CASES)
def test_every_part_goes_with_every_attention(attention, name, value, tmp_path):
    spec = spec_with(attention, **{name: value})
    assert spec_from_dict(spec.to_dict()) == spec
    model = build(spec).eval()
    images = torch.randn(2, 3, 24, 16)
    logits = model(images)
    assert logits.shape == (2, 5) and logits.isfinite().all()
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    softbias.save(model, tmp_path / "model")
    torch.testing.assert_close(softbias.load(tmp_path / "model")(images), logits)
    assert softbias.resize(model, (32, 32))(torch.randn(1, 3, 32, 32)).shape == (1, 5)
    torch.testing.assert_close(softbias.resize(model, (24, 16))(images), logits)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_every_part_can_be_traced_and_runs_in_half_precision(name, value):
    model, images = build(spec_with(**{name: value})).eval(), torch.randn(2, 3, 24, 16)
    program = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(program(images), model(images))
    with torch.autocast("cpu", torch.bfloat16):
        half = model(images)
    torch.testing.assert_close(half.float(), model(images), rtol=0.1, atol=0.05)


def test_a_depthwise_feed_forward_whose_convolution_is_zero_is_a_plain_one():
    deep, plain = DepthwiseFeedForward(16, 32, Grid(3, 5, prefix=1)), FeedForward(16, 32, "gelu")
    plain.load_state_dict({name: tensor for name, tensor in deep.state_dict().items() if "conv" not in name})
    torch.nn.init.zeros_(deep.conv.weight)
    x = torch.randn(2, 16, 16)
    torch.testing.assert_close(deep(x), plain(x))


def test_a_patch_sees_its_eight_neighbors_and_a_class_token_nobody():
    feed = DepthwiseFeedForward(16, 32, Grid(4, 5, prefix=1))
    x = torch.randn(1, 21, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(feed(x)[0, 1 + 1 * 5 + 2].sum(), x, retain_graph=True)
    seen = gradient[0, 1:].abs().sum(-1).unflatten(0, (4, 5)) > 0
    expected = torch.zeros(4, 5, dtype=torch.bool)
    expected[0:3, 1:4] = True
    assert torch.equal(seen, expected) and gradient[0, 0].abs().sum() == 0
    (gradient,) = torch.autograd.grad(feed(x)[0, 0].sum(), x)
    assert gradient[0, 1:].abs().sum() == 0


def test_nine_products_are_the_convolution():
    x, weight, bias = torch.randn(2, 3, 4, 6).double(), torch.randn(6, 1, 3, 3).double(), torch.randn(6).double()
    expected = conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=1, groups=6).permute(0, 2, 3, 1)
    torch.testing.assert_close(shifted_products(x, weight, bias), expected)


def test_a_sequence_pool_without_preference_is_the_average():
    pool, patches = SequencePool(8), torch.randn(2, 5, 8)
    torch.nn.init.zeros_(pool.score.weight)
    torch.testing.assert_close(pool(patches), patches.mean(1))


def test_layer_scale_of_nearly_zero_makes_blocks_the_identity():
    model = build(spec_with(layer_scale=1e-9))
    x = torch.randn(2, 24, 32)
    torch.testing.assert_close(model.blocks[1](x), x)


@pytest.mark.parametrize(("stem", "share"), [("conv", 0.5), ("strided", 0.5), ("residual", 0.9), ("shifted", 0.5)])
def test_a_token_sees_beyond_its_patch_but_not_the_whole_image(stem, share):
    model = build(spec_with(stem=stem)).eval()
    images = torch.randn(1, 3, 24, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.patch_embed(images)[0, 2 * 4 + 1].sum(), images)
    rows, columns = gradient[0].abs().sum(0).nonzero(as_tuple=True)
    assert rows.min() < 8 <= 11 < rows.max() + 1 and columns.min() < 4
    assert len(rows) < share * 24 * 16


def test_a_convolutional_stem_needs_a_patch_that_is_a_power_of_two():
    with pytest.raises(SoftbiasError, match="patch_size"):
        spec_with(stem="conv", patch_size=(3, 3), img_size=(24, 24))


@pytest.mark.parametrize("patch", [2, 3, 4, 6, 8, 12, 24])
@pytest.mark.parametrize("stem", ["strided", "residual"])
def test_these_stems_take_every_square_patch_and_their_tokens_overlap(stem, patch):
    model = build(spec_with(stem=stem, patch_size=patch, img_size=(48, 24))).eval()
    tokens = model.patch_embed(torch.randn(2, 3, 48, 24))
    assert tokens.shape == (2, 48 // patch * (24 // patch), 32) and tokens.is_contiguous()
    images = torch.randn(1, 3, 48, 24, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.patch_embed(images)[0, 24 // patch].sum(), images)
    assert gradient[0, :, patch - 1].abs().sum() > 0 < gradient[0, :, patch : 2 * patch].abs().sum()


@pytest.mark.parametrize("stem", ["strided", "residual"])
def test_these_stems_need_square_patches(stem):
    for patch in ((4, 8), (1, 1)):
        with pytest.raises(SoftbiasError, match="patch_size"):
            spec_with(stem=stem, patch_size=patch, img_size=(24, 24))


def test_a_residual_block_without_its_branch_is_its_shortcut():
    block = ResidualBlock(8, 8, 1).eval()
    torch.nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, 8, 4, 6)
    torch.testing.assert_close(block(x), x.relu())
    wider = ResidualBlock(8, 16, 2).eval()
    torch.nn.init.zeros_(wider.norm2.weight)
    torch.testing.assert_close(wider(x), wider.shortcut(x).relu())
    assert wider(x).shape == (2, 16, 2, 3)


def test_muon_trains_the_convolutions_of_a_residual_stem():
    model = build(spec_with(stem="residual", patch_size=8))
    chosen = {name for name, parameter in model.named_parameters() if is_for_muon(name, parameter)}
    convolutions = {name for name, parameter in model.patch_embed.named_parameters(prefix="patch_embed") if parameter.ndim == 4}
    assert convolutions <= chosen and len(convolutions) == 7


def test_a_new_head_may_have_another_pool():
    model = build(spec_with(pool="sequence"))
    model.reset_classifier(3, "avg")
    assert model.pool is None and model(torch.randn(1, 3, 24, 16)).shape == (1, 3)
    model.reset_classifier(4, "sequence")
    assert model.pool is not None and model(torch.randn(1, 3, 24, 16)).shape == (1, 4)
