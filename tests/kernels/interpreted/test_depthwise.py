"""The depth-wise convolution between two GELUs, by Triton's interpreter, against plain PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softbias.grid import Grid
from softbias.kernels.depthwise import DepthwiseGelu, depthwise_gelu, plain_depthwise_gelu
from softbias.kernels.launching import Tiles
from softbias.kernels.operation import eager, version
from softbias.models.layers import DepthwiseFeedForward

ALLOWED = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
SHAPES = {  # images, prefix, height, width, channels
    "32 px": (1, 0, 8, 8, 64),
    "several programs, with a class token": (5, 1, 2, 3, 80),
    "strips": (1, 0, 3, 16, 16),
    "strips that do not fill the grid, two prefix tokens": (1, 2, 2, 19, 20),
    "one row": (2, 1, 1, 6, 16),
    "one column": (2, 0, 5, 1, 16),
    "one patch": (1, 0, 1, 1, 8),
}
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs_of(shape, dtype: torch.dtype = torch.float32) -> Inputs:
    torch.manual_seed(0)
    images, prefix, height, width, channels = shape
    x = torch.randn(images, prefix + height * width, channels).to(dtype)
    parameters = torch.randn(channels) / 2, torch.randn(channels, 1, 3, 3) / 3, torch.randn(channels) / 2
    return tuple(each.requires_grad_() for each in (x, *parameters))  # type: ignore[return-value]


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def require_the_definition(inputs: Inputs, height: int, width: int, run=depthwise_gelu) -> None:
    dtype = inputs[0].dtype
    found = run(*inputs, height, width)
    seed = torch.randn(found.shape).to(dtype)
    gradients = torch.autograd.grad(found, inputs, seed)
    references = tuple(x.detach().double().requires_grad_() for x in inputs)
    wanted = plain_depthwise_gelu(*references, height, width)
    assert found.is_contiguous() and found.dtype == dtype and off(found, wanted) < ALLOWED[dtype]
    expected = torch.autograd.grad(wanted, references, seed.double())
    for name, x, gradient, reference in zip(("x", "shift", "weight", "bias"), inputs, gradients, expected, strict=True):
        assert gradient.dtype == x.dtype and gradient.shape == x.shape
        assert off(gradient, reference) < ALLOWED[dtype], name


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_outputs_and_gradients_are_those_of_the_definition(shape) -> None:
    require_the_definition(inputs_of(shape), *shape[2:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_taken_too(dtype) -> None:
    require_the_definition(inputs_of((2, 1, 2, 5, 16), dtype), 2, 5)


def test_parameters_may_be_in_half_precision_too() -> None:
    require_the_definition(tuple(x.detach().half().requires_grad_() for x in inputs_of((2, 0, 2, 4, 16))), 2, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(("images", "depth"), [(1, 16), (2, 3), (3, 2), (4, 1)])
def test_every_way_to_cut_the_work_gives_the_same(images, depth) -> None:
    tiles = Tiles(size=16, warps=1, stages=1, other=images, depth=depth)
    require_the_definition(inputs_of((3, 1, 2, 5, 16)), 2, 5, eager(DepthwiseGelu(tiles, tiles)))


def test_tokens_may_have_any_strides() -> None:
    x, *parameters = inputs_of((2, 1, 2, 3, 16))
    scattered = [torch.empty(7, 2, 16).transpose(0, 1), torch.empty(2, 7, 40)[..., 7:23], torch.empty(2, 16, 7).mT]
    wanted = torch.autograd.grad(depthwise_gelu(x, *parameters, 2, 3).sin().sum(), (x, *parameters))
    for memory in scattered:
        here = memory.copy_(x.detach()).requires_grad_()
        out = depthwise_gelu(here, *parameters, 2, 3)
        found = torch.autograd.grad(out.mT.contiguous().mT.sin().sum(), (here, *parameters))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_large_numbers_overflow_nowhere() -> None:
    x, shift, weight, bias = inputs_of((1, 0, 3, 4, 16))
    x = (x.detach() * 1e4).requires_grad_()
    found = depthwise_gelu(x, shift, weight, bias, 3, 4)
    torch.testing.assert_close(found, plain_depthwise_gelu(x, shift, weight, bias, 3, 4))
    assert all(each.isfinite().all() for each in torch.autograd.grad(found.sum(), (x, shift, weight, bias)))


def test_the_same_bits_come_out_twice() -> None:
    inputs = inputs_of((6, 0, 2, 3, 16), torch.float16)
    first, second = (torch.autograd.grad(depthwise_gelu(*inputs, 2, 3).sum(), inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_operator_is_registered_as_torch_wants_it() -> None:
    operator = getattr(torch.ops.softbias, f"depthwise_gelu_{version()}")
    torch.library.opcheck(operator.default, (*inputs_of((1, 1, 2, 2, 16)), 2, 2))


@pytest.mark.parametrize("prefix", [0, 1])
def test_the_layer_with_its_kernel_is_the_layer_without(monkeypatch, prefix) -> None:
    torch.manual_seed(0)
    layer = DepthwiseFeedForward(16, 32, Grid(2, 3, prefix=prefix))
    x = torch.randn(2, 6 + prefix, 16, requires_grad=True)
    into = [x, *layer.parameters()]
    results = []
    for fused in (False, True):
        monkeypatch.setattr("softbias.kernels.dispatch.available", lambda *given, fused=fused: fused)
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.sin().sum(), into)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", [{"width": 5}, {"height": 0}, {"bias": torch.zeros(3)}, {"x": torch.zeros(13, 16)}], ids=str)
def test_what_it_cannot_take_is_refused_by_name(change) -> None:
    names = ("x", "shift", "weight", "bias")
    given = dict(zip(names, inputs_of((2, 1, 3, 4, 16)), strict=True)) | {"height": 3, "width": 4} | change
    with pytest.raises(ValueError, match=r"depthwise_gelu takes x \(B, N, C\) of at least height"):
        depthwise_gelu(*given.values())
