"""Gated heads that compute a trained convolution: the same outputs, borders included, and a layer that learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import softbias
from softbias.attention import ConversionError
from softbias.errors import SoftbiasError
from softbias.models.convolution_heads import ConvolutionHeads

SIZE = (9, 12)
CONVOLUTIONS = {  # options of nn.Conv2d, and the heads and their channels
    "3x3": ((3, 8, 3), {"padding": 1}, 9, 3),
    "without padding or bias": ((3, 8, 3), {"bias": False}, 9, 3),
    "5x5 with gaps": ((3, 4, 5), {"padding": 4, "dilation": 2}, 25, 3),
    "one row": ((3, 4, (1, 5)), {"padding": (0, 2)}, 5, 3),
    "even": ((3, 4, 4), {"padding": 2}, 16, 3),
    "depth-wise": ((4, 4, 5), {"padding": 2, "groups": 4}, 25, 4),
    "two groups": ((4, 6, 3), {"padding": 1, "groups": 2}, 9, 4),
    "fewer outputs than inputs": ((8, 2, 3), {"padding": 1}, 9, 2),
    "stride 2, as resnets have it": ((3, 8, 7), {"padding": 3, "stride": 2, "bias": False}, 16, 8),
    "stride 3, sides that it does not divide": ((3, 5, 3), {"padding": 2, "stride": 3}, 1, 5),
    "patches of a transformer": ((3, 6, 3), {"stride": 3}, 1, 6),
    "reflected": ((3, 4, 3), {"padding": 1, "padding_mode": "reflect"}, 9, 3),
    "circular, same": ((3, 4, 3), {"padding": "same", "padding_mode": "circular"}, 9, 3),
    "replicated": ((3, 4, 5), {"padding": 2, "padding_mode": "replicate"}, 25, 3),
}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=CONVOLUTIONS, ids=lambda name: name)
def case(request):
    sizes, options, heads, head_width = CONVOLUTIONS[request.param]
    torch.manual_seed(0)
    return nn.Conv2d(*sizes, **options).double(), heads, head_width


def test_heads_compute_what_the_convolution_computes_at_every_pixel(case):
    conv, heads, head_width = case
    x = noise(2, conv.in_channels, *SIZE)
    made = ConvolutionHeads.of(conv, SIZE)
    assert (made.heads, made.head_width) == (heads, head_width)
    torch.testing.assert_close(made(x), conv(x), rtol=0, atol=1e-7)
    sharp = ConvolutionHeads.of(conv, SIZE, strength=40.0)
    torch.testing.assert_close(sharp(x), conv(x), rtol=0, atol=1e-13)


def test_forward_is_the_map_applied_to_the_values_also_where_content_counts(case):
    conv, *_ = case
    made, x = ConvolutionHeads.of(conv, SIZE, strength=2.0), noise(2, conv.in_channels, *SIZE)
    with torch.no_grad():
        made.gate.copy_(noise(made.heads, seed=1))
    seen, v = made.attention_map(x), made.project(x)[-1]
    torch.testing.assert_close(seen.sum(-1), torch.ones_like(seen[..., 0]))
    whole = made.proj((seen @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(made(x), made.cut(made.grid.as_image(whole)))


def test_a_finite_strength_leaves_the_share_to_neighbors_that_the_docstring_states():
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 8, 3, padding=1).double(), noise(2, 3, *SIZE)
    for strength in (6.0, 10.0, 14.0):
        made = ConvolutionHeads.of(conv, SIZE, strength=strength)
        tap = made.bias_map()[4, made.grid.width + 3, made.grid.width + 3]  # the middle tap, of an inner token
        assert 1 - tap.item() == pytest.approx(4 * math.exp(-strength), rel=0.02)
        error = (made(x) - conv(x)).abs().max().item()
        assert 0.5 * math.exp(-strength) < error < 40 * math.exp(-strength)


def test_content_never_sees_padding_of_zeros():
    conv = nn.Conv2d(3, 4, 3, padding=1).double()
    made = ConvolutionHeads.of(conv, SIZE)
    with torch.no_grad():
        made.gate.zero_()
    seen = made.attention_map(noise(1, 3, *SIZE))[0].unflatten(-1, (made.grid.height, made.grid.width))
    assert seen[..., 0, :].max() == seen[..., -1, :].max() == seen[..., :, 0].max() == seen[..., :, -1].max() == 0
    assert seen[..., 1:-1, 1:-1].min() > 0


def test_taps_that_are_zero_get_no_head():
    conv = nn.Conv2d(3, 4, 3, padding=1).double()
    with torch.no_grad():
        conv.weight[:, :, 0] = 0
        conv.weight[:, :, 2] = 0
    made, x = ConvolutionHeads.of(conv, SIZE), noise(2, 3, *SIZE)
    assert made.heads == 3
    centers = [row["value"] for row in made.bias_rows() if row["measure"] == "center_column"]
    assert centers == [-1, 0, 1]
    torch.testing.assert_close(made(x), conv(x), rtol=0, atol=1e-7)
    nn.init.zeros_(conv.weight)
    torch.testing.assert_close(ConvolutionHeads.of(conv, SIZE)(x), conv(x))


def test_gates_positions_and_content_learn():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding=1)
    made, x = ConvolutionHeads.of(conv, 6), torch.randn(8, 3, 6, 6)
    start = {name: tensor.detach().clone() for name, tensor in made.named_parameters()}
    farthest = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    optimizer, labels = torch.optim.AdamW(made.parameters(), lr=1e-2), torch.arange(8) % 4
    first = None
    for _ in range(12):
        optimizer.zero_grad()
        loss = cross_entropy(made(x).mean((2, 3)), labels)
        first = loss.item() if first is None else first
        loss.backward()
        optimizer.step()
        for name, tensor in made.named_parameters():
            farthest[name] = torch.maximum(farthest[name], (tensor.detach() - start[name]).abs())
    assert loss.item() < first
    assert farthest["gate"].min() > 1e-4, "every head"
    assert farthest["position.weight"].amax(-1).min() > 1e-4, "every head"
    assert farthest["qkv.weight"].amax(-1).min() > 1e-4, "every row of queries, keys and values"


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("resnet_nano", ["conv1"]),
        ("resnet_nano", ["layer1.0.conv1", "layer2.0.conv1"]),
        ("dwconv_nano", ["blocks.0.attn.mix", "blocks.3.attn.mix"]),
        ("soft_nano", ["patch_embed.stages.0", "patch_embed.stages.4.conv1"]),
    ],
    ids=["a stem", "inner layers", "depth-wise mixers", "the stem of a transformer"],
)
def test_a_model_with_heads_instead_of_its_convolutions_computes_the_same(model, names):
    torch.manual_seed(0)
    given = (
        softbias.create_model(model, 5, 16, **({"start_closed": False} if model == "resnet_nano" else {"patch_size": 4}))
        .double()
        .eval()
    )
    converted, x = softbias.convert_convolutions(given, names, 16), noise(2, 3, 16, 16)
    torch.testing.assert_close(converted(x), given(x), rtol=0, atol=1e-6)
    made = dict(converted.named_modules())
    assert all(isinstance(made[name], ConvolutionHeads) for name in names)
    assert not any(isinstance(module, ConvolutionHeads) for module in given.modules()), "the model itself stays as it is"
    assert not converted.training
    converted(x).sum().backward()
    assert all(made[name].gate.grad.abs().min() > 0 for name in names)


def test_what_cannot_be_converted_is_refused_by_name(tmp_path):
    model = softbias.create_model("resnet_nano", 5, 16)
    with pytest.raises(ConversionError, match=r"no convolution named 'conv9', but conv1"):
        softbias.convert_convolutions(model, ["conv9"], 16)
    with pytest.raises(ConversionError, match="Linear"):
        ConvolutionHeads.of(nn.Linear(3, 3), 8)
    with pytest.raises(ConversionError, match="stride"):
        ConvolutionHeads.of(nn.Conv2d(3, 3, 3, stride=(1, 2)), 8)
    with pytest.raises(ConversionError, match="50,176 tokens"):
        ConvolutionHeads.of(nn.Conv2d(3, 3, 3), 224)
    with pytest.raises(ConversionError, match="does not fit"):
        ConvolutionHeads.of(nn.Conv2d(3, 3, 7), 5)
    with pytest.raises(SoftbiasError, match="strength=0"):
        ConvolutionHeads.of(nn.Conv2d(3, 3, 3), 8, strength=0)
    with pytest.raises(SoftbiasError, match="for that size"):
        ConvolutionHeads.of(nn.Conv2d(3, 3, 3), 8)(torch.zeros(1, 3, 9, 9))
    with pytest.raises(SoftbiasError, match="convert_convolutions"):
        softbias.save(softbias.convert_convolutions(model, ["conv1"], 16), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
