"""The distance regularizer: known values, known gradients, every option."""

import math

import pytest
import torch

from softbias.grid import Grid
from softbias.regularizers import attention_penalty, distance_loss, distance_penalty
from softbias.regularizers import distance as module

KNOWN = {  # Σ A ⊙ P of uniform attention, of attention to oneself, and of uniform attention with the linear penalty
    (16, 16): (156.501, -253.966, 90.667),
    (14, 14): (119.891, -193.948, 70.0),
    (8, 8): (38.806, -61.864, 24.0),
    (8, 12): (57.503, -93.977, 35.185),
}


def uniform(grid: Grid) -> torch.Tensor:
    return torch.full((2, 3, len(grid), len(grid)), 1 / len(grid), dtype=torch.double)


@pytest.mark.parametrize("sides", KNOWN)
def test_sums_of_uniform_and_identity_attention_are_those_of_the_table(sides):
    grid = Grid(*sides)
    same = torch.eye(len(grid), dtype=torch.double).expand(2, 3, -1, -1)
    found = [
        distance_loss(uniform(grid), grid, reduction="sum"),
        distance_loss(same, grid, reduction="sum"),
        distance_loss(uniform(grid), grid, penalty="linear", reduction="sum"),
    ]
    for values, known in zip(found, KNOWN[sides], strict=True):
        assert values.shape == (2,)
        assert values.tolist() == pytest.approx([known, known], abs=6e-4)


def test_the_older_setting_is_gentler():
    grid = Grid(16, 16)
    assert float(distance_loss(uniform(grid), grid, beta=500, reduction="sum")[0]) == pytest.approx(50.80, abs=5e-3)


def test_near_patches_are_rewarded_and_far_ones_punished_and_a_corner_sees_further_than_the_center():
    penalty = distance_penalty(Grid(16, 16))
    assert penalty.diagonal().max() < -0.9
    assert penalty[0, -1] > 0.99
    assert not torch.allclose(penalty, penalty.mT)
    assert float((penalty < 0).float().mean()) == pytest.approx(0.18, abs=0.005)


@pytest.mark.parametrize(("offset", "distance"), [((0, 1), 1), ((2, 0), 2), ((3, 4), 7)])
def test_attention_to_one_offset_gives_the_penalty_of_that_offset(offset, distance):
    """From the top left corner of a 6 × 9 grid the furthest patch is 13 away, so a = distance − 13 / 4."""
    grid = Grid(6, 9)
    attention = torch.zeros(1, 1, 54, 54, dtype=torch.double)
    attention[0, 0, 0, offset[0] * 9 + offset[1]] = 1
    beyond = distance - 13 / 4
    expected = beyond / math.sqrt(beyond**2 + 0.5)
    assert float(distance_loss(attention, grid, reduction="sum")) == pytest.approx(expected, abs=1e-6)
    assert float(distance_loss(attention, grid, penalty="linear", reduction="sum")) == pytest.approx(distance / 13, abs=1e-6)
    released = (distance + 0.1) / (13 + 1)
    assert float(distance_loss(attention, grid, penalty="released-linear", reduction="sum")) == pytest.approx(
        released, abs=1e-6
    )
    assert float(distance_loss(attention, grid)) == pytest.approx(math.log1p(max(expected, 0)), abs=1e-6)


def test_prefix_tokens_are_dropped_without_renormalizing():
    grid = Grid(3, 4, prefix=1)
    attention = torch.rand(2, 5, 13, 13, dtype=torch.double).softmax(-1)
    without = distance_loss(attention[..., 1:, 1:], Grid(3, 4), reduction="sum")
    torch.testing.assert_close(distance_loss(attention, grid, reduction="sum"), without)


def test_reductions_are_a_sum_a_logarithm_with_a_floor_and_one_logarithm_for_the_batch():
    grid = Grid(4, 4)
    near, far = torch.eye(16, dtype=torch.double), torch.eye(16, dtype=torch.double).flip(1)
    attention = torch.stack([near, far])
    sums = distance_loss(attention, grid, reduction="sum")
    assert sums[0] < 0 < sums[1]
    torch.testing.assert_close(distance_loss(attention, grid), torch.stack([0 * sums[0], sums[1].log1p()]))
    # these maps already range from 0 to 1, so stretching them changes nothing
    released = distance_loss(attention, grid, reduction="released")
    torch.testing.assert_close(released, sums.sum().clamp_min(1).log().expand(2))


def test_stretched_maps_range_from_0_to_1_and_a_flat_one_is_zero_and_has_a_gradient():
    grid = Grid(3, 3)
    attention = torch.stack([torch.full((9, 9), 1 / 9), torch.rand(9, 9).softmax(-1)]).double().requires_grad_()
    values = distance_loss(attention, grid, penalty="linear", reduction="sum", maps="minmax")
    assert values[0] == 0
    stretched = (attention[1] - attention[1].min()) / (attention[1].max() - attention[1].min())
    torch.testing.assert_close(values[1], (stretched * distance_penalty(grid, penalty="linear").double()).sum())
    values.sum().backward()
    assert attention.grad is not None and attention.grad.isfinite().all()


def queries_and_keys(batch: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(batch, 2, 12, 5, dtype=torch.double, generator=generator).requires_grad_() for _ in range(2))
    return q, k, distance_penalty(Grid(3, 4)).double()


@pytest.mark.parametrize("chunk", [2**26, 2 * 2 * 12 * 12])
def test_the_form_without_a_map_equals_the_definition_with_gradients(chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)  # the second: two images at a time, and then one
    q, k, penalty = queries_and_keys()
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
    fused = attention_penalty(q, k, penalty, 0.3)
    plain = distance_loss((0.3 * q @ k.mT).softmax(-1), Grid(3, 4), reduction="sum")
    torch.testing.assert_close(fused, plain)
    for one, other in zip(
        torch.autograd.grad((fused * weights).sum(), (q, k)), torch.autograd.grad((plain * weights).sum(), (q, k)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_no_map_is_kept_for_the_gradient():
    q, k, penalty = queries_and_keys()
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention_penalty(q, k, penalty, 0.3)
    assert kept and max(kept) < 3 * 2 * 12 * 12


def test_16_bits_are_summed_in_32():
    q, k, penalty = queries_and_keys()
    exact = attention_penalty(q, k, penalty, 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        rough = attention_penalty(q.bfloat16(), k.bfloat16(), penalty.float(), 0.3)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough.double(), exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("wrong", [{"penalty": "cubic"}, {"reduction": "mean"}, {"maps": "zscore"}, {"alpha": 0}])
def test_an_unknown_option_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        distance_loss(uniform(Grid(2, 2)), Grid(2, 2), **wrong)
