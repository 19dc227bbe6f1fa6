"""convert: another mechanism, the same learned projections."""

from pathlib import Path

import pytest
import timm
import torch

from softbias import convert, create_model, inspect, load_weights

DEIT_TINY = Path(__file__).resolve().parents[3] / "shared" / "weights" / "deit_tiny_patch16_224.safetensors"


def test_closed_gates_leave_a_converted_model_as_it_was():
    model = create_model("deit_nano", heads=4).double().eval()
    converted = convert(model, [0, 2], "gated", gate=-60.0)
    x = torch.randn(2, 3, 32, 32).double()
    torch.testing.assert_close(converted(x), model(x))
    assert converted.spec.describe_layers() == "4 × gated / full"
    assert model.spec.describe_layers() == "4 × full"


def test_a_mask_of_ones_leaves_timms_vit_as_it_was():
    model = timm.create_model("vit_tiny_patch16_224", img_size=64).double().eval()
    converted = convert(model, range(12), "masked", kernel="ones", rank=1, norm="softmax")
    x = torch.randn(2, 3, 64, 64).double()
    torch.testing.assert_close(converted(x), model(x))
    assert set(inspect(converted, x, layers=[0, -1]).maps) == {0, 11}


@pytest.mark.parametrize("heads", [3, 4])
@pytest.mark.parametrize("attention", ["gated", "masked"])
def test_a_converted_model_computes_the_same_and_its_bias_learns(attention, heads):
    torch.manual_seed(0)
    model = create_model("deit_nano", heads=heads, width=48, num_classes=5).double().eval()
    converted = convert(model, range(3), attention)  # in the last block only the class token counts, which has no position
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(converted(x), model(x), rtol=0, atol=1e-6)

    start = {name: tensor.detach().clone() for name, tensor in converted.named_parameters()}
    farthest = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    optimizer, labels = torch.optim.AdamW(converted.parameters(), lr=1e-4), torch.arange(8) % 5
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(converted(x), labels).backward()
        optimizer.step()
        for name, tensor in converted.named_parameters():
            farthest[name] = torch.maximum(farthest[name], (tensor.detach() - start[name]).abs())  # it may come back
    for name, moved in farthest.items():
        if name.endswith("attn.gate"):
            assert moved.min() > 1e-5, name  # every head
        elif "attn.mask" in name:
            assert moved.amax(-1).min() > 1e-5, name  # every rank of every head
        elif name.endswith("attn.position.weight"):
            assert moved.amax(-1).min() > 1e-7, name


def test_a_timm_model_of_three_heads_keeps_its_function():
    model = timm.create_model("vit_tiny_patch16_224", img_size=64).double().eval()
    x = torch.randn(2, 3, 64, 64).double()
    torch.testing.assert_close(convert(model, range(12), "gated")(x), model(x))
    torch.testing.assert_close(convert(model, range(12), "masked")(x), model(x), rtol=0, atol=1e-6)


@pytest.mark.skipif(not DEIT_TINY.is_file(), reason="the pretrained weights are not here")
@pytest.mark.parametrize("attention", ["gated", "masked"])
def test_real_pretrained_weights_keep_their_function(attention):
    model = load_weights(create_model("deit_tiny"), DEIT_TINY).double().eval()
    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)).double()
    with torch.inference_mode():
        torch.testing.assert_close(convert(model, range(11), attention)(x), model(x), rtol=0, atol=1e-6)


def test_attention_that_is_not_full_is_replaced_with_the_options_of_the_mechanism():
    converted = convert(create_model("window_nano"), 0, "masked")
    assert converted.blocks[0].attn.norm == "frobenius"


def test_a_converted_block_looks_where_its_mechanism_looks():
    converted = convert(create_model("deit_nano"), 1, "window", window=2)
    attention = inspect(converted, torch.randn(1, 3, 32, 32), layers=1).maps[1][0, 0]
    assert attention[1, 1 + 5] == 0 and attention[1, 1 + 9] > 0  # outside and inside the top left 2 × 2 block
    assert attention[0].min() > 0  # the class token sees all


def test_a_converted_model_can_be_saved_and_trained(tmp_path):
    from softbias import load, save

    converted = convert(create_model("deit_nano"), [0, 1], "masked").eval()
    x = torch.randn(2, 3, 32, 32)
    save(converted, tmp_path)
    torch.testing.assert_close(load(tmp_path)(x), converted(x))
    converted.train()(x).sum().backward()
    assert converted.blocks[0].attn.mask_a.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("blocks", "attention", "options", "message"),
    [
        ([4], "gated", {}, "blocks 0 to 3, but block 4"),
        ([0], "gatd", {}, "did you mean 'gated'"),
        ([0], "gated", {"strenght": 1}, "did you mean 'strength'"),
        ([0], "dwconv", {}, "join at a later block"),
    ],
)
def test_what_cannot_be_converted_says_why(blocks, attention, options, message):
    with pytest.raises(ValueError, match=message):
        convert(create_model("deit_nano"), blocks, attention, **options)


def test_a_convolution_has_no_queries_to_hand_over():
    with pytest.raises(ValueError, match=r"no weight 'q.weight'"):
        convert(create_model("dwconv_nano"), 0, "full")
