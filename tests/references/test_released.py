"""ConViT, IBiT and ARViT as released: our logits and gradients are those of their formulas, from weights with their names."""

from __future__ import annotations

import argparse

import pytest
import torch
from torch import Tensor, nn

from softbias import create_model, load, load_weights, resize, save
from softbias.errors import SoftbiasError
from softbias.models.cost import count_parameters
from softbias.models.layers import DropPath
from softbias.models.presets import preset_spec
from softbias.models.releases import channel_order
from softbias.models.weights import check_fit

from .released_formulas import arvit, arvit_shapes, convit, convit_shapes, ibit, ibit_shapes, random_weights

SIDE, PATCH, CLASSES = 6, 4, 5
EXACT = {"atol": 1e-10, "rtol": 1e-10}


def images(count: int = 3) -> Tensor:
    side = SIDE * PATCH
    return torch.randn(count, 3, side, side, dtype=torch.double, generator=torch.Generator().manual_seed(7))


def build(name: str, **options) -> nn.Module:
    return create_model(name, CLASSES, SIDE * PATCH, patch_size=PATCH, dtype=torch.double, **options)


def require_same(model: nn.Module, expected: Tensor, found: Tensor, weights: dict[str, Tensor], names: dict[str, str]) -> None:
    """Logits, and the gradients of some weights whose shape is the same: our name -> the release's."""
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, **EXACT)
    gradients = torch.autograd.grad(expected.sin().sum(), [weights[name] for name in names.values()])
    own = torch.autograd.grad(found.sin().sum(), [model.get_parameter(name) for name in names])
    for one, other in zip(own, gradients, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(one.reshape(other.shape), other, atol=1e-9, rtol=1e-9)


def learnable(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: tensor.requires_grad_() for name, tensor in random_weights(shapes).items()}


@pytest.mark.parametrize("gated", [0, 1, 3])
def test_convit_is_its_release(gated):
    """With no gated block the class token joins at the input, and has no position."""
    weights = learnable(convit_shapes(16, 4, 4, gated, PATCH, SIDE, CLASSES))
    model = load_weights(build("convit_tiny", width=16, heads=4, depth=4, gated_blocks=gated), weights).eval()
    expected = convit(weights, images(), heads=4, gated=gated, blocks=4)
    names = {"cls_token": "cls_token", "pos_embed": "pos_embed", "blocks.3.attn.qkv.weight": "blocks.3.attn.qkv.weight"}
    if gated:
        names |= {
            "blocks.0.attn.gate": "blocks.0.attn.gating_param",
            "blocks.0.attn.position.weight": "blocks.0.attn.pos_proj.weight",
        }
    require_same(model, expected, model(images()), weights, names)


def test_convit_without_gated_blocks_has_the_size_and_the_initial_weights_of_the_original():
    shapes = convit_shapes(192, 4, 12, 0, 16, 14, 1000)
    torch.manual_seed(0)
    model = create_model("convit_tiny", gated_blocks=0)
    assert count_parameters(model) == sum(torch.empty(shape, device="meta").numel() for shape in shapes.values())
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and name != "patch_embed.proj.weight":
            assert abs(parameter.std().item() - 0.02) < 0.002 and abs(parameter.mean().item()) < 0.005, name
        elif name.endswith("bias") and name != "patch_embed.proj.bias":
            assert parameter.abs().max() == 0, name


def test_ibit_is_its_release():
    tokens = SIDE * SIDE + 1
    weights = learnable(ibit_shapes(12, 3, 3, 9, PATCH, tokens, CLASSES))
    state = dict(weights)
    state |= {f"CiTBlocks.{index}.attention.roll_back": torch.zeros(tokens, tokens, dtype=torch.long) for index in range(3)}
    model = load_weights(build("ibit_tiny", width=12, heads=3, depth=3, released=True), state).eval()
    expected = ibit(weights, images(), heads=3, blocks=3, patch=PATCH)
    names = {"blocks.1.attn.mask_a": "CiTBlocks.1.attention.mask1", "blocks.2.mlp.fc2.weight": "CiTBlocks.2.MLP.3.weight",
             "cls_token": "embedding", "patch_embed.proj.weight": "scale_up.1.weight"}  # fmt: skip
    require_same(model, expected, model(images()), weights, names)


def test_ibit_drops_a_tenth_of_the_attention_branches_in_every_block_while_training(monkeypatch):
    weights = random_weights(ibit_shapes(12, 3, 3, 9, PATCH, SIDE * SIDE + 1, CLASSES))
    model = load_weights(build("ibit_tiny", width=12, heads=3, depth=3, released=True), weights).train()
    assert [block.drop_path1.drop_prob for block in model.blocks] == [0.1] * 3
    assert all(isinstance(block.drop_path2, nn.Identity) for block in model.blocks)
    kept = iter([torch.tensor(row).double()[:, None, None] / 0.9 for row in ([1, 0, 1], [0, 1, 1], [1, 1, 0])])
    monkeypatch.setattr(DropPath, "forward", lambda self, x: x * next(kept))
    found = model(images())
    rows = [torch.tensor(row).double()[:, None, None] / 0.9 for row in ([1, 0, 1], [0, 1, 1], [1, 1, 0])]
    torch.testing.assert_close(found, ibit(weights, images(), heads=3, blocks=3, patch=PATCH, kept=rows.__getitem__), **EXACT)


def test_ibits_release_has_the_published_number_of_parameters():
    assert count_parameters(create_model("ibit_tiny", released=True, device="meta")) == 5_806_864
    shapes = ibit_shapes(192, 3, 12, 9, 16, 197, 1000)
    assert sum(torch.empty(shape, device="meta").numel() for shape in shapes.values()) == 5_806_864


def test_ibits_release_starts_from_pytorchs_own_weights():
    torch.manual_seed(0)
    model = create_model("ibit_tiny", released=True, depth=2)
    bound = 192**-0.5  # of nn.Linear: uniform within ±1 / √inputs
    assert 0.99 * bound < model.blocks[0].attn.qkv.weight.abs().max() <= bound
    assert model.blocks[0].attn.qkv.bias.abs().max() > 0.9 * bound and model.head.bias.abs().max() > 0.9 * bound
    assert 0.0005 < model.cls_token.std() < 0.002


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.5])
def test_arvit_is_its_release_in_training_and_without(drop):
    """The masks of dropout are PyTorch's own, drawn from the same seed in the same order."""
    weights = learnable(arvit_shapes(24, 3, PATCH, SIDE, CLASSES))
    state = weights | {"pos": torch.zeros(2, 24, SIDE, SIDE), "mask": torch.zeros(2, SIDE, SIDE, dtype=torch.bool)}
    model = load_weights(build("arvit_base", width=24, heads=2, depth=3, released=True, dropout=drop), state)
    names = {"blocks.1.attn.qkv.bias": "encoder.encoder.layers.1.self_attn.in_proj_bias",
             "blocks.2.mlp.fc1.bias": "encoder.encoder.layers.2.linear1.bias", "head.bias": "head.bias"}  # fmt: skip
    expected = arvit(weights, images(), heads=2, blocks=3)
    require_same(model.eval(), expected, model(images()), weights, names)
    torch.manual_seed(3)
    dropped = arvit(weights, images(), heads=2, blocks=3, drop=drop)
    torch.manual_seed(3)
    found = model.train()(images())
    assert torch.allclose(dropped, expected) == (drop == 0)
    require_same(model, dropped, found, weights, names)


def test_arvits_release_starts_from_glorots_weights():
    torch.manual_seed(0)
    model = create_model("arvit_base", 4, released=True)
    assert model.spec.norm_eps == 1e-5 and model.spec.layers[0].options == {"dropout": 0.1} and model.spec.dropout == 0.1
    block = model.blocks[3]
    for weight in (block.attn.qkv.weight, block.attn.proj.weight, block.mlp.fc1.weight, block.mlp.fc2.weight):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.999 * bound < weight.abs().max() <= bound and abs(weight.std().item() - bound / 3**0.5) < 0.02 * bound
    assert block.attn.qkv.bias.abs().max() == block.attn.proj.bias.abs().max() == 0 < block.mlp.fc1.bias.abs().max()
    assert 0.99 < model.head.weight.abs().max() * (516 * 256) ** 0.5 <= 1 + 1e-6, "the head as PyTorch starts it"
    model.reset_classifier(10)
    assert 0.99 < model.head.weight.abs().max() * (516 * 256) ** 0.5 <= 1 + 1e-6


def test_channels_of_arvit_are_a_permutation():
    assert sorted(channel_order(516)) == list(range(516))


def test_without_released_the_papers_models_are_as_they_were():
    spec = preset_spec("ibit_tiny")
    assert spec.final_norm and spec.drop_path_rule == "linear" and spec.norm_eps == 1e-6 and spec.initial == "normal"
    spec = preset_spec("arvit_base")
    assert spec.dropout == 0 and not spec.layers[0].options and spec.pre_norm


def test_a_training_checkpoint_with_the_options_of_its_script_is_read_without_running_it(tmp_path):
    weights = random_weights(convit_shapes(16, 4, 4, 2, PATCH, SIDE, CLASSES))
    options = argparse.Namespace(model="convit_tiny", lr=5e-4, data_path="/data", nested=argparse.Namespace(batch_size=64))
    path = tmp_path / "checkpoint.pth"
    torch.save({"model": weights, "optimizer": {"state": {0: {"step": 3}}}, "epoch": 299, "args": options}, path)
    model = load_weights(build("convit_tiny", width=16, heads=4, depth=4, gated_blocks=2), path).eval()
    torch.testing.assert_close(model(images()), convit(weights, images(), heads=4, gated=2, blocks=4), **EXACT)


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("inside", ["args", "model"])
@pytest.mark.parametrize("new_format", [True, False])
def test_code_in_a_checkpoint_is_neither_run_nor_recommended(tmp_path, inside, new_format):
    weights = random_weights(convit_shapes(16, 4, 4, 2, PATCH, SIDE, CLASSES))
    saved = {"model": weights, inside: argparse.Namespace(evil=Evil(str(tmp_path / "ran")))}
    torch.save(saved, tmp_path / "a.pth", _use_new_zipfile_serialization=new_format)
    with pytest.raises(SoftbiasError) as caught:
        load_weights(build("convit_tiny", width=16, heads=4, depth=4, gated_blocks=2), tmp_path / "a.pth")
    assert not (tmp_path / "ran").exists()
    assert "a.pth" in str(caught.value) and "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value) and "safe_globals" not in str(caught.value)


def test_a_damaged_file_is_refused_in_a_line_of_our_own(tmp_path):
    for content in (b"", b"PK\x03\x04 nothing", b"\x80\x02}q\x00X\x01\x00", b"not a pickle"):
        (tmp_path / "a.pth").write_bytes(content)
        with pytest.raises(SoftbiasError) as caught:
            load_weights(build("convit_nano"), tmp_path / "a.pth")
        assert "a.pth" in str(caught.value) and "weights_only" not in str(caught.value)


def test_weights_of_a_release_in_the_papers_model_name_the_option(tmp_path):
    weights = random_weights(ibit_shapes(12, 3, 3, 9, PATCH, SIDE * SIDE + 1, CLASSES))
    with pytest.raises(SoftbiasError, match=r"IBiT.*released=True"):
        load_weights(build("ibit_tiny", width=12, heads=3, depth=3), weights)
    with pytest.raises(SoftbiasError, match=r"mask_a.*softbias\.resize"):
        load_weights(create_model("ibit_tiny", CLASSES, 32, patch_size=4, width=12, heads=3, depth=3, released=True), weights)
    del weights["CiTBlocks.1.attention.Linears.2.weight"]
    with pytest.raises(SoftbiasError, match=r"Linears\.2\.weight"):
        load_weights(build("ibit_tiny", width=12, heads=3, depth=3, released=True), weights)


def test_a_release_fits_by_its_shapes_alone_and_may_keep_another_head(tmp_path):
    size = {"patch_size": PATCH, "released": True}
    for name, shapes, options in (
        ("arvit_base", arvit_shapes(24, 3, PATCH, SIDE, CLASSES), {"width": 24, "heads": 2, "depth": 3}),
        ("ibit_tiny", ibit_shapes(12, 3, 3, 9, PATCH, SIDE * SIDE + 1, CLASSES), {"width": 12, "heads": 3, "depth": 3}),
    ):
        torch.save(random_weights(shapes), tmp_path / "a.pth")
        check_fit(tmp_path / "a.pth", name, options | size, SIDE * PATCH)
        model = create_model(name, 7, SIDE * PATCH, **options, **size)
        head = model.head.weight.clone()
        load_weights(model, tmp_path / "a.pth", keep_head=True)
        assert torch.equal(model.head.weight, head)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ibit_nano", {"released": True}), ("arvit_nano", {"released": True}), ("convit_nano", {"gated_blocks": 0})],
)
def test_a_released_model_is_saved_loaded_resized_exported_and_given_a_new_head(name, options, tmp_path):
    model = create_model(name, 5, 32, **options).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    logits = model(images)
    save(model, tmp_path)
    assert torch.equal(load(tmp_path)(images), logits)
    torch.testing.assert_close(resize(model, 32)(images), logits)
    larger = resize(model, (32, 48))
    assert larger(torch.randn(1, 3, 32, 48)).shape == (1, 5) and larger.spec.final_norm == model.spec.final_norm
    torch.testing.assert_close(torch.export.export(model, (images,)).module()(images), logits)
    model.reset_classifier(7)
    assert model(images).shape == (2, 7)


@pytest.mark.parametrize("name", ["convit_tiny", "ibit_tiny", "arvit_base"])
def test_at_its_published_size_a_model_is_its_release(name):
    shapes = {
        "convit_tiny": convit_shapes(192, 4, 12, 10, 16, 14, 1000),
        "ibit_tiny": ibit_shapes(192, 3, 12, 9, 16, 197, 1000),
        "arvit_base": arvit_shapes(516, 6, 16, 16, 4),
    }[name]
    weights = random_weights(shapes)
    options = {} if name == "convit_tiny" else {"released": True}
    model = load_weights(create_model(name, len(weights[[*weights][-1]]), dtype=torch.double, **options), weights).eval()
    x = torch.randn(1, 3, *model.spec.img_size, dtype=torch.double, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        if name == "convit_tiny":
            expected = convit(weights, x, heads=4, gated=10, blocks=12)
        elif name == "ibit_tiny":
            expected = ibit(weights, x, heads=3, blocks=12, patch=16)
        else:
            expected = arvit(weights, x, heads=12, blocks=6)
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(model(x), expected, **EXACT)
