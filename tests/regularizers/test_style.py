"""The similarity regularizer: known values, regions, and the product that replaces the matrix."""

import pytest
import torch

from softbias.grid import Grid
from softbias.regularizers import Style, patch_grams, style_loss, style_similarity
from softbias.regularizers.style import style_distances

GRID = Grid(4, 4)


def uniform(grid: Grid, batch: int = 1) -> torch.Tensor:
    return torch.full((batch, 2, len(grid), len(grid)), 1 / len(grid), dtype=torch.double)


def two_styles() -> torch.Tensor:
    """The left half of a picture dark, the right half bright, 8 × 8 pixels in 4 × 4 patches."""
    images = torch.full((1, 3, 8, 8), 0.5, dtype=torch.double)
    images[..., 4:] = torch.tensor([1.0, 2.0, -1.0], dtype=torch.double)[:, None, None]
    return images


def noise(batch: int = 2, side: int = 8, grid: Grid = GRID) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    strength = torch.rand(batch, 3, grid.height, grid.width, dtype=torch.double, generator=generator)
    noise = torch.randn(batch, 3, side, side, dtype=torch.double, generator=generator)
    return noise * torch.nn.functional.interpolate(strength, size=(side, side))


def test_a_gram_matrix_is_the_product_of_a_patch_with_itself():
    images = noise()
    patch = images[1, :, 2:4, 4:6].flatten(1)  # the second row of patches, the third column
    torch.testing.assert_close(patch_grams(images, GRID)[1, 6], patch @ patch.mT / (3 * 4))


def test_uniform_attention_on_two_styles_gives_half_the_patches():
    assert float(style_loss(uniform(GRID), two_styles(), GRID, reduction="sum")) == pytest.approx(8)
    assert style_similarity(two_styles(), GRID).unique().tolist() == [0, 1]


def test_attention_within_a_style_costs_nothing_and_across_styles_everything():
    similarity = style_similarity(two_styles(), GRID)[0]
    within = ((similarity == 0) / 8).double()
    across = ((similarity == 1) / 8).double()
    assert float(style_loss(within[None], two_styles(), GRID, reduction="sum")) == pytest.approx(0)
    assert float(style_loss(across[None], two_styles(), GRID, reduction="sum")) == pytest.approx(16)


@pytest.mark.parametrize("value", [0.0, 0.7, -123.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
def test_a_constant_image_has_one_style(value, dtype):
    images = torch.full((2, 3, 48, 48), value, dtype=dtype)
    images[:, 1] *= 0.3
    grid = Grid(6, 6)
    assert style_similarity(images, grid).abs().max() == 0
    left, right = Style(grid).factors(images)
    assert float((left @ right.mT).abs().max()) == 0


def test_similarity_is_zero_with_oneself_symmetric_and_at_most_one():
    found = style_similarity(noise(), GRID)
    assert found.diagonal(dim1=1, dim2=2).abs().max() == 0
    torch.testing.assert_close(found, found.mT)
    assert found.amax((1, 2)).tolist() == pytest.approx([1, 1])


def test_a_tolerance_is_taken_off_every_pair():
    images, attention = noise(), torch.rand(2, 3, 16, 16, dtype=torch.double).softmax(-1)
    plain = style_loss(attention, images, GRID, reduction="sum")
    torch.testing.assert_close(style_loss(attention, images, GRID, rho=0.25, reduction="sum"), plain - 0.25 * 16)


def test_the_released_distance_is_the_power_sum_of_its_formula():
    grams = patch_grams(noise(), GRID)
    gaps = (grams[:, :, None] - grams[:, None] + 1e-6).abs().flatten(3)
    expected = gaps.pow(0.1).sum(-1).pow(10)
    expected = expected - expected.amin((1, 2), keepdim=True)
    expected = expected / expected.amax((1, 2), keepdim=True)
    torch.testing.assert_close(style_similarity(noise(), GRID, distance="released"), expected)


def test_the_released_distance_is_pytorchs_pairwise_one():
    """Its epsilon is inside of the absolute value, so two patches of one style are not at distance zero."""
    grams = patch_grams(noise(1), GRID).flatten(2)[0]
    expected = torch.nn.functional.pairwise_distance(grams[:, None], grams[None], p=0.1, eps=1e-6)
    torch.testing.assert_close(style_distances(patch_grams(noise(1), GRID), "released")[0], expected)
    assert expected.diagonal().min() > 1000 and not torch.equal(expected, expected.mT)


def test_a_region_of_the_whole_picture_has_nothing_to_differ_from():
    assert float(style_loss(uniform(GRID), noise(1), GRID, region=4)) == 0


def test_regions_pool_both_axes_of_the_map():
    images, attention = noise(), torch.rand(2, 3, 16, 16, dtype=torch.double).softmax(-1)
    rows, columns = (torch.arange(16) // 4) // 2, (torch.arange(16) % 4) // 2
    member = torch.nn.functional.one_hot(2 * rows + columns, 4).double() / 4  # (16, 4): averages over a region
    pooled = member.mT @ attention.mean(1) @ member
    expected = style_loss(pooled, images, Grid(2, 2), reduction="sum")
    torch.testing.assert_close(style_loss(attention, images, GRID, region=2, reduction="sum"), expected)


def test_a_region_must_tile_the_patches():
    with pytest.raises(ValueError, match="region=3"):
        style_loss(uniform(GRID), noise(), GRID, region=3)


@pytest.mark.parametrize("options", [{}, {"rho": 0.2}, {"region": 2}, {"region": 2, "rho": 0.1}])
@pytest.mark.parametrize("prefix", [0, 1])
def test_the_two_factors_multiply_to_the_matrix(options, prefix):
    grid = Grid(4, 4, prefix)
    attention = torch.rand(2, 3, len(grid), len(grid), dtype=torch.double).softmax(-1)
    regularizer = Style(grid, reduction="sum", **options)
    left, right = regularizer.factors(noise())
    assert right.shape[-1] == 8
    by_product = (left * (attention.mean(1) @ right)).sum((1, 2))
    torch.testing.assert_close(by_product, regularizer(attention, noise()))


def test_centering_keeps_16_bits_exact():
    """Bright pictures: without centering, the differences of large squares would be lost in rounding."""
    images, grid = noise(4, 32, Grid(8, 8)) + 3, Grid(8, 8)
    attention = torch.rand(4, 1, 64, 64, dtype=torch.double).softmax(-1)
    exact = style_loss(attention, images, grid, reduction="sum")
    left, right = Style(grid).factors(images.float())
    applied = (attention[:, 0].bfloat16().float() @ right.bfloat16().float()).bfloat16()
    rough = (left * applied).sum((1, 2))
    torch.testing.assert_close(rough.double(), exact, rtol=2e-3, atol=0)


def test_no_gradient_goes_into_the_images():
    images = noise().requires_grad_()
    assert not style_similarity(images, GRID).requires_grad
