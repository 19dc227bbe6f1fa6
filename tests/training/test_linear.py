"""Linear classifiers on pixels and on frozen features."""

import numpy as np
import pytest

from softbias.training.linear import STRENGTHS, linear_probe, pixel_features


@pytest.mark.parametrize(("n", "least"), [(2, 0.5), (3, 0.6), (4, 1.0), (40, 1.0)])
def test_features_are_probed_even_with_few_images_for_choosing_the_strength(n, least):
    labels = np.arange(n) % 2
    features = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    features[:, 0] = 20.0 * labels
    found = linear_probe(features, features, labels, labels)
    assert found["accuracy"] >= least and found["n"] == n and found["strength"] in STRENGTHS


@pytest.mark.parametrize("size", [(32, 32), (100, 70), (16, 1024), (1024, 3)], ids=str)
def test_features_are_block_averages_of_any_shape_of_picture(size):
    images = np.random.default_rng(0).integers(0, 256, (10, *size, 3), np.uint8)
    found = pixel_features(images, at_once=4)
    factor = -(-max(size) // 32)
    rows, columns = (min(factor, side) for side in size)
    assert found.shape == (10, (size[0] // rows) * (size[1] // columns) * 3)
    assert found[9, :3] == pytest.approx(images[9, :rows, :columns].mean((0, 1)) / 255, abs=1e-5)


def test_gray_images_have_one_feature_per_pixel_and_a_single_colored_one_gives_all_three():
    gray = np.repeat(np.random.default_rng(0).integers(0, 256, (10, 32, 32, 1), np.uint8), 3, -1)
    assert pixel_features(gray, at_once=4).shape == (10, 1024)
    gray[2, 5, 5, 1] ^= 1
    assert pixel_features(gray, at_once=4).shape == (10, 3072)
