"""Insertion and deletion for a model whose reasons are known, and for real ones."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softbias.models import create_model
from softbias.probes import attribution, features
from softbias.probes.attribution import METHODS, gradients, integrated, integrated_gradients, methods_for, pooled
from softbias.probes.faithfulness import blurred, curve, draw_faithfulness, faithfulness
from softbias.probes.features import cells
from softbias.probes.rows import headline


class LeftTop(nn.Module):
    """Its class 1 is how bright the top left eighth of the picture is, and nothing else."""

    num_classes = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        score = self.scale * x[:, :, :4, :4].mean((1, 2, 3))
        return torch.stack([torch.zeros_like(score), score], 1)


def bright(count: int = 3) -> tuple[Tensor, Tensor]:
    return torch.ones(count, 3, 32, 32), torch.ones(count, dtype=torch.long)


def order(first: bool) -> Tensor:
    """The decisive cell first or last."""
    found = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    found[:, 0, 0] = 2.0 if first else -1.0
    return found


def test_the_right_reason_makes_deletion_fall_at_once_and_a_wrong_one_at_the_end():
    images, target = bright()
    right = curve(LeftTop(), images, target, order(True), "deletion", steps=8)
    wrong = curve(LeftTop(), images, target, order(False), "deletion", steps=8)
    assert right.shape == (3, 9)
    assert (right[:, 0] > 0.99).all() and (right[:, 1:] == 0.5).all()
    assert (wrong[:, :-1] > 0.99).all() and (wrong[:, -1] == 0.5).all()


def test_insertion_rises_at_once_for_the_right_reason():
    images, target = bright()
    images[:, :, 4:] = images[:, :, :, 4:] = -1.0  # so that the blurred picture is dark there
    right = curve(LeftTop(), images, target, order(True), "insertion", steps=8)
    wrong = curve(LeftTop(), images, target, order(False), "insertion", steps=8)
    assert (right[:, 1:] > 0.99).all() and (right[:, 0] < 0.5).all()
    assert (wrong[:, :-1] < 0.5).all() and (wrong[:, -1] > 0.99).all()


def test_curves_end_where_the_other_picture_is():
    torch.manual_seed(0)
    model = create_model("deit_nano", num_classes=3).eval()
    images, target = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
    with torch.no_grad():
        whole, none, soft = (
            model(part).softmax(-1).gather(1, target[:, None])[:, 0] for part in (images, 0 * images, blurred(images))
        )
    relevance = torch.rand(2, 8, 8)
    deletion, insertion = (curve(model, images, target, relevance, game) for game in ("deletion", "insertion"))
    for found, first, last in ((deletion, whole, none), (insertion, soft, whole)):
        torch.testing.assert_close(found[:, 0], first)
        torch.testing.assert_close(found[:, -1], last)


def test_gradients_find_the_only_cell_that_counts():
    images, target = bright()
    for method in (gradients, integrated_gradients):
        shares = method(LeftTop(), images, target)
        torch.testing.assert_close(shares[:, 0, 0], torch.ones(3))


def test_without_captum_integrated_gradients_are_the_same(monkeypatch):
    pytest.importorskip("captum")
    torch.manual_seed(0)
    model, images = create_model("convit_nano", num_classes=3).eval(), torch.randn(2, 3, 32, 32)
    target = torch.tensor([1, 2])
    with_captum = integrated_gradients(model, images, target)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    torch.testing.assert_close(integrated_gradients(model, images, target), with_captum, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(pooled(integrated(model, images, target), (8, 8)), with_captum, rtol=1e-3, atol=1e-5)


def test_integrated_gradients_add_up_to_the_difference_of_scores():
    torch.manual_seed(0)
    model = create_model("arvit_nano", num_classes=3).double().eval()
    images, target = 0.1 * torch.randn(1, 3, 32, 32, dtype=torch.double), torch.tensor([1])
    difference = (model(images) - model(0 * images))[0, 1].item()
    assert integrated(model, images, target).sum().item() == pytest.approx(difference, rel=0.05)


@pytest.mark.parametrize("name", ["convit_nano", "dwconv_nano", "dwnet_nano", "resnet_nano"])
def test_every_method_that_suits_a_model_gives_shares_of_its_cells(name):
    torch.manual_seed(0)
    model, images = create_model(name, num_classes=3).eval(), torch.randn(2, 3, 32, 32)
    names = methods_for(model, images)
    assert ("rollout" in names) == (name == "convit_nano") and ("grad-cam" in names) == (name != "convit_nano")
    for method in names:
        found = METHODS[method](model, images, torch.tensor([0, 1]))
        assert found.shape == (2, *cells(model, images)) == (2, 8, 8) and (found >= 0).all(), method
        assert found.sum((1, 2)).tolist() == pytest.approx([1, 1], abs=1e-4) or method == "grad-cam"


def test_grad_cam_weighs_channels_by_their_slope():
    """One channel supports the class and one opposes it; the map is where the first is."""

    class Two(nn.Module):
        def forward_features(self, x):
            return x[:, :2]

        def forward_head(self, features):
            pooled = features.mean((2, 3))
            return torch.stack([0 * pooled[:, 0], pooled[:, 0] - pooled[:, 1]], 1)

        def forward(self, x):
            return self.forward_head(self.forward_features(x))

    images = torch.zeros(1, 3, 8, 8)
    images[0, 0, 2, 3], images[0, 1, 6, 6] = 1.0, 1.0
    found = attribution.grad_cam(Two(), images, torch.tensor([1]))[0]
    assert found[2, 3].item() == pytest.approx(1) and found[6, 6] == 0


def test_the_probe_tells_a_faithful_method_from_random_and_counts_its_passes(monkeypatch, tmp_path):
    monkeypatch.setattr(features, "CELLS", (4, 4))
    images = np.full((12, 32, 32, 3), 255, np.uint8)
    rows = faithfulness(LeftTop(), (images, None), methods=["gradients"], steps=4)
    value = {(row["measure"], row["method"]): row for row in rows if "share" not in row}
    assert value["deletion", "gradients"]["value"] < value["deletion", "random"]["value"]
    gap = value["deletion − random", "gradients"]
    assert gap["high"] < 0 and gap["n"] == 12 and gap["passes"] == 12
    assert sum("share" in row for row in rows) == 2 * 2 * 5
    table = [(row["measure"], row["method"]) for row in headline(rows)]
    assert table == list(value), "the table has the areas of every method, and no points of curves"
    made = draw_faithfulness(rows, tmp_path)
    assert [path.name for path in made] == ["faithfulness-LeftTop.png"] and made[0].stat().st_size > 10_000


def test_unknown_methods_and_too_few_steps_are_refused():
    images = np.zeros((2, 32, 32, 3), np.uint8)
    with pytest.raises(ValueError, match="no way to explain 'gradient'; did you mean 'gradients'"):
        faithfulness(LeftTop(), (images, None), methods=["gradient"])
    with pytest.raises(ValueError, match="steps=0"):
        faithfulness(LeftTop(), (images, None), steps=0)
