"""inspect: maps from our models, timm's and Hugging Face's, and never an empty answer."""

import pytest
import timm
import torch
from torch import nn

from softbias import convert, create_model, inspect, list_models
from softbias.attention import NoAttentionMapError
from softbias.grid import Grid


def images(size: int = 32, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [name for name in list_models("*_nano") if not name.startswith(("resnet", "dwconv", "dwnet"))])
def test_logits_and_maps_are_those_of_the_run(name):
    model = create_model(name).double().eval()
    x = images().double()
    captured = {}
    for index, block in enumerate(model.blocks):
        block.attn.register_forward_pre_hook(lambda _, args, index=index: captured.__setitem__(index, args[0]))
    seen = inspect(model, x)
    assert torch.equal(seen.logits, model(x))
    assert sorted(seen.maps) == list(range(len(model.blocks)))
    for index, attention in seen.maps.items():
        torch.testing.assert_close(attention, model.blocks[index].attn.attention_map(captured[index]))
        assert len(seen.grid[index]) == attention.shape[-1]


def test_only_the_asked_layers_leave_the_fused_path():
    model = create_model("deit_nano")
    calls = []
    for index, block in enumerate(model.blocks):
        original = block.attn.attention_map
        block.attn.attention_map = lambda x, original=original, index=index: calls.append(index) or original(x)
    inspect(model, images(), layers=[2])
    assert calls == [2]


def test_hooks_are_gone_afterwards_even_after_an_error():
    model = create_model("deit_nano")
    with pytest.raises(ValueError, match="takes images"):
        inspect(model, images(33))
    inspect(model, images())
    assert not any(module._forward_hooks for module in model.modules())


def test_gradients_flow_through_maps():
    model = create_model("convit_nano")
    inspect(model, images(), layers=1).maps[1].square().sum().backward()
    assert model.blocks[1].attn.gate.grad.abs().max() > 0


def test_layers_count_from_zero_and_from_the_end():
    model = create_model("deit_nano")
    assert list(inspect(model, images(), layers=-1).maps) == [3]
    with pytest.raises(ValueError, match="layers 0 to 3, but layer 4"):
        inspect(model, images(), layers=[4])


def test_a_layer_without_a_map_is_an_error_that_names_those_with_one():
    mixed = create_model("dwconv_nano")
    with pytest.raises(NoAttentionMapError, match="no layer of dwconv_nano"):
        inspect(mixed, images())
    with pytest.raises(NoAttentionMapError, match=r"layer 1 .* has no map"):
        inspect(mixed, images(), layers=1)


@pytest.mark.parametrize(
    "model", [create_model("resnet_nano"), nn.Linear(2, 2), timm.create_model("mixer_s32_224", img_size=64)]
)
def test_models_without_attention_raise_instead_of_returning_nothing(model):
    with pytest.raises(NoAttentionMapError, match="no attention maps that softbias can read"):
        inspect(model, images(64))


def test_wrapped_models_are_seen_through():
    model = create_model("deit_nano").eval()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(inspect(compiled, images()).maps[0], inspect(nn.DataParallel(model), images()).maps[0])


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("vit_tiny_patch16_224", 1),
        ("deit_tiny_patch16_224", 1),
        ("deit_tiny_distilled_patch16_224", 2),
        ("vit_base_patch16_rpn_224", 0),
    ],
)
def test_timms_vits_give_the_map_their_fused_attention_uses(name, prefix):
    model = timm.create_model(name, img_size=64, depth=2).double().eval()
    assert model.blocks[0].attn.fused_attn
    seen = inspect(model, images(64).double())
    assert seen.grid[0] == Grid(4, 4, prefix)
    attention = model.blocks[1].attn
    tokens = {}
    attention.register_forward_hook(lambda _, args, out: tokens.update(x=args[0], out=out))
    model(images(64).double())
    v = attention.qkv(tokens["x"]).reshape(2, 16 + prefix, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)[2]
    expected = attention.proj((seen.maps[1] @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(tokens["out"], expected)


def test_timms_convit_changes_grid_where_the_class_token_joins():
    model = timm.create_model("convit_tiny", img_size=32, patch_size=4).eval()
    seen = inspect(model, images())
    assert seen.grid[9] == Grid(8, 8) and seen.grid[10] == Grid(8, 8, 1) and len(seen.maps) == 12


def test_a_timm_model_with_another_attention_is_refused():
    with pytest.raises(NoAttentionMapError):
        inspect(timm.create_model("eva02_tiny_patch14_224", img_size=28), images(28))


def test_hugging_faces_vit_under_its_default_fused_attention(tmp_path, hugging_face_vit):
    model = hugging_face_vit(3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64).eval()
    assert model.config._attn_implementation == "sdpa"
    seen = inspect(model, images())
    eager = type(model)._from_config(model.config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    reference = eager(images(), output_attentions=True)
    torch.testing.assert_close(seen.logits, reference.logits, atol=1e-5, rtol=1e-5)
    for layer in (0, 1):
        torch.testing.assert_close(seen.maps[layer], reference.attentions[layer], atol=1e-5, rtol=1e-5)
    assert seen.grid[0] == Grid(4, 4, 1)

    model.save_pretrained(tmp_path)
    ours = create_model(f"hf:{tmp_path}").eval()
    torch.testing.assert_close(ours(images()), seen.logits)
    torch.testing.assert_close(inspect(ours, images()).maps[1], seen.maps[1])
    assert create_model(f"hf:{tmp_path}", num_classes=7)(images()).shape == (2, 7)


def test_hugging_face_folders_that_cannot_be_read_say_why(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=r"no config\.json"):
        create_model(f"hf:{tmp_path}")


def test_a_converted_timm_model_shows_our_maps():
    model = convert(timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2), 0, "masked", norm="softmax")
    assert inspect(model, images(64)).maps[0].shape == (2, 3, 17, 17)
