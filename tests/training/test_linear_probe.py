"""Linear classifiers on frozen features."""

import numpy as np
import pytest

from softbias.training.linear_probe import STRENGTHS, probe


@pytest.mark.parametrize(("n", "least"), [(2, 0.5), (3, 0.6), (4, 1.0), (40, 1.0)])
def test_features_are_probed_however_few_pictures_there_are_to_choose_a_strength_by(n, least):
    labels = np.arange(n) % 2
    features = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    features[:, 0] = 20.0 * labels
    found = probe(features, features, labels, labels)
    assert found["accuracy"] >= least and found["n"] == n and found["strength"] in STRENGTHS
