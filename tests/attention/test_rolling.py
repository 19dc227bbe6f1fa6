"""Rolled masks: what rolling does, to the rank of a kernel, too, and how the factors are fitted."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import pad

from softbias.attention import Masked
from softbias.grid import Grid
from softbias.kernels.rolling import fit_descent, fit_svd, kernel_map, roll_back, skew, unroll, unskew

from .tensors import close, noise


def test_skew_and_unskew_move_rows_as_they_say_and_are_inverses():
    block = noise(2, 7, 7)
    skewed, unskewed = skew(block), unskew(block)
    for i, j in itertools.product(range(7), repeat=2):
        assert torch.equal(skewed[:, i, j], block[:, i, (j - i) % 7])
        assert torch.equal(unskewed[:, i, j], block[:, i, (j + i) % 7])
    assert torch.equal(unskew(skewed), block)
    assert torch.equal(skew(unskewed), block)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("roll", ["paper", "released"])
def test_the_mask_is_unrolled_around_the_prefix_index_by_index(prefix, roll):
    patches = 6
    rolled = noise(2, prefix + patches, prefix + patches)
    mask = unroll(rolled, prefix, roll)
    shift = prefix if roll == "paper" else 0
    assert torch.equal(mask[:, :prefix], rolled[:, :prefix])
    assert torch.equal(mask[:, :, :prefix], rolled[:, :, :prefix])
    for i, j in itertools.product(range(patches), repeat=2):
        assert torch.equal(mask[:, prefix + i, prefix + j], rolled[:, prefix + i, shift + (j - i) % patches])


def test_without_a_roll_the_product_of_the_factors_is_the_mask():
    rolled = noise(5, 5)
    assert torch.equal(unroll(rolled, 1, "none"), rolled)
    layer = Masked(16, 4, Grid(3, 5), roll="none", rank=15)
    close(layer.mask(), kernel_map(Grid(3, 5)).expand(4, -1, -1), 1e-5)


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_rolling_back_is_the_inverse_of_unrolling(prefix):
    mask = noise(2, prefix + 6, prefix + 6)
    assert torch.equal(unroll(roll_back(mask, prefix), prefix), mask)
    assert torch.equal(roll_back(unroll(mask, prefix), prefix), mask)


@pytest.mark.parametrize(("roll", "left", "right"), [("paper", 0.61, 0.61), ("released", 0.37, 1.0)])
def test_the_released_roll_moves_the_mask_by_one_patch(roll, left, right):
    grid = Grid(8, 8, prefix=1)
    inside = [1 + row * 8 + column for row in range(8) for column in range(2, 7)]
    exact = Masked(16, 4, grid, roll=roll, rank=len(grid)).mask()[0].detach()
    for patch in inside:
        assert exact[patch, patch - 1].item() == pytest.approx(left, abs=0.005)
        assert exact[patch, patch + 1].item() == pytest.approx(right, abs=0.005)
    fitted = Masked(16, 4, grid, roll=roll, rank=9).mask()[0].detach()
    assert fitted[inside, [patch - 1 for patch in inside]].mean().item() == pytest.approx(left, abs=0.05)
    assert fitted[inside, [patch + 1 for patch in inside]].mean().item() == pytest.approx(right, abs=0.05)


def random_kernel_map(grid: Grid) -> torch.Tensor:
    """The map of a random 3 × 3 kernel, with a row and a column of ones for each prefix token.  # (N, N)"""
    kernel = noise(3, 3)
    down, across = grid.offsets().unbind(-1)
    near = (down.abs() <= 1) & (across.abs() <= 1)
    patches = torch.where(near, kernel[down.clamp(-1, 1) + 1, across.clamp(-1, 1) + 1], 0.0)
    return pad(patches, (grid.prefix, 0, grid.prefix, 0), value=1.0)


@pytest.mark.parametrize(
    ("grid", "before", "after"),
    [(Grid(8, 8), 64, 9), (Grid(14, 14), 196, 9), (Grid(8, 8, prefix=1), 65, 10), (Grid(6, 9), 54, 9)],
    ids=["8x8", "14x14", "8x8+1", "6x9"],
)
def test_a_random_3x3_kernel_has_full_rank_before_rolling_and_rank_nine_after(grid, before, after):
    target = random_kernel_map(grid)
    assert int(torch.linalg.matrix_rank(target)) == before
    assert int(torch.linalg.matrix_rank(roll_back(target, grid.prefix))) == after


@pytest.mark.parametrize(("side", "plain", "rolled"), [(8, 0.213, 0.100), (14, 0.383, 0.124)])
def test_rolling_brings_the_papers_wide_target_closer_to_rank_nine(side, plain, rolled):
    target = kernel_map(Grid(side, side)).double()
    for matrix, expected in ((target, plain), (roll_back(target), rolled)):
        energy = torch.linalg.svdvals(matrix).square()
        assert (energy[9:].sum() / energy.sum()).sqrt().item() == pytest.approx(expected, abs=0.001)


def test_rolling_through_the_class_token_would_lose_the_low_rank():
    target = random_kernel_map(Grid(8, 8, prefix=1))
    assert int(torch.linalg.matrix_rank(unskew(target))) == 65


def test_a_mask_of_rank_ten_holds_a_3x3_kernel_and_the_class_token():
    grid = Grid(8, 8, prefix=1)
    target = kernel_map(grid, "conv3x3").expand(4, -1, -1)
    close(Masked(16, 4, grid, kernel="conv3x3", rank=10).mask(), target, 1e-5)
    nine = Masked(16, 4, grid, kernel="conv3x3", rank=9).mask()
    assert (nine - target).abs().max() > 0.03


def descend(optimizer: str, steps: int) -> list[float]:
    """Mean squared errors of three fits of rank nine on 8 × 8, in units of the best possible one."""
    rolled = roll_back(kernel_map(Grid(8, 8))).double()

    def error(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a.mT @ b - rolled).square().mean())

    best = error(*fit_svd(rolled, 9))
    return [error(*fit_descent(rolled, 9, optimizer=optimizer, steps=steps, seed=seed)) / best for seed in range(3)]


@pytest.mark.parametrize("steps", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_adam_reaches_the_truncated_svd_and_never_passes_it(steps):
    errors = descend("adam", steps)
    assert min(errors) <= 1.01
    assert min(errors) >= 1 - 1e-9


def test_a_longer_fit_is_never_worse_because_the_best_factors_are_kept():
    """Steps of .1 overshoot again and again."""
    rolled = roll_back(kernel_map(Grid(4, 4, prefix=1)), 1).double()
    fits = [fit_descent(rolled, 5, steps=steps) for steps in range(1, 60, 2)]
    errors = [float((a.mT @ b - rolled).square().mean()) for a, b in fits]
    assert all(later <= earlier for earlier, later in itertools.pairwise(errors)) and errors[-1] < errors[0] / 2


@pytest.mark.slow
def test_the_released_fit_on_8x8_with_a_class_token_reaches_the_optimum():
    """Its last factors are six times worse than the best that it has seen."""
    rolled = roll_back(kernel_map(Grid(8, 8, prefix=1)), 1).double()
    errors = [float((a.mT @ b - rolled).square().mean()) for a, b in (fit_descent(rolled, 9), fit_svd(rolled, 9))]
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("steps", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_plain_gradient_descent_stays_far_above_the_truncated_svd(steps):
    assert min(descend("sgd", steps)) >= 5


def test_no_fit_of_the_same_rank_is_better_than_the_truncated_svd():
    rolled = roll_back(kernel_map(Grid(4, 5), "gaussian(2)")).double()
    a, b = fit_svd(rolled, 3)
    best = (a.mT @ b - rolled).square().sum()
    close(best, torch.linalg.svdvals(rolled)[3:].square().sum())  # Eckart and Young
    for seed in range(5):
        other = ((a + 0.01 * noise(3, 20, seed=seed)).mT @ b - rolled).square().sum()
        assert other > best
