"""A head that starts as a logistic regression: the same answers, folded into the weights."""

import numpy as np
import pytest
import torch

from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.training.head_start import STRENGTHS, choose_strength, fit_head, linear_head
from softbias.training.linear import regression


def separable(classes: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    centers = rng.normal(0, 3, (classes, 5))
    return (centers[labels] * [1, 10, 100, 1, 0] + rng.normal(0, 1, (n, 5)) * [1, 10, 100, 1, 0] + 7).astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_folded_head_gives_the_probabilities_of_the_regression(classes):
    features, labels = separable(classes)
    weight, bias = fit_head(features, labels, classes)
    scale = np.where(features.std(0) > 1e-6, features.std(0), 1)
    inputs = (features - features.mean(0)) / scale
    expected = regression(inputs, labels, choose_strength(inputs, labels)).predict_proba(inputs)
    given = (torch.from_numpy(features) @ weight.T + bias).softmax(-1)
    np.testing.assert_allclose(given.numpy(), expected, atol=1e-4)


def test_a_class_without_training_images_is_never_the_answer():
    features, labels = separable(3)
    weight, bias = fit_head(features, np.where(labels == 2, 3, labels), 4)
    assert weight.shape == (4, 5) and not weight[2].any()
    answers = (torch.from_numpy(features) @ weight.T + bias).argmax(-1)
    assert 2 not in answers.tolist()


def test_strength_is_one_of_the_grid_also_for_classes_of_one_image():
    features, _ = separable(3, 12)
    assert choose_strength(features, np.arange(12)) in STRENGTHS
    assert choose_strength(features, np.array([0] * 10 + [1, 2])) in STRENGTHS


def test_a_head_that_sees_every_patch_is_refused():
    model = create_model("deit_nano", num_classes=3, img_size=32, patch_size=8, pool="flatten")
    with pytest.raises(SoftbiasError, match="head_start"):
        linear_head(model)


def test_a_run_keeps_its_head_and_its_first_checkpoint_has_it(train):
    run = train(recipe="finetune", head_start="logistic", epochs=1, lr=0.0, warmup_lr=0.0, min_lr=0.0).run
    assert run.head_path.is_file()
    first, last = run.classifier(run.checkpoints[0]).model, run.classifier().model
    assert torch.equal(first.head.weight, last.head.weight) and first.head.weight.any()


def test_it_learns_from_the_features(train):
    started = train(recipe="finetune", head_start="logistic", epochs=1, lr=0.0, warmup_lr=0.0, min_lr=0.0)
    assert started.summary["test"]["accuracy"] > 0.9  # brightness is in the features of random weights, too


def test_a_damaged_head_of_a_finished_run_is_made_again(train):
    options = {"recipe": "finetune", "head_start": "logistic", "epochs": 1}
    run = train(**options).run
    before = run.head_path.read_bytes()
    run.head_path.write_bytes(before[:-4] + b"abcd")
    train(**options, resume=True)
    assert run.head_path.read_bytes() == before
