"""Attention with short sequences, in Triton's interpreter, against the definition in float64. (Its products lack bfloat16.)"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softbias.attention import Full
from softbias.grid import Grid
from softbias.kernels import short_seq
from softbias.kernels.operation import version

ALLOWED = {torch.float32: 1e-6, torch.float16: 1e-3}
SHAPES = {  # images, tokens, heads, channels
    "32 px": (2, 64, 4, 48),
    "32 px and a class token": (3, 65, 3, 64),
    "one more than 32": (2, 33, 2, 24),
    "one more than 16": (1, 17, 1, 16),
    "between": (3, 50, 2, 32),
    "sixteen": (2, 16, 1, 16),
    "very short": (2, 5, 1, 8),
    "one": (2, 1, 1, 16),
}


def projection(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    images, tokens, heads, channels = shape
    return torch.randn(images, tokens, 3, heads, channels).to(dtype).requires_grad_()


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def require_the_definition(qkv: Tensor, scale: float) -> None:
    found = short_seq.short_seq_attention(qkv, scale)
    seed = torch.randn(found.shape).to(qkv.dtype)
    (gradient,) = torch.autograd.grad(found, qkv, seed)
    reference = qkv.detach().double().requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in reference.unbind(2))
    wanted = torch.softmax(scale * q @ k.mT, -1) @ v
    (expected,) = torch.autograd.grad(wanted, reference, seed.double().transpose(1, 2))
    assert found.is_contiguous() and found.dtype == gradient.dtype == qkv.dtype
    assert off(found, wanted.transpose(1, 2)) < ALLOWED[qkv.dtype]
    for name, a, b in zip("qkv", gradient.unbind(2), expected.unbind(2), strict=True):
        assert b.norm() == 0 or off(a, b) < ALLOWED[qkv.dtype], name


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_outputs_and_gradients_are_those_of_the_definition(shape, dtype) -> None:
    require_the_definition(projection(shape, dtype), shape[-1] ** -0.5)


@pytest.mark.parametrize("shape", [(2, 64, 2, 16), (2, 65, 2, 16)], ids=str)
def test_scores_far_below_zero_keep_their_gradients(shape) -> None:
    """cuDNN's kernel gave NaN here: all scores of a row at −200."""
    qkv = torch.zeros(shape[0], shape[1], 3, *shape[2:])
    qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2] = 1.0, -12.5, torch.randn(shape)
    qkv.requires_grad_()
    found = short_seq.short_seq_attention(qkv, 1.0)
    torch.testing.assert_close(found, qkv[:, :, 2].mean(1, keepdim=True).expand_as(found))
    (gradient,) = torch.autograd.grad(found.sin().sum(), qkv)
    assert gradient.isfinite().all() and gradient[:, :, 0].abs().max() < 1e-5  # equal keys: nothing to gain for a query
    assert gradient[:, :, 1:].abs().max() > 1e-3


@pytest.mark.parametrize("shape", [(2, 64, 2, 16), (2, 65, 2, 16)], ids=str)
def test_scores_that_differ_much_keep_their_gradients(shape) -> None:
    qkv = (3 * projection(shape)).detach().requires_grad_()
    found, wanted = short_seq.short_seq_attention(qkv, 1.0), short_seq.plain_short_seq_attention(qkv.double(), 1.0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(*(torch.autograd.grad(x.sin().sum(), qkv)[0].unbind(2) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_a_projection_may_lie_in_memory_in_any_order() -> None:
    qkv = projection((2, 17, 2, 16))
    for order in ((0, 2, 1, 3, 4), (2, 3, 0, 1, 4), (0, 1, 2, 4, 3)):
        turned = qkv.detach().permute(order).contiguous().permute(*(order.index(axis) for axis in range(5)))
        assert not turned.is_contiguous()
        require_the_definition(turned.requires_grad_(), 0.25)


def test_the_same_bits_come_out_twice() -> None:
    qkv = projection(SHAPES["32 px and a class token"], torch.float16)
    first, second = (torch.autograd.grad(short_seq.short_seq_attention(qkv, 0.1).sum(), qkv)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_the_twin_is_the_kernel() -> None:
    qkv = projection((2, 17, 2, 16))
    torch.testing.assert_close(short_seq.short_seq_attention(qkv, 0.3), short_seq.plain_short_seq_attention(qkv, 0.3))


@pytest.mark.parametrize("prefix", [0, 1])
def test_the_layer_with_its_kernel_equals_its_definition(monkeypatch, prefix) -> None:
    asked = []
    monkeypatch.setattr("softbias.kernels.dispatch.usable", lambda tensor, *sizes, **limits: not asked.append((sizes, limits)))
    torch.manual_seed(0)
    layer = Full(32, 2, Grid(4, 4, prefix=prefix))
    x = torch.randn(2, 16 + prefix, 32, requires_grad=True)
    found, wanted, into = layer(x), layer.by_definition(x), [x, *layer.parameters()]
    assert asked == [((16 + prefix, 16), {"longest": 65})]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    for a, b in zip(torch.autograd.grad(found.sin().sum(), into), torch.autograd.grad(wanted.sin().sum(), into), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_operator_is_registered_as_torch_wants_it() -> None:
    operator = getattr(torch.ops.softbias, f"short_seq_attention_{version()}")
    torch.library.opcheck(operator.default, (projection((2, 17, 2, 16)), 0.3))


def test_a_compiled_function_takes_it_as_one_graph() -> None:
    def function(qkv: Tensor) -> Tensor:
        return short_seq.short_seq_attention(qkv, 0.3).flatten(2).sin().sum()

    qkv = projection((2, 17, 2, 16))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    plain, found = (torch.autograd.grad(form(qkv), qkv)[0] for form in (function, compiled))
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("shape", [(2, 66, 3, 1, 16), (2, 17, 2, 1, 16), (2, 17, 3, 16)], ids=str)
def test_what_it_cannot_take_is_refused_by_name(shape) -> None:
    with pytest.raises(
        ValueError, match=r"short_seq_attention takes a projection \(B, N, 3, H, D\) of at most 65 tokens, but got"
    ):
        short_seq.ShortSeqAttention().forward(torch.zeros(shape), 1.0)
