"""Masked attention, run by Triton's interpreter, against the definition in float64. (Its products know no bfloat16.)

All tests are of both forms of its backward: the one for short sequences, and the one that takes a map in pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from softbias.attention import Masked
from softbias.grid import Grid
from softbias.kernels import masked
from softbias.kernels.operation import eager, operation, version
from softbias.kernels.rolling import ROLLS

ALLOWED = {torch.float32: 3e-6, torch.float16: 2e-3}
SHAPES = {  # images, tokens, heads, channels
    "odd sizes": (2, 37, 2, 19),
    "a class token": (3, 17, 1, 16),
    "whole tiles": (1, 64, 2, 32),
    "32 px": (4, 65, 1, 24),
}
Inputs = tuple[Tensor, Tensor, Tensor]


IN_PIECES = masked.MaskedAttention(short_seq_tokens=0)
KERNELS = {"masked_attention": masked.MaskedAttention(), "masked_attention_in_pieces": IN_PIECES}
OPERATIONS = {
    "masked_attention": masked.attention,
    "masked_attention_in_pieces": operation("masked_attention_in_pieces", IN_PIECES),
}


@pytest.fixture(autouse=True, params=list(KERNELS))
def name(request, monkeypatch) -> str:
    monkeypatch.setattr(masked, "attention", OPERATIONS[request.param])
    return request.param


def inputs_of(shape, rank: int = 3, dtype: torch.dtype = torch.float32, of_factors: torch.dtype = torch.float32) -> Inputs:
    """A projection and factors, as a layer has them."""
    torch.manual_seed(0)
    images, tokens, heads, channels = shape
    qkv = torch.randn(images, tokens, 3, heads, channels).to(dtype)
    a, b = torch.randn(2, heads, rank, tokens).to(of_factors)
    return qkv.requires_grad_(), a.clone().requires_grad_(), b.clone().requires_grad_()


def column(i: int, j: int, tokens: int, prefix: int, roll: str) -> int:
    """Where W has M[i, j]."""
    if roll == "none" or i < prefix or j < prefix:
        return j
    return (0 if roll == "released" else prefix) + (j - i) % (tokens - prefix)


def definition(qkv: Tensor, a: Tensor, b: Tensor, scale: float, prefix: int, roll: str) -> Tensor:
    tokens = range(qkv.shape[1])
    columns = torch.tensor([[column(i, j, len(tokens), prefix, roll) for j in tokens] for i in tokens])
    mask = (a.mT @ b).gather(-1, columns.expand(len(a), -1, -1))
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    y = (q @ k.mT) * scale * mask
    return ((y @ v) / (y.square().sum((-2, -1), keepdim=True).sqrt() + 1e-8)).transpose(1, 2)


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def require_the_definition(inputs: Inputs, prefix: int, roll: str) -> None:
    allowed = ALLOWED[inputs[0].dtype]
    found = masked.masked_attention(*inputs, 0.3, prefix, roll)
    exactly = tuple(x.detach().double().requires_grad_() for x in inputs)
    wanted = definition(*exactly, 0.3, prefix, roll)
    assert found.dtype == inputs[0].dtype and off(found, wanted) < allowed
    seed = torch.randn(found.shape)
    gradients = torch.autograd.grad(found, inputs, seed.to(found.dtype))
    exact_gradients = torch.autograd.grad(wanted, exactly, seed.to(found.dtype).double())
    for name, x, a, b in zip(("qkv", "a", "b"), inputs, gradients, exact_gradients, strict=True):
        assert a.dtype == x.dtype and a.shape == x.shape, name
        assert off(a, b) < allowed, name


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_it_and_its_gradients_are_those_of_the_definition(shape, dtype) -> None:
    require_the_definition(inputs_of(shape, dtype=dtype), 1, "paper")


@pytest.mark.parametrize("tokens", [17, 19])
@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("roll", ROLLS)
def test_every_roll_is_known_with_and_without_a_prefix(roll, prefix, tokens) -> None:
    require_the_definition(inputs_of((2, tokens, 2, 16)), prefix, roll)


def test_the_released_roll_does_not_read_into_the_next_row_where_rows_have_no_padding() -> None:
    require_the_definition(inputs_of((1, 16, 2, 16)), 1, "released")


@pytest.mark.parametrize("rank", [1, 9, 16, 21])
def test_every_rank_is_taken(rank) -> None:
    require_the_definition(inputs_of((2, 21, 1, 16), rank), 1, "paper")


@pytest.mark.parametrize("tokens", [9, 17])
@pytest.mark.parametrize("entries", [32, 256, 8192], ids=["one at a time", "few at a time", "all at once"])
@pytest.mark.parametrize("roll", ["paper", "released"])
def test_the_factors_gradients_sum_all_parts_of_the_batch(monkeypatch, name, entries, roll, tokens) -> None:
    usual = KERNELS[name]
    parts, factors = replace(usual.short_seq, size=3), replace(usual.factors, size=entries)
    kernel = replace(usual, programs=3, short_seq=parts, factors=factors)  # 5 images in 3 parts, the last of them short
    monkeypatch.setattr(masked, "attention", eager(kernel))
    require_the_definition(inputs_of((5, tokens, 1, 16)), 1, roll)


def test_only_short_sequences_take_the_backward_for_them(name) -> None:
    kernel = KERNELS[name]
    for tokens in (65, 66):
        sizes = (2, tokens, 3, 1, 16), (tokens * 48, 48, 16, 16, 1)
        plan = kernel.plan_backward(*sizes, *((tokens * 16, 16, 16, 1),) * 2, sizes[1], (1, 3, tokens), 0.3, 1, "paper")
        assert (plan.mask is None) == (tokens <= kernel.short_seq_tokens)


def test_the_twin_is_the_definition() -> None:
    for roll in ROLLS:
        for prefix in (0, 2):
            inputs = tuple(x.detach().double().requires_grad_() for x in inputs_of(SHAPES["odd sizes"]))
            found, wanted = (f(*inputs, 0.3, prefix, roll) for f in (masked.plain_masked_attention, definition))
            torch.testing.assert_close(found, wanted)
            for a, b in zip(*(torch.autograd.grad(x.sin().sum(), inputs) for x in (found, wanted)), strict=True):
                torch.testing.assert_close(a, b)


def test_the_mask_is_summed_in_float32_and_rounded_once() -> None:
    qkv, a, b = inputs_of((1, 17, 2, 16), 9, torch.float16)
    masks = masked.MaskedAttention().forward(qkv.detach(), a.detach(), b.detach(), 0.3, 0, "none")[2]
    exactly = a.detach().double().mT @ b.detach().double()
    for found, wanted in zip(masks, (exactly, exactly.mT), strict=True):
        assert found.dtype == torch.float16
        torch.testing.assert_close(found[..., :17].double(), wanted, rtol=2**-11 + 1e-5, atol=1e-6)
        assert found[..., 17:].abs().max() == 0


def test_the_same_bits_come_out_twice() -> None:
    inputs = inputs_of((3, 21, 1, 16), 9, torch.float16)
    seed = torch.randn(3, 21, 1, 16).half()
    first, second = (torch.autograd.grad(masked.masked_attention(*inputs, 0.3, 1, "paper"), inputs, seed) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_factors_may_be_in_half_precision_and_strided_too() -> None:
    qkv, a, b = inputs_of((2, 17, 2, 16), 3, torch.float16, torch.float16)
    strided = a.detach().mT.contiguous().mT.requires_grad_()
    require_the_definition((qkv, strided, b), 1, "paper")


def test_a_map_of_zeros_gives_zeros_and_no_nan() -> None:
    qkv, a, b = inputs_of((1, 9, 1, 16))
    b = torch.zeros_like(b).requires_grad_()
    found = masked.masked_attention(qkv, a, b, 0.3, 1, "paper")
    assert found.abs().max() == 0
    for gradient in torch.autograd.grad(found.sum(), (qkv, a, b)):
        assert gradient.isfinite().all()


def test_a_projection_with_scattered_channels_is_taken_too() -> None:
    qkv, a, b = inputs_of((2, 9, 2, 16))
    scattered = qkv.detach().mT.contiguous().mT.requires_grad_()
    results = []
    for x in (qkv, scattered):
        found = masked.masked_attention(x, a, b, 0.3, 1, "paper")
        results.append((found, *torch.autograd.grad(found.sin().sum(), (x, a, b))))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("roll", ROLLS)
def test_the_layer_with_its_kernel_equals_its_definition(monkeypatch, roll) -> None:
    asked = []
    monkeypatch.setattr(
        "softbias.kernels.dispatch.usable", lambda tensor, tokens, channels: not asked.append((tokens, channels))
    )
    monkeypatch.setattr(Masked, "attend", lambda *given: pytest.fail("this is the way without kernels"))
    torch.manual_seed(0)
    layer = Masked(32, 2, Grid(3, 4, prefix=1), rank=4, roll=roll)
    x = torch.randn(2, 13, 32, requires_grad=True)
    found, wanted = layer(x), layer.by_definition(x)
    assert asked == [(13, 16)]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    into = [x, *layer.parameters()]
    for a, b in zip(torch.autograd.grad(found.sin().sum(), into), torch.autograd.grad(wanted.sin().sum(), into), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_operator_is_registered_as_torch_wants_it(name) -> None:
    inputs = inputs_of((2, 5, 1, 16))
    operator = getattr(torch.ops.softbias, f"{name}_{version()}")
    torch.library.opcheck(operator.default, (*inputs, 0.3, 1, "paper"))


def test_a_compiled_function_takes_it_as_one_graph() -> None:
    def function(*inputs: Tensor) -> Tensor:
        return masked.masked_attention(*inputs, 0.3, 1, "released").flatten(2).sin().sum()

    inputs, results = inputs_of((2, 9, 2, 16)), []
    for form in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        results.append(torch.autograd.grad(form(*inputs), inputs))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


WRONG = {
    "tokens": ({"a": torch.zeros(2, 3, 8), "b": torch.zeros(2, 3, 8)}, r"\(H, r, N\), but got .*\(2, 3, 8\), \(2, 3, 8\)"),
    "ranks": ({"b": torch.zeros(2, 4, 9)}, r"but got \(2, 9, 3, 2, 16\), \(2, 3, 9\), \(2, 4, 9\)"),
    "projection": ({"qkv": torch.zeros(2, 9, 2, 2, 16)}, r"\(B, N, 3, H, D\).*but got \(2, 9, 2, 2, 16\)"),
    "roll": ({"roll": "printed"}, "paper, released, none.*roll='printed'"),
    "prefix": ({"prefix": 9}, "fewer than all 9 tokens.*prefix=9"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=list(WRONG))
def test_what_it_cannot_take_is_refused_by_name(changes, message) -> None:
    given = dict(zip(("qkv", "a", "b"), inputs_of((2, 9, 2, 16)), strict=True)) | {"scale": 0.3, "prefix": 1, "roll": "paper"}
    with pytest.raises(ValueError, match=message):
        masked.masked_attention(**(given | changes))
