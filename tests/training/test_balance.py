"""The loss makes up for classes of different sizes, and what a model learns by it is what the formulas say."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from softbias.training.balance import ClassBalance, class_balance
from softbias.training.recipe import Recipe

EVEN, UNEVEN = np.repeat([0, 1], 5), np.repeat([0, 1], [9, 1])


def test_uneven_classes_are_adjusted_and_even_ones_are_not():
    assert class_balance(EVEN, 2, Recipe()) is None
    assert class_balance(UNEVEN, 2, Recipe(class_weights="none")) is None
    found = class_balance(UNEVEN, 2, Recipe())
    assert found.weights is None and found.shares.tolist() == pytest.approx([0.9, 0.1])
    assert class_balance(EVEN, 2, Recipe(class_weights="adjusted")).shares.tolist() == [0.5, 0.5]


def test_balanced_classes_have_the_same_weight_in_all():
    weights = class_balance(UNEVEN, 2, Recipe(class_weights="balanced")).weights
    assert (weights * torch.tensor([9.0, 1.0])).tolist() == pytest.approx([5, 5])


@pytest.mark.parametrize("weights", ["adjusted", "balanced"])
def test_a_class_without_images_leaves_the_loss_finite(weights):
    balance = class_balance(UNEVEN, 3, Recipe(class_weights=weights))
    assert math.isfinite(balance.loss(torch.zeros(2, 3), torch.eye(3)[:2], 0.1).item())


def test_even_shares_change_nothing():
    logits, targets = torch.randn(8, 4), torch.eye(4)[torch.arange(8) % 4]
    adjusted = ClassBalance(shares=torch.full((4,), 0.25)).loss(logits, targets, 0.1)
    assert adjusted.item() == pytest.approx(cross_entropy(logits, targets, label_smoothing=0.1).item(), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_model_that_confuses_all_images_prefers_no_class(smoothing):
    """Of constant outputs z the best have softmax(z + log π) = π, so they are all equal; without balance they are log π."""
    targets = torch.eye(3)[torch.repeat_interleave(torch.arange(3), torch.tensor([970, 28, 2]))]
    for balance, best in ((ClassBalance(shares=targets.mean(0)), True), (ClassBalance(), False)):
        outputs = torch.zeros(3, requires_grad=True)
        balance.loss(outputs.expand_as(targets), targets, smoothing).backward()
        assert (outputs.grad.abs().max().item() < 1e-6) == best
