"""convert: another mechanism, the same learned projections."""

import pytest
import timm
import torch

from softbias import convert, create_model, inspect


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
