"""The receptive field of convolutions whose field is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from softbias.models import create_model
from softbias.probes.receptive_field import half_radius, receptive_field

IMAGES = (np.random.default_rng(0).integers(0, 256, (4, 17, 17, 3), dtype=np.uint8), None)


class Boxes(nn.Module):
    """`depth` convolutions of 3 × 3, all ones, without anything between."""

    num_features = 5  # odd, so that random signs never cancel

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if not one else 5, 5, 3, padding=1) for one in range(depth))
        for conv in self.convs:
            nn.init.ones_(conv.weight)

    def forward_features(self, x):
        for conv in self.convs:
            x = conv(x)
        return x

    def forward(self, x):
        return self.forward_features(x).mean((-2, -1))


def value(rows, measure: str, layer: int | None = None) -> float:
    (found,) = [row["value"] for row in rows if row["measure"] == measure and row["layer"] == layer]
    return found


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_three_by_three_convolutions_reach_one_pixel_each(depth):
    rows = receptive_field(Boxes(depth), IMAGES, n=4, seed=1)
    field = {(row["row"], row["column"]): row["value"] for row in rows if row["measure"] == "field"}
    reached = {position for position, value in field.items() if value > 0}
    assert reached == {(row, column) for row in range(8 - depth, 9 + depth) for column in range(8 - depth, 9 + depth)}
    if depth == 1:
        assert value(rows, "extent") == 1
        assert value(rows, "radius") == pytest.approx((4 * 1 + 4 * math.sqrt(2)) / 9, rel=1e-4)
        assert value(rows, "half_radius") == 1


def test_half_of_the_gradient_lies_within_its_half_radius():
    gradient = torch.tensor([[[0.2, 0.0], [0.5, 0.3]]])
    distances = torch.tensor([[0.0, 3.0], [1.0, 2.0]])
    assert half_radius(gradient, distances).tolist() == [1]
    assert half_radius(torch.tensor([[[0.6, 0.0], [0.2, 0.2]]]), distances).tolist() == [0]


def test_a_window_transformer_never_reaches_outside_its_windows():
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    rows = receptive_field(create_model("window_nano", mode="block"), (images, None), n=3)
    field = {(row["row"], row["column"]): row["value"] for row in rows if row["measure"] == "field" and row["layer"] == 3}
    assert all(value == 0 for (row, column), value in field.items() if row < 16 or column < 16)
    assert sum(value > 0 for value in field.values()) == 16 * 16
    wide = receptive_field(create_model("deit_nano"), (images, None), n=3)
    assert all(row["value"] > 0 for row in wide if row["measure"] == "field" and row["layer"] == 3), "full attention sees all"
