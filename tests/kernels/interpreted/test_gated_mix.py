"""The gated mixture, run by Triton's interpreter, against the definition in float64. (Its products know no bfloat16.)"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from softbias.attention import Gated
from softbias.attention.positional import PositionBias
from softbias.grid import Grid
from softbias.kernels import gated
from softbias.kernels.operation import Run, eager, version

ALLOWED = {torch.float32: 3e-6, torch.float16: 2e-3}
SHAPES = {  # images, heads, height, width, channels
    "32 px": (3, 4, 8, 8, 48),
    "224 px": (1, 2, 14, 14, 48),
    "oblong": (2, 2, 5, 7, 48),
    "narrow": (5, 1, 5, 7, 16),
    "eight more channels": (3, 2, 6, 6, 56),
    "wide": (2, 1, 3, 4, 128),
}
LAYOUTS = {"by tokens": (0, 2, 1, 3), "by heads": (0, 1, 2, 3), "scattered channels": (0, 1, 3, 2)}
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs_of(shape, dtype: torch.dtype = torch.float32, layout: str = "by tokens", gate: float | None = None) -> Inputs:
    """Content as attention may lay it out, values as a view of the projection, and a bump per head."""
    torch.manual_seed(0)
    images, heads, height, width, channels = shape
    v = torch.randn(images, height * width, 3, heads, channels).to(dtype).permute(2, 0, 3, 1, 4)[2]
    order = LAYOUTS[layout]
    content_out = torch.randn(images, heads, height * width, channels).to(dtype)
    content_out = content_out.permute(order).contiguous().permute(*(order.index(axis) for axis in range(4)))
    weight = torch.randn(heads, 3) * 0.5 - torch.tensor([0.0, 0.0, 0.6])
    gates = torch.randn(heads) if gate is None else torch.full((heads,), gate)
    parts = content_out, v, weight, torch.randn(heads), gates
    return tuple(x.detach().requires_grad_() for x in parts)  # type: ignore[return-value]


def exact(inputs: Inputs, grid: Grid) -> Tensor:
    """The definition, from the layer's own parts and without the kernels' module."""
    content_out, v, weight, bias, gate = inputs
    bias_of_heads = PositionBias(len(weight), grid, 1.0, [(0, 0)] * len(weight), bias=True).double()
    position_out = functional_call(bias_of_heads, {"weight": weight, "bias": bias}, v)
    g = gate.sigmoid()[:, None, None]
    return ((1 - g) * content_out + g * position_out).transpose(1, 2)


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def require_the_definition(inputs: Inputs, grid: Grid, dtype: torch.dtype, mix: Run = gated.mix) -> None:
    found = mix(*inputs, grid.height, grid.width)[0]
    seed = torch.randn(found.shape).to(dtype)
    gradients = torch.autograd.grad(found, inputs, seed)
    references = tuple(x.detach().double().requires_grad_() for x in inputs)
    wanted = exact(references, grid)  # type: ignore[arg-type]
    assert found.dtype == dtype and found.is_contiguous()
    assert off(found, wanted) < ALLOWED[dtype]
    into = dict(zip(("content", "values", "weight", "bias", "gate"), references, strict=True))
    expected = torch.autograd.grad(wanted, references, seed.double())
    for name, x, gradient, reference in zip(into, inputs, gradients, expected, strict=True):
        assert gradient.dtype == x.dtype and gradient.shape == x.shape
        if name == "bias":
            assert gradient.abs().max() == 0
        else:
            assert off(gradient, reference) < ALLOWED[dtype], name


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_the_mixture_and_its_gradients_are_those_of_the_definition(shape, dtype) -> None:
    require_the_definition(inputs_of(shape, dtype), Grid(shape[2], shape[3]), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_content_and_values_may_lie_in_memory_in_any_order(layout) -> None:
    shape = SHAPES["oblong"]
    content_out, v, *others = inputs_of(shape, layout=layout)
    require_the_definition((content_out, v, *others), Grid(5, 7), torch.float32)
    other = torch.empty_like(content_out).copy_(v.detach()).requires_grad_()  # values laid out as the content is
    require_the_definition((content_out, other, *others), Grid(5, 7), torch.float32)
    dcontent_out, dv, *_ = torch.autograd.grad(gated.gated_mix(content_out, v, *others, 5, 7).sum(), (content_out, v, *others))
    if layout != "scattered channels":
        assert dcontent_out.stride() == content_out.stride()
    assert dv.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("gate", [-8.0, 8.0])
def test_a_gate_that_is_nearly_shut_or_open_keeps_its_gradients(gate) -> None:
    shape = SHAPES["oblong"]
    require_the_definition(inputs_of(shape, gate=gate), Grid(5, 7), torch.float32)


def test_a_very_strong_position_overflows_nowhere() -> None:
    content_out, v, _, bias, gate = inputs_of(SHAPES["oblong"])
    sharp = torch.tensor([[2000.0, 0.0, -1000.0]] * 2).requires_grad_()  # one patch to the right
    found = gated.gated_mix(content_out, v, sharp, bias, torch.full_like(gate, 50.0), 5, 7)
    torch.testing.assert_close(found.transpose(1, 2)[:, :, :6], v[:, :, 1:7])
    for gradient in torch.autograd.grad(found.sum(), (content_out, v, sharp)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("entries", [8, 16, 2048], ids=["one at a time", "two at a time", "all at once"])
def test_gradients_sum_all_parts_of_the_batch(entries) -> None:
    rows = replace(gated.GatedMix.rows, size=entries)
    mix = eager(gated.GatedMix(programs=3, rows=rows))  # 11 images in parts of four, the last of them short
    shape = (11, 1, 3, 4, 48)
    require_the_definition(inputs_of(shape), Grid(3, 4), torch.float32, mix)


def test_the_same_bits_come_out_twice() -> None:
    inputs = inputs_of(SHAPES["32 px"], torch.float16)
    seed = torch.randn(3, 64, 4, 48).half()
    first, second = (torch.autograd.grad(gated.gated_mix(*inputs, 8, 8), inputs, seed) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_twin_is_the_definition() -> None:
    inputs = tuple(x.detach().double().requires_grad_() for x in inputs_of(SHAPES["oblong"]))
    found, wanted = gated.plain_gated_mix(*inputs, 5, 7), exact(inputs, Grid(5, 7))  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted)
    for a, b in zip(*(torch.autograd.grad(x.sin().sum(), inputs) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b)


def test_parameters_may_be_in_half_precision_too() -> None:
    inputs = tuple(x.detach().half().requires_grad_() for x in inputs_of(SHAPES["narrow"]))
    require_the_definition(inputs, Grid(5, 7), torch.float16)  # type: ignore[arg-type]


@pytest.fixture
def as_on_a_card(monkeypatch) -> list:
    """The layer takes the kernel for CPU tensors, in the interpreter. Returns (tokens, channels) of every request."""
    asked: list = []

    def usable(tensor, tokens, channels, longest, widest=64) -> bool:
        asked.append((tokens, channels))
        return tokens <= longest

    monkeypatch.setattr("softbias.kernels.dispatch.usable", usable)
    return asked


def test_the_layer_with_its_kernel_equals_its_definition(as_on_a_card) -> None:
    torch.manual_seed(0)
    layer = Gated(64, 4, Grid(9, 8))
    x = torch.randn(2, 72, 64, requires_grad=True)
    found, wanted = layer(x), layer.by_definition(x)
    assert as_on_a_card == [(72, 16), (72, 16)]  # the sequence is too long for the short_seq kernel
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(layer(x), found)
    into = [x, *layer.parameters()]
    for a, b in zip(torch.autograd.grad(found.sin().sum(), into), torch.autograd.grad(wanted.sin().sum(), into), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_wider_values_ride_along_and_odd_ones_go_the_plain_way(as_on_a_card) -> None:
    torch.manual_seed(0)
    layer = Gated(64, 4, Grid(3, 4))
    x = torch.randn(2, 12, 64)
    q, k, v = layer.project(x)
    maps = layer.attention_map(x)
    for more in (8, 3):
        wider = torch.cat([v, torch.randn(2, 4, 12, more)], -1)
        torch.testing.assert_close(layer.attend(q, k, wider), maps @ wider, rtol=1e-5, atol=1e-6)
    assert as_on_a_card == [(12, 24)]


def test_with_a_prefix_token_the_layer_goes_the_plain_way(as_on_a_card) -> None:
    layer = Gated(64, 4, Grid(3, 4, prefix=1), prefix="content")
    x = torch.randn(2, 13, 64)
    torch.testing.assert_close(layer(x), layer.by_definition(x), rtol=1e-5, atol=1e-6)
    assert not as_on_a_card


def test_the_operator_is_registered_as_torch_wants_it() -> None:
    operator = getattr(torch.ops.softbias, f"gated_mix_{version()}")
    torch.library.opcheck(operator.default, (*inputs_of((2, 2, 3, 4, 16)), 3, 4))


def test_a_compiled_function_takes_it_as_one_graph() -> None:
    def function(*inputs: Tensor) -> Tensor:
        return gated.gated_mix(*inputs, 3, 4).flatten(2).sin().sum()

    inputs, results = inputs_of((2, 2, 3, 4, 16)), []
    for form in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        results.append(torch.autograd.grad(form(*inputs), inputs))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


WRONG = {
    "shapes": ({"v": torch.zeros(2, 2, 11, 16)}, r"one shape .*but got \(2, 2, 12, 16\).*\(2, 2, 11, 16\)"),
    "types": ({"v": torch.zeros(2, 2, 12, 16).half()}, "one type, .*float16"),
    "grid": ({"height": 4}, "12 tokens on 4 × 4"),
    "weight": ({"weight": torch.zeros(3, 3)}, r"weight \(2, 3\).*but got \(3, 3\)"),
    "channels": (
        {"content_out": torch.zeros(2, 2, 12, 12), "v": torch.zeros(2, 2, 12, 12)},
        "multiple of 8 channels.*but got 12",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=list(WRONG))
def test_what_it_cannot_take_is_refused_by_name(changes, message) -> None:
    names = ("content_out", "v", "weight", "bias", "gate")
    given = dict(zip(names, inputs_of((2, 2, 3, 4, 16)), strict=True)) | {"height": 3, "width": 4}
    with pytest.raises(ValueError, match=message):
        gated.gated_mix(**(given | changes))
