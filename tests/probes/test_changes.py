"""Shift, rotation, patch shuffle, occlusion, texture and resolution, on models whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from softbias.classifier import Classifier
from softbias.models import create_model
from softbias.probes import PROBES
from softbias.probes.changes import (
    hidden,
    occlusion,
    partners,
    patch_shuffle,
    rotated,
    rotation,
    shuffled,
    swap_amplitude,
    swap_color,
    texture,
)
from softbias.probes.resolution import NoNativeEntryError, at_size, blurred, resolution
from softbias.probes.shift import moved, shift

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


class Bag(nn.Module):
    """Circular convolution, then a mean over positions: translation changes nothing but the rounding."""

    def __init__(self, mean: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular")
        self.mean = mean
        self.num_features = 5

    def forward_features(self, images):
        return self.conv(images)

    def forward(self, images):
        return self.forward_features(images).relu().mean((-2, -1))


class Corner(nn.Module):
    """The class is that of the brightest channel of the top left pixel: it reads one position alone."""

    num_features = 3

    def forward_features(self, images):
        return images

    def forward(self, images):
        return images[:, :, 0, 0]


class MeanColor(nn.Module):
    """The class is that of the brightest channel on average: order does not matter."""

    def forward(self, images):
        return images.mean((-2, -1))


def values(rows, measure: str, column: str) -> dict:
    return {row[column]: row["value"] for row in rows if row["measure"] == measure}


def test_a_circular_convolution_with_a_mean_is_perfectly_shift_consistent_and_equivariant():
    rows = shift(Bag(), (IMAGES, None), n=30, distances=(1, 3))
    assert values(rows, "consistency", "pixels") == {1: 1.0, 3: 1.0}
    assert values(rows, "equivariance", "pixels") == pytest.approx({1: 1.0, 3: 1.0}, abs=1e-5)
    assert all(value < 0.9 for value in values(rows, "unmoved", "pixels").values())


def test_one_that_looks_at_a_corner_is_as_consistent_as_noise_allows():
    rows = shift(Corner(), (IMAGES, None), n=30, distances=(5,))
    assert values(rows, "consistency", "pixels")[5] < 0.6


def test_moving_moves_and_fills_as_asked():
    picture = torch.arange(9.0).view(1, 1, 3, 3)
    assert moved(picture, 0, 1, "zero")[0, 0].tolist() == [[0, 0, 1], [0, 3, 4], [0, 6, 7]]
    assert moved(picture, 1, 0, "edge")[0, 0].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert moved(picture, 0, -1, "roll")[0, 0].tolist() == [[1, 2, 0], [4, 5, 3], [7, 8, 6]]
    with pytest.raises(ValueError, match="'mirror'"):
        shift(Bag(), (IMAGES, None), fill="mirror")


def test_quarter_turns_are_exact_and_a_mean_over_positions_does_not_mind_them():
    picture = torch.arange(4.0).view(1, 1, 2, 2)
    assert rotated(picture, angle=90)[0, 0].tolist() == [[1, 3], [0, 2]]
    four = rotated(rotated(rotated(rotated(picture, angle=90), angle=90), angle=90), angle=90)
    torch.testing.assert_close(four, picture)
    rows = rotation(MeanColor(), (IMAGES, LABELS), n=30, angles=(90, 180))
    assert values(rows, "consistency", "angle") == {90: 1.0, 180: 1.0}
    accuracy = values(rows, "accuracy", "angle")
    assert accuracy[90] == accuracy["none"]


def test_shuffling_moves_whole_tiles_and_never_leaves_all_where_they_were():
    tiles = torch.arange(4.0).view(1, 1, 2, 2).repeat_interleave(2, 2).repeat_interleave(2, 3).expand(200, 1, 4, 4)
    found = shuffled(tiles, torch.Generator().manual_seed(0), tiles=2)
    small = found[:, :, ::2, ::2]
    torch.testing.assert_close(small.repeat_interleave(2, 2).repeat_interleave(2, 3), found)
    assert (small.flatten(1).sort(1).values == torch.arange(4)).all()
    assert (found != tiles).flatten(1).any(1).all()
    assert len(small.flatten(1).unique(dim=0)) == 23, "every other order comes up"


def test_a_mean_color_does_not_mind_shuffling_but_a_corner_does():
    assert values(patch_shuffle(MeanColor(), (IMAGES, LABELS), n=30), "consistency", "tiles") == {2: 1.0, 4: 1.0, 8: 1.0}
    assert values(patch_shuffle(Corner(), (IMAGES, LABELS), n=30), "consistency", "tiles")[8] < 0.7
    with pytest.raises(ValueError, match="tiles=5"):
        patch_shuffle(MeanColor(), (IMAGES, LABELS), tiles=(5,))


def test_the_share_that_is_hidden_is_the_share_that_was_asked_for():
    images = torch.ones(5, 3, 16, 16)
    for share in (0.0, 0.25, 1.0):
        found = hidden(images, torch.Generator().manual_seed(0), share=share, tiles=8, color=torch.zeros(3))
        assert found.mean((1, 2, 3)).tolist() == [1 - share] * 5
    rows = occlusion(Corner(), (IMAGES, LABELS), n=30, shares=(0.0, 1.0))
    assert values(rows, "consistency", "hidden")[0.0] == 1
    same = [row["value"] for row in rows if row["measure"] == "accuracy" and row["hidden"] == 1.0]
    assert same[0] == pytest.approx(1 / 3), "everything hidden: one class for all"


def test_style_swaps_keep_what_they_should():
    own, other = (torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) * 0.2 + 0.4 for seed in (1, 2))
    mixed = swap_amplitude(own, other)
    torch.testing.assert_close(torch.fft.rfft2(mixed).abs(), torch.fft.rfft2(other).abs(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(swap_amplitude(own, own), own)
    painted = swap_color(own, other)
    torch.testing.assert_close(painted.mean((-2, -1)), other.mean((-2, -1)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(painted.std((-2, -1)), other.std((-2, -1)), rtol=1e-4, atol=1e-4)


def test_a_model_that_sees_the_mean_color_alone_follows_the_style():
    tinted = np.full((30, 16, 16, 3), 60, np.uint8) + RNG.integers(0, 20, (30, 16, 16, 3), dtype=np.uint8)
    tinted[np.arange(30), :, :, LABELS] += 100
    rows = texture(MeanColor(), (tinted, LABELS), n=30)
    for swap in ("amplitude", "color"):
        assert values([row for row in rows if row["swap"] == swap], "to_style", "swap") == {swap: 1.0}
        assert values([row for row in rows if row["swap"] == swap], "shape_bias", "swap") == {swap: 0.0}
    labels = torch.from_numpy(LABELS)
    assert (labels[partners(labels, 0)] != labels).all()


def test_a_constant_picture_survives_blurring_and_a_fine_pattern_does_not():
    flat, fine = torch.full((1, 3, 16, 16), 0.3), torch.zeros(1, 3, 16, 16)
    fine[..., ::2] = 1
    torch.testing.assert_close(blurred(flat, size=(8, 8)), flat)
    assert blurred(fine, size=(8, 8)).std() < 0.3 * fine.std()
    rows = resolution(MeanColor(), (IMAGES, LABELS), n=30, scales=(0.5, 2.0))
    found = {(row["entry"], row["scale"]): row["value"] for row in rows if row["measure"] == "consistency"}
    assert set(found) == {("blurred", 0.5), ("native", 0.5), ("native", 2.0)} and min(found.values()) > 0.8


def test_masks_follow_to_a_grid_with_fewer_positions_than_their_rank():
    torch.manual_seed(0)
    model = create_model("ibit_nano", num_classes=3, img_size=16, patch_size=4)  # rank 9; 2 × 2 patches at half the size
    rows = resolution(model, (IMAGES, LABELS), n=10, scales=(0.5, 2.0))
    assert {row["n"] for row in rows if row["measure"] == "consistency" and row["entry"] == "native"} == {10}


def test_a_size_a_model_cannot_be_brought_to_is_no_native_entry():
    classifier = Classifier(create_model("deit_nano", num_classes=3, img_size=16, patch_size=4), "mine", "random")
    with pytest.raises(NoNativeEntryError, match="mine cannot be brought to 6 × 6 px: the image's height must be a multiple"):
        at_size(classifier, (6, 6))


def test_panels_of_one_quantity_have_one_scale(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr("softbias.probes.drawing.save", lambda figure, folder, stem: figures.append(figure))
    about = {"model": "m", "weights": "trained", "probe": "resolution", "measure": "accuracy", "n": 10}
    values = {("blurred", 0.5): 0.2, ("native", 0.5): 0.9}
    rows = [
        {**about, "entry": entry, "scale": scale, "value": value, "low": value - 0.1, "high": value + 0.1}
        for (entry, scale), value in values.items()
    ]
    PROBES["resolution"].draw(rows, tmp_path)
    blurred_panel, native_panel = figures[0].axes
    assert blurred_panel.get_ylim() == native_panel.get_ylim() and native_panel.get_ylim()[1] > 1
