"""Gated attention with short sequences, by Triton's interpreter, against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softbias.attention import Gated
from softbias.grid import Grid
from softbias.kernels import short_seq
from softbias.kernels.operation import version

ALLOWED = {torch.float32: 3e-6, torch.float16: 2e-3}
SHAPES = {  # images, heads, height, width, channels
    "32 px": (3, 4, 8, 8, 48),
    "oblong": (2, 2, 5, 7, 48),
    "narrow": (5, 1, 5, 7, 16),
    "very short": (2, 3, 3, 4, 64),
}
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs_of(shape, dtype: torch.dtype = torch.float32, gate: float | None = None) -> Inputs:
    torch.manual_seed(0)
    images, heads, height, width, channels = shape
    qkv = torch.randn(images, height * width, 3, heads, channels).to(dtype)
    weight = torch.randn(heads, 3) * 0.5 - torch.tensor([0.0, 0.0, 0.6])
    gates = torch.randn(heads) if gate is None else torch.full((heads,), gate)
    return tuple(x.requires_grad_() for x in (qkv, weight, torch.randn(heads), gates))  # type: ignore[return-value]


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def require_the_definition(inputs: Inputs, width: int) -> None:
    dtype, scale = inputs[0].dtype, 0.2
    found = short_seq.gated_short_seq_attention(*inputs, scale, width)
    seed = torch.randn(found.shape).to(dtype)
    gradients = torch.autograd.grad(found, inputs, seed)
    references = tuple(x.detach().double().requires_grad_() for x in inputs)
    wanted = short_seq.plain_gated_short_seq_attention(*references, scale, width)
    assert found.is_contiguous() and found.dtype == dtype and off(found, wanted) < ALLOWED[dtype]
    expected = torch.autograd.grad(wanted, references, seed.double())
    for name, x, gradient, reference in zip(("qkv", "weight", "bias", "gate"), inputs, gradients, expected, strict=True):
        assert gradient.dtype == x.dtype and gradient.shape == x.shape
        assert gradient.abs().max() == 0 if name == "bias" else off(gradient, reference) < ALLOWED[dtype], name


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_outputs_and_gradients_are_those_of_the_definition(shape, dtype) -> None:
    require_the_definition(inputs_of(shape, dtype), shape[3])


@pytest.mark.parametrize("gate", [-8.0, 8.0])
def test_a_gate_that_is_nearly_shut_or_open_keeps_its_gradients(gate) -> None:
    require_the_definition(inputs_of(SHAPES["oblong"], gate=gate), 7)


def test_parameters_may_be_in_half_precision_too() -> None:
    require_the_definition(tuple(x.detach().half().requires_grad_() for x in inputs_of(SHAPES["narrow"])), 7)  # type: ignore[arg-type]


def test_a_very_strong_position_overflows_nowhere() -> None:
    qkv, _, bias, gate = inputs_of(SHAPES["oblong"])
    sharp = torch.tensor([[2000.0, 0.0, -1000.0]] * 2).requires_grad_()  # one patch to the right
    found = short_seq.gated_short_seq_attention(qkv, sharp, bias, torch.full_like(gate, 50.0), 0.2, 7)
    torch.testing.assert_close(found[:, :6], qkv[:, 1:7, 2])
    assert all(x.isfinite().all() for x in torch.autograd.grad(found.sum(), (qkv, sharp)))


def test_the_same_bits_come_out_twice() -> None:
    inputs = inputs_of(SHAPES["32 px"], torch.float16)
    first, second = (torch.autograd.grad(short_seq.gated_short_seq_attention(*inputs, 0.2, 8).sum(), inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_layer_with_its_kernel_equals_its_definition(monkeypatch) -> None:
    monkeypatch.setattr("softbias.kernels.dispatch.usable", lambda *given, **limits: True)
    torch.manual_seed(0)
    layer = Gated(64, 4, Grid(3, 4))
    x = torch.randn(2, 12, 64, requires_grad=True)
    found, wanted, into = layer(x), layer.by_definition(x), [x, *layer.parameters()]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    for a, b in zip(torch.autograd.grad(found.sin().sum(), into), torch.autograd.grad(wanted.sin().sum(), into), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_operator_is_registered_as_torch_wants_it() -> None:
    operator = getattr(torch.ops.softbias, f"gated_short_seq_attention_{version()}")
    torch.library.opcheck(operator.default, (*inputs_of((2, 2, 3, 4, 16)), 0.3, 4))


@pytest.mark.parametrize("change", [{"width": 5}, {"gate": torch.zeros(3)}, {"qkv": torch.zeros(1, 72, 3, 2, 16)}], ids=str)
def test_what_it_cannot_take_is_refused_by_name(change) -> None:
    names = ("qkv", "weight", "bias", "gate")
    given = dict(zip(names, inputs_of((2, 2, 3, 4, 16)), strict=True)) | {"scale": 0.3, "width": 4} | change
    with pytest.raises(ValueError, match=r"gated_short_seq_attention takes a projection .* at most 64 tokens on a grid"):
        short_seq.gated_short_seq_attention(*given.values())
