"""The score to beat."""

import numpy as np
import pytest

from softbias.training import baseline
from softbias.training.baseline import pixel_features


@pytest.mark.parametrize("size", [(32, 32), (100, 70), (16, 1024), (1024, 3)], ids=str)
def test_features_are_block_averages_of_any_shape_of_picture(monkeypatch, size):
    monkeypatch.setattr(baseline, "AT_ONCE", 4)
    images = np.random.default_rng(0).integers(0, 256, (10, *size, 3), np.uint8)
    found = pixel_features(images)
    factor = -(-max(size) // 32)
    rows, columns = (min(factor, side) for side in size)
    assert found.shape == (10, (size[0] // rows) * (size[1] // columns) * 3)
    assert found[9, :3] == pytest.approx(images[9, :rows, :columns].mean((0, 1)) / 255, abs=1e-5)


def test_gray_pictures_have_one_feature_per_place_and_a_single_colored_one_gives_all_three(monkeypatch):
    monkeypatch.setattr(baseline, "AT_ONCE", 4)
    gray = np.repeat(np.random.default_rng(0).integers(0, 256, (10, 32, 32, 1), np.uint8), 3, -1)
    assert pixel_features(gray).shape == (10, 1024)
    gray[2, 5, 5, 1] ^= 1
    assert pixel_features(gray).shape == (10, 3072)
