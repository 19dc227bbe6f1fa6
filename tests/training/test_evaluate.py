"""Scores whose values are known."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score, f1_score

from softbias.stats import wilson
from softbias.training.evaluate import calibration_error, score


def test_scores_agree_with_scikit_learn():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(7), 400).astype(np.float32)
    labels = generator.integers(0, 7, 400)
    result = score(probabilities, labels, tuple("abcdefg"))
    predicted = probabilities.argmax(1)
    assert result["accuracy"] == pytest.approx((predicted == labels).mean())
    assert result["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert result["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    top = np.argsort(-probabilities, 1)[:, :5]
    assert result["top5"] == pytest.approx(np.mean([label in row for label, row in zip(labels, top, strict=True)]))
    assert np.array(result["confusion"]).sum() == 400


def test_wilsons_interval_covers_what_it_should():
    """By simulation: 95 % intervals contain the truth in about 95 % of cases, also near one, where the usual one fails."""
    generator = np.random.default_rng(0)
    for truth in (0.5, 0.97):
        hits = [wilson(int(right), 200) for right in generator.binomial(200, truth, 4000)]
        covered = np.mean([low <= truth <= high for low, high in hits])
        assert 0.93 < covered < 0.975
    assert wilson(0, 10)[0] == 0 and wilson(10, 10)[1] == pytest.approx(1)


@pytest.mark.parametrize(("right", "n"), [(0, 10), (3, 10), (999, 1000), (50, 50)])
def test_wilsons_interval_is_that_of_scipy(right, n):
    interval = binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right, n) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_a_calibrated_model_has_no_calibration_error():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 200_000).astype(np.float32)
    right = generator.uniform(size=len(confidence)) < confidence
    probabilities = np.stack([confidence, 1 - confidence], 1)
    assert calibration_error(probabilities, np.where(right, 0, 1)) < 0.01
    assert calibration_error(np.tile([[1.0, 0.0]], (100, 1)), np.arange(100) % 2) == pytest.approx(0.5)


def test_rows_of_the_confusion_are_truths():
    found = score(np.eye(2, dtype=np.float32)[[1, 0, 1]], np.array([0, 0, 1]), ("a", "b"))
    assert found["confusion"] == [[1, 1], [0, 1]]


def test_a_class_without_images_is_no_zero():
    result = score(np.eye(3, dtype=np.float32)[[0, 1, 1]], np.array([0, 1, 1]), ("a", "b", "never"))
    assert result["balanced_accuracy"] == 1 and result["classes"][2]["recall"] is None
