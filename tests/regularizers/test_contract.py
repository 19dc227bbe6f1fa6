"""The contract of every registered regularizer; and one from outside the package that defines nothing but its loss."""

import json

import pytest
import torch

from softbias.cli import main
from softbias.regularizers import (
    REGULARIZERS,
    Regularizer,
    head_average,
    list_regularizers,
)
from softbias.regularizers.contract import check_regularizer

OPTIONS = ({}, {"reduction": "sum"}, {"maps": "minmax"})


class Sharpness(Regularizer):
    """Attention should be spread: the mean over rows of Σ A². A loss, and nothing else."""

    def forward(self, attention, images):
        return head_average(attention, self.grid).square().sum(-1).mean(-1)


class Entropy(Sharpness):
    """It is not defined for negative entries, which the maps of learned masks have."""

    def forward(self, attention, images):
        averaged = head_average(attention, self.grid)
        return -torch.xlogy(averaged, averaged).sum(-1).mean(-1)


@pytest.fixture
def sharpness(monkeypatch):
    monkeypatch.setitem(REGULARIZERS, "sharpness", Sharpness)


@pytest.mark.parametrize("name", list_regularizers())
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_registered_regularizer_keeps_the_contract(name, options):
    check_regularizer(name, **options)


def test_a_loss_alone_keeps_the_contract_trains_is_logged_and_stands_on_the_page(sharpness, tmp_path):
    check_regularizer("sharpness")
    status = main(
        ["fit", "fashion", "--model", "arvit_nano", "--recipe", "quick", "--recipe.steps", "4", "--fraction", "0.04",
         "--model-option", "patch_size=8", "--regularize", "sharpness:layer=1,weight=0.5", "--out", str(tmp_path / "run"),
         "--device", "cpu", "--quiet", "--no-baseline", "--trackers", "none"]
    )  # fmt: skip
    assert status == 0
    row = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert 1 / 16 < row["sharpness_loss"] <= 1 and row["sharpness_active"] == 1
    assert row["loss"] == pytest.approx(row["task_loss"] + 0.5 * row["sharpness_loss"], abs=1e-5)
    page = (tmp_path / "run/report.html").read_text()
    assert "sharpness, layer 1" in page and "sharpness loss, unweighted" in page and "Penalty: blue" not in page


class OneForAll(Sharpness):
    def forward(self, attention, images):
        return super().forward(attention, images).mean()


class WrongFactors(Sharpness):
    """Its fast form is not its definition."""

    def factors(self, images):
        return (torch.ones(len(images), len(self.grid), 1, dtype=images.dtype),) * 2


class IntoImages(Sharpness):
    def forward(self, attention, images):
        return super().forward(attention, images) * (1 + images.mean((1, 2, 3)).square())


class Loud(Sharpness):
    """It has a gradient where its value is at the floor."""

    def forward(self, attention, images):
        value = super().forward(attention, images)
        return value - value.detach()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OneForAll, "one per image"),
        (WrongFactors, "values"),
        (IntoImages, "into the images"),
        (Loud, "zero has a gradient"),
        (Entropy, "negative"),
    ],
)
def test_what_breaks_the_contract_is_caught(monkeypatch, kind, words):
    monkeypatch.setitem(REGULARIZERS, "broken", kind)
    with pytest.raises(AssertionError, match=words):
        check_regularizer("broken")
