"""The distance penalty, run by Triton's interpreter, against plain PyTorch in float64. (Its products know no bfloat16.)"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from softbias.kernels import distance

ALLOWED = {torch.float32: 2e-6, torch.float16: 2e-3}
SHAPES = {  # images, tokens, heads, channels
    "odd sizes": (2, 37, 2, 19),
    "a class token": (3, 17, 1, 16),
    "whole tiles": (1, 64, 2, 32),
}
TYPES = pytest.mark.parametrize("dtype", ALLOWED, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    """A sum of random signs may come out near zero, and then no relative error is small."""
    torch.manual_seed(0)


def projection(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    images, tokens, heads, channels = shape
    return torch.randn(images, tokens, 3, heads, channels, generator=torch.Generator().manual_seed(0)).to(dtype)


def queries_and_keys(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Views, as a model has them."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def exact(tensor: Tensor) -> Tensor:
    return tensor.detach().double().requires_grad_()


@TYPES
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_the_penalty_and_its_gradients_are_those_of_the_definition(shape, dtype, recompute) -> None:
    qkv = projection(shape, dtype).requires_grad_()
    penalty, weights = torch.randn(shape[1], shape[1]), torch.randn(shape[0])
    found = distance.attention_penalty(*queries_and_keys(qkv), penalty, 0.3, recompute=recompute)
    (gradient,) = torch.autograd.grad((found * weights).sum(), qkv)
    reference = exact(qkv)
    q, k = queries_and_keys(reference)
    wanted = (((q @ k.mT) * 0.3).softmax(-1) * penalty.double()).sum((-2, -1)).mean(1)
    (wanted_gradient,) = torch.autograd.grad((wanted * weights.double()).sum(), reference)
    assert found.dtype == torch.float32 and gradient.dtype == dtype
    assert off(found, wanted) < ALLOWED[dtype]
    assert off(gradient, wanted_gradient) < ALLOWED[dtype]


@TYPES
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_queries_and_keys_take_the_penaltys_gradient_along_with_their_own(shape, dtype) -> None:
    qkv = projection(shape, dtype).requires_grad_()
    penalty, weights = torch.randn(shape[1], shape[1]), torch.randn(shape[0])
    q, k, found = distance.penalized(*queries_and_keys(qkv), penalty, 0.3)
    other = torch.randn(q.shape)
    (gradient,) = torch.autograd.grad((found * weights).sum() + (q * k * other).sum(), qkv)
    reference = exact(qkv)
    q, k = queries_and_keys(reference)
    wanted = distance.plain_attention_penalty(q, k, penalty.double(), 0.3)
    (wanted_gradient,) = torch.autograd.grad((wanted * weights.double()).sum() + (q * k * other.double()).sum(), reference)
    assert off(found, wanted) < ALLOWED[dtype]
    assert off(gradient, wanted_gradient) < ALLOWED[dtype]


def test_the_penalty_without_gradients_is_the_same() -> None:
    qkv, penalty = projection(SHAPES["odd sizes"], torch.float32), torch.randn(37, 37)
    q, k = queries_and_keys(qkv)
    with_gradients = distance.attention_penalty(q.clone().requires_grad_(), k, penalty, 0.3)
    assert torch.equal(distance.attention_penalty(q, k, penalty, 0.3), with_gradients)


def test_large_scores_do_not_overflow() -> None:
    q, k = queries_and_keys(projection(SHAPES["a class token"], torch.float32) * 100)
    penalty = torch.randn(17, 17)
    found = distance.attention_penalty(q.requires_grad_(), k, penalty, 1.0)
    (gradient,) = torch.autograd.grad(found.sum(), q)
    assert off(found, distance.plain_attention_penalty(q.double(), k.double(), penalty.double(), 1.0)) < 1e-5
    assert gradient.isfinite().all()


def test_the_twin_of_the_penalty_is_the_definition() -> None:
    q, k = queries_and_keys(projection(SHAPES["odd sizes"], torch.float64))
    penalty = torch.randn(37, 37, dtype=torch.float64)
    wanted = [[((row @ k[b, h].T) * 0.3).softmax(-1) for row in q[b, h]] for b in range(2) for h in range(2)]
    maps = torch.stack([torch.stack(rows) for rows in wanted]).unflatten(0, (2, 2))
    torch.testing.assert_close(distance.plain_attention_penalty(q, k, penalty, 0.3), (maps * penalty).sum((2, 3)).mean(1))


def test_queries_with_scattered_channels_are_taken_too() -> None:
    qkv, penalty = projection((2, 9, 2, 16), torch.float32), torch.randn(9, 9)
    found = distance.attention_penalty(*queries_and_keys(qkv.mT.contiguous().mT), penalty, 0.3)
    assert torch.equal(found, distance.attention_penalty(*queries_and_keys(qkv), penalty, 0.3))


def operators() -> dict[str, partial]:
    q, k = (x.detach().requires_grad_() for x in queries_and_keys(projection((2, 9, 2, 16), torch.float32)))
    penalty = torch.randn(9, 9)
    return {
        "kept": partial(torch.library.opcheck, distance.penalty_with_gradient, (q, k, penalty, 0.3)),
        "recomputed": partial(torch.library.opcheck, distance.penalty_recomputed, (q, k, penalty, 0.3)),
        "no gradient": partial(torch.library.opcheck, distance.penalty_value, (q.detach(), k.detach(), penalty, 0.3)),
    }


@pytest.mark.parametrize("name", operators())
def test_operators_are_registered_as_torch_wants_them(name) -> None:
    operators()[name]()


def test_a_compiled_function_takes_the_penalty_as_one_graph() -> None:
    qkv, penalty = projection((2, 9, 2, 16), torch.float32), torch.randn(9, 9)

    def function(qkv: Tensor) -> Tensor:
        return distance.attention_penalty(*queries_and_keys(qkv), penalty, 0.3).log1p().sum()

    results = []
    for form in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        given = qkv.clone().requires_grad_()
        results.append(*torch.autograd.grad(form(given), given))
    torch.testing.assert_close(*results)


def test_wrong_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"penalty \(N, N\), but got \(1, 2, 9, 16\).*and \(8, 8\)"):
        distance.attention_penalty(torch.zeros(1, 2, 9, 16), torch.zeros(1, 2, 9, 16), torch.zeros(8, 8), 1.0)
