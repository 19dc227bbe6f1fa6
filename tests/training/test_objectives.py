"""Objectives: the contract of every registered one, values known in closed form, and one from outside the package."""

import math

import numpy as np
import pytest
import torch

from softbias.training.balance import ClassBalance
from softbias.training.batches import Batch, Batches, SplitImages
from softbias.training.evaluate import score
from softbias.training.objectives import OBJECTIVES, list_objectives
from softbias.training.objectives.base import Objective, check_objective
from softbias.training.objectives.rotation import Rotation
from softbias.training.objectives.supervised import Supervised
from softbias.training.recipe import Recipe


@pytest.mark.parametrize("name", list_objectives())
def test_every_registered_objective_keeps_the_contract(name):
    check_objective(name)


def test_the_loss_of_smoothed_targets_is_known():
    """Logits (log 3, 0): probabilities 3/4 and 1/4; a tenth of smoothing makes the target (.95, .05)."""
    logits, target = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[1.0, 0.0]])
    objective = Supervised()
    assert objective.loss(logits, target, None, 0.0).item() == pytest.approx(-math.log(3 / 4))
    smoothed = -0.95 * math.log(3 / 4) - 0.05 * math.log(1 / 4)
    assert objective.loss(logits, target, None, 0.1).item() == pytest.approx(smoothed)


def test_class_weights_multiply_the_loss_of_their_class():
    logits, target = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
    weighted = Supervised().loss(logits, target, ClassBalance(weights=torch.tensor([1.0, 3.0])), 0.0)
    assert weighted.item() == pytest.approx(3 * math.log(2))


@pytest.mark.parametrize(("rotations", "count"), [("all", 160), ("one", 40)])
def test_a_rotated_image_turned_back_is_the_image(little, rotations, count):
    data = little(60)
    recipe = Recipe(objective="rotation", rotations=rotations, batch_size=40)
    batches = Batches(SplitImages(data, data.splits["train"], torch.device("cpu")), recipe, 0, 4, (0.0,) * 3, (1.0,) * 3)
    index, view = batches.at(0, batches.epoch(0))
    images, targets = batches.load(index, view, 0)
    assert len(images) == count and set(targets.argmax(1).tolist()) == {0, 1, 2, 3}
    plain = batches.images.load(index).float() / 255
    for number, (image, quarters) in enumerate(zip(images, targets.argmax(1).tolist(), strict=True)):
        back = [torch.rot90(image, turns, (1, 2)) for turns in (-quarters, quarters)]
        assert any(torch.allclose(each, plain[number % 40], atol=1e-6) for each in back)


def test_a_pretext_task_has_no_interval_because_its_views_are_not_independent():
    probabilities = np.eye(4, dtype=np.float32)[[0, 1, 2, 2]]
    found = score(probabilities, np.arange(4), Rotation().output_names(("a", "b")))
    scores = Rotation().pretext_scores(found, ("a", "b"))
    assert scores["accuracy"] == 0.75 and scores["chance_level"] == 0.25
    assert "accuracy_interval" in found and "accuracy_interval" not in scores


class Mirror(Objective):
    """Is an image mirrored? A task from outside the package."""

    task = "telling mirrored images apart"

    def output_names(self, class_names):
        return "as it was", "mirrored"

    def views(self, recipe):
        return 2

    def batch(self, batches, index, epoch):
        images, mirrored = self.held_out(batches.augmented(index, epoch), index)
        return Batch(images, torch.nn.functional.one_hot(mirrored, 2).float())

    def held_out(self, images, labels):
        return torch.cat([images, images.flip(-1)]), torch.arange(2).repeat_interleave(len(images))


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "mirror", Mirror)


def test_an_objective_from_outside_is_checked_trained_and_scored(train, mirror):
    check_objective("mirror")
    result = train("arvit_nano", objective="mirror")
    assert result.summary["pretext"] and result.summary["test"]["n"] == 40
    assert result.summary["test"]["task"] == Mirror.task and result.model.num_classes == 2


def test_an_objective_without_a_gradient_or_with_wrong_targets_is_caught(monkeypatch):
    class Deaf(Mirror):
        def loss(self, logits, targets, balance, smoothing):
            return super().loss(logits.detach().requires_grad_(), targets, balance, smoothing)

    class Short(Mirror):
        def output_names(self, class_names):
            return "as it was", "mirrored", "neither"

    for kind, words in ((Deaf, "gradient"), (Short, "targets")):
        monkeypatch.setitem(OBJECTIVES, "broken", kind)
        with pytest.raises(AssertionError, match=words):
            check_objective("broken")
