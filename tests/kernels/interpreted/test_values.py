"""The kernels, run by Triton's interpreter, against plain PyTorch in float64. (Its products know no bfloat16.)"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from softbias.attention import Masked
from softbias.grid import Grid
from softbias.kernels import distance, masked

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


@TYPES
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_masked_attention_and_its_gradients_are_those_of_the_definition(shape, dtype) -> None:
    qkv = projection(shape, dtype).requires_grad_()
    mask = torch.randn(shape[2], shape[1], shape[1]).to(dtype).requires_grad_()
    found = masked.masked_attention(qkv, mask, 0.3)
    weights = torch.randn(found.shape)
    gradients = torch.autograd.grad((found * weights).sum(), (qkv, mask))
    references = exact(qkv), exact(mask)
    q, k, v = references[0].permute(2, 0, 3, 1, 4).unbind(0)
    y = (q @ k.mT) * 0.3 * references[1]
    wanted = ((y @ v) / (y.square().sum((-2, -1), keepdim=True).sqrt() + 1e-8)).transpose(1, 2)
    assert found.dtype == dtype
    assert off(found, wanted) < ALLOWED[dtype]
    for gradient, reference in zip(gradients, torch.autograd.grad((wanted * weights.double()).sum(), references), strict=True):
        assert gradient.dtype == dtype
        assert off(gradient, reference) < ALLOWED[dtype]


def test_the_mask_s_gradient_sums_all_parts_of_the_batch(monkeypatch) -> None:
    monkeypatch.setattr(masked, "PROGRAMS", 3)  # 5 images in 3 parts, the last of them short
    qkv, mask = projection((5, 9, 1, 16), torch.float32), torch.randn(1, 9, 9).requires_grad_()
    weights = torch.randn(5, 9, 1, 16)
    (found,) = torch.autograd.grad((masked.masked_attention(qkv, mask, 0.3) * weights).sum(), mask)
    reference = exact(mask)
    plain = masked.plain_masked_attention(qkv.double(), reference, 0.3)
    assert off(found, *torch.autograd.grad((plain * weights.double()).sum(), reference)) < 2e-6


def test_a_map_of_zeros_gives_zeros_and_no_nan() -> None:
    qkv, mask = projection((1, 9, 1, 16), torch.float32).requires_grad_(), torch.zeros(1, 9, 9).requires_grad_()
    found = masked.masked_attention(qkv, mask, 0.3)
    assert found.abs().max() == 0
    for gradient in torch.autograd.grad(found.sum(), (qkv, mask)):
        assert gradient.isfinite().all()


def test_projections_with_scattered_channels_are_taken_too() -> None:
    qkv, mask = projection((2, 9, 2, 16), torch.float32), torch.randn(2, 9, 9)
    scattered = qkv.mT.contiguous().mT
    assert torch.equal(masked.masked_attention(scattered, mask, 0.3), masked.masked_attention(qkv, mask, 0.3))
    (q, k), penalty = queries_and_keys(scattered), torch.randn(9, 9)
    wanted = distance.attention_penalty(*queries_and_keys(qkv), penalty, 0.3)
    assert torch.equal(distance.attention_penalty(q, k, penalty, 0.3), wanted)


def test_the_layer_with_its_kernel_equals_its_definition(monkeypatch) -> None:
    monkeypatch.setattr("softbias.kernels.usable", lambda tensor, tokens, channels: True)
    layer = Masked(32, 2, Grid(3, 4, prefix=1), rank=4)
    x = torch.randn(2, 13, 32, requires_grad=True)
    found, wanted = layer(x), layer.by_definition(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    into = [x, *layer.parameters()]
    for a, b in zip(torch.autograd.grad(found.sin().sum(), into), torch.autograd.grad(wanted.sin().sum(), into), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def operators() -> dict[str, partial]:
    qkv, mask = projection((2, 9, 2, 16), torch.float32).requires_grad_(), torch.randn(2, 9, 9).requires_grad_()
    q, k = (x.detach().requires_grad_() for x in queries_and_keys(qkv))
    penalty = torch.randn(9, 9)
    return {
        "masked": partial(torch.library.opcheck, torch.ops.softbias.masked_attention.default, (qkv, mask, 0.3)),
        "penalty, kept": partial(torch.library.opcheck, distance.penalty_with_gradient, (q, k, penalty, 0.3)),
        "penalty, recomputed": partial(torch.library.opcheck, distance.penalty_recomputed, (q, k, penalty, 0.3)),
        "penalty, no gradient": partial(torch.library.opcheck, distance.penalty_value, (q.detach(), k.detach(), penalty, 0.3)),
    }


@pytest.mark.parametrize("name", operators())
def test_operators_are_registered_as_torch_wants_them(name) -> None:
    operators()[name]()


def test_a_compiled_function_takes_them_as_one_graph() -> None:
    qkv, mask, penalty = projection((2, 9, 2, 16), torch.float32), torch.randn(2, 9, 9), torch.randn(9, 9)

    def both(qkv: Tensor, mask: Tensor) -> Tensor:
        q, k = queries_and_keys(qkv)
        return (
            masked.masked_attention(qkv, mask, 0.3).sin().sum() + distance.attention_penalty(q, k, penalty, 0.3).log1p().sum()
        )

    results = []
    for function in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        inputs = qkv.clone().requires_grad_(), mask.clone().requires_grad_()
        results.append(torch.autograd.grad(function(*inputs), inputs))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_wrong_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"\(H, N, N\), but got \(2, 9, 3, 2, 16\) and \(2, 9, 8\)"):
        masked.masked_attention(torch.zeros(2, 9, 3, 2, 16), torch.zeros(2, 9, 8), 1.0)
    with pytest.raises(ValueError, match=r"penalty \(N, N\), but got \(1, 2, 9, 16\).*and \(8, 8\)"):
        distance.attention_penalty(torch.zeros(1, 2, 9, 16), torch.zeros(1, 2, 9, 16), torch.zeros(8, 8), 1.0)
