from __future__ import annotations

import math

import pytest
import torch

from softbias.grid import Grid


def test_a_grid_counts_its_prefix_and_its_patches():
    grid = Grid(3, 5, prefix=2)
    assert (len(grid), grid.patches) == (17, 15)
    assert grid.with_prefix(0) == Grid(3, 5)


def test_positions_run_row_by_row():
    assert Grid(2, 3).positions().tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_an_offset_is_the_key_minus_the_query():
    offsets = Grid(3, 5, prefix=1).offsets()
    assert offsets.shape == (15, 15, 2)
    for query in range(15):
        for key in range(15):
            assert offsets[query, key].tolist() == [key // 5 - query // 5, key % 5 - query % 5]


def test_offsets_along_the_axes_agree_with_the_offsets():
    grid = Grid(3, 4)
    rows, columns = grid.axis_offsets()
    offsets = grid.offsets().reshape(3, 4, 3, 4, 2)
    assert torch.equal(offsets[..., 0], rows[:, None, :, None].expand(3, 4, 3, 4))
    assert torch.equal(offsets[..., 1], columns[None, :, None, :].expand(3, 4, 3, 4))


def test_distances_are_measured_in_patches():
    grid = Grid(4, 6, prefix=1)
    euclidean, manhattan = grid.distances(), grid.distances("manhattan")
    for query in range(24):
        for key in range(24):
            down, across = abs(key // 6 - query // 6), abs(key % 6 - query % 6)
            assert euclidean[query, key].item() == pytest.approx(math.hypot(down, across), rel=1e-6)
            assert manhattan[query, key].item() == down + across


def test_an_unknown_metric_is_refused_with_the_choices():
    with pytest.raises(ValueError, match='"euclidean" or "manhattan", but metric=\'chebyshev\''):
        Grid(2, 2).distances("chebyshev")


def test_patches_only_drops_the_rows_and_columns_of_prefix_tokens():
    grid = Grid(2, 3, prefix=2)
    attention = torch.arange(2 * 64.0).reshape(2, 8, 8)
    assert torch.equal(grid.patches_only(attention), attention[:, 2:, 2:])
    assert torch.equal(Grid(2, 4).patches_only(attention), attention)


def test_patches_only_renormalizes_when_asked():
    grid = Grid(2, 2, prefix=1)
    attention = torch.tensor([[0.2] * 5] * 4 + [[0.5, 0.1, 0.2, 0.2, 0.0]])
    torch.testing.assert_close(grid.patches_only(attention).sum(-1), torch.tensor([0.8, 0.8, 0.8, 0.5]))
    found = grid.patches_only(attention, renormalize=True)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))
    torch.testing.assert_close(found[-1], torch.tensor([0.2, 0.4, 0.4, 0.0]))


def test_a_map_of_another_grid_is_refused_with_both_sizes():
    with pytest.raises(ValueError, match=r"7 × 7, but got shape \(2, 6, 6\)"):
        Grid(2, 3, prefix=1).patches_only(torch.ones(2, 6, 6))


def test_tokens_become_a_picture_and_tokens_again():
    grid = Grid(3, 5, prefix=1)
    tokens = torch.randn(2, 16, 4)
    image = grid.as_image(tokens)
    assert image.shape == (2, 4, 3, 5)
    assert torch.equal(image[1, :, 2, 4], tokens[1, 15])
    assert torch.equal(image[0, :, 1, 0], tokens[0, 6])
    assert torch.equal(grid.as_tokens(image), tokens[:, 1:])


@pytest.mark.parametrize(
    ("given", "telling"),
    [
        ((0, 4), "height must be a whole number of at least 1, but height=0"),
        ((4, -1), "width must be a whole number of at least 1, but width=-1"),
        ((4, 4, -1), "prefix must be a whole number of at least 0, but prefix=-1"),
        ((4.0, 4), r"height must be a whole number of at least 1, but height=4\.0"),
        ((4, True), "width must be a whole number of at least 1, but width=True"),
        ((4, "4"), "width must be a whole number of at least 1, but width='4'"),
    ],
    ids=str,
)
def test_an_impossible_grid_is_refused(given, telling):
    with pytest.raises(ValueError, match=telling):
        Grid(*given)
