"""Objectives that learn features: losses known in closed form, views that belong together, heads that come and go."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from softbias.data.augment import Augmentation
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.training.batches import Batches, SplitImages
from softbias.training.neighbors import FeatureSpace, neighbor_scores, vote
from softbias.training.objectives import find_objective
from softbias.training.objectives.features import drop_head, install_head
from softbias.training.objectives.views import TEMPERATURE, Views
from softbias.training.recipe import RECIPES, Recipe

FEATURES = ("views", "instances")


def batches_of(data, name: str, **options) -> Batches:
    recipe = Recipe(objective=name, batch_size=16, **options)
    return Batches(SplitImages(data, data.splits["train"], torch.device("cpu")), recipe, 0, 0, (0.0,) * 3, (1.0,) * 3)


def test_the_loss_of_two_views_is_known():
    """Views of one picture point the same way, and those of two pictures at right angles: each has two others."""
    projected = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.0]])
    index = torch.tensor([7, 3, 7, 3])
    assert Views().loss(projected, index, None, 0.0).item() == pytest.approx(math.log(2) - 1 / TEMPERATURE)
    assert Views().accuracy(projected, index) == 1
    assert Views().accuracy(projected, torch.tensor([7, 7, 3, 3])) == 0


def test_a_picture_that_comes_three_times_is_never_taken_for_another_one():
    projected = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    index = torch.tensor([0, 0, 0, 1, 1])
    expected = (3 * math.log(2) + 2 * math.log(3)) / 5 - 1 / TEMPERATURE
    assert Views().loss(projected, index, None, 0.0).item() == pytest.approx(expected)


def test_views_are_two_different_cuts_of_each_picture(little):
    given = batches_of(little(60), "views", augmentation=Augmentation(crop="resized", flip=0.5))
    index, view = given.at(0, given.epoch(0))
    first, second = given.load(index, view, 0).images.chunk(2)
    assert len(first) == len(index) and all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    plain = batches_of(little(60), "views")
    first, second = plain.load(index, view, 0).images.chunk(2)
    assert torch.equal(first, second), "without augmentation the views are the picture"


def test_an_instance_is_a_class_and_mixed_images_share_the_target(little):
    given = batches_of(little(60), "instances")
    index, view = given.at(0, given.epoch(0))
    assert given.load(index, view, 0).targets.argmax(1).tolist() == index.tolist()
    mixed = batches_of(little(60), "instances", augmentation=Augmentation(cutmix=1.0)).load(index, view, 0).targets
    assert mixed.shape == (16, 40) and (mixed > 0).sum(1).max() == 2
    torch.testing.assert_close(mixed.sum(1), torch.ones(16))


@pytest.mark.parametrize("name", FEATURES)
def test_numbers_of_images_that_an_objective_cannot_learn_from_are_refused(name):
    with pytest.raises(SoftbiasError):
        find_objective(name).count_outputs((), 1)
    assert find_objective(name).count_outputs((), 2) >= 2


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("deit_nano", {}),
        ("soft_tiny", {"depth": 1}),
        ("arvit_nano", {}),
        ("resnet_nano", {}),
        ("timm:vit_tiny_patch16_224", {"depth": 1, "patch_size": 8}),
    ],
)
def test_a_head_comes_and_goes_and_leaves_the_features(model, options):
    built = create_model(model, num_classes=5, img_size=32, **options).eval()
    images = torch.rand(3, 3, 32, 32)
    before = built.forward_head(built.forward_features(images), pre_logits=True)
    linear = built.get_classifier()
    install_head(built, Views())
    assert built(images).shape == (3, 128) and isinstance(built.get_classifier(), nn.Sequential)
    assert built.get_classifier()[0].in_features == linear.in_features
    drop_head(built)
    assert torch.equal(built(images), before) and built.num_classes == 0
    assert not any(name.startswith(("head", "fc")) for name, _ in built.named_parameters() if "fc_norm" not in name)


def test_a_model_of_hugging_face_is_refused(tmp_path, hugging_face_vit):
    hugging_face_vit(3, hidden_size=32, intermediate_size=64).save_pretrained(tmp_path / "vit")
    with pytest.raises(SoftbiasError):
        install_head(create_model(f"hf:{tmp_path / 'vit'}"), Views())


def test_a_model_without_a_linear_head_is_refused():
    model = create_model("timm:deit_tiny_distilled_patch16_224", num_classes=5, img_size=32, depth=1, patch_size=8)
    with pytest.raises(SoftbiasError):
        install_head(model, Views())


@pytest.mark.parametrize("name", FEATURES)
def test_a_recipe_has_the_name_of_its_objective_and_chooses_nothing_by_validation(name):
    recipe = RECIPES[name]
    assert recipe.objective == name and recipe.select == "last" and recipe.val_fraction == 0 and recipe.patience is None


def space(train: list[list[float]], asked: list[list[float]] | None = None) -> FeatureSpace:
    known = np.array(train, np.float32)
    index = np.arange(len(known))
    if asked is None:
        return FeatureSpace(index, index, known, known)
    return FeatureSpace(index, len(known) + np.arange(len(asked)), known, np.array(asked, np.float32))


def test_neighbors_are_the_most_similar_and_never_the_picture_itself():
    found = space([[1, 0], [0.9, 0.1], [-1, 0], [-0.9, -0.1]]).nearest(2)
    assert found.rows[:, 0].tolist() == [1, 0, 3, 2]
    assert (np.diff(found.similarity, axis=1) <= 0).all()
    asked = space([[1, 0], [-1, 0]], [[2, 0], [-3, 0]]).nearest(1)
    assert asked.rows[:, 0].tolist() == [0, 1] and asked.similarity == pytest.approx(1)


def test_more_neighbors_than_there_are_images_are_all_of_them():
    assert space([[1.0, 0], [0, 1], [1, 1]]).nearest(20).rows.shape == (3, 2)
    assert space([[1.0, 0], [0, 1]], [[1, 1]]).nearest(20).rows.shape == (1, 2)


def test_near_neighbors_outvote_many_distant_ones():
    found = space([[1, 0.01], [-0.4, 1], [-0.4, 1], [-0.2, -2]], [[1, 0]]).nearest(4)
    assert vote(found, np.array([1, 0, 0, 0]), 2).tolist() == [1]


def test_scores_of_neighbors_stand_beside_those_of_random_features(little):
    data = little(60)
    train, test = data.splits["train"], data.splits["test"]
    by_class = np.eye(3, dtype=np.float32)[data.labels]
    right = FeatureSpace(train, test, by_class[train], by_class[test])
    same = np.ones((60, 1), np.float32) + np.arange(60)[:, None].astype(np.float32) % 2
    random = FeatureSpace(train, test, same[train], same[test])
    found = neighbor_scores(right, data, random)
    assert found is not None and found["accuracy"] == 1 and found["n"] == 20 and found["split"] == "test"
    assert found["random_weights"] < 0.8 and 0 < found["accuracy_interval"][0] < 1
    unlabeled = type(data)("one", data.images, np.zeros(60, np.int64), ("picture",), data.splits)
    assert neighbor_scores(right, unlabeled) is None
