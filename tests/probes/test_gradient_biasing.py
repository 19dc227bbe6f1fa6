"""∂J/∂S = M ⊙ ∂J/∂Y, and what follows for near and far."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from softbias.attention.masked import Masked
from softbias.grid import Grid
from softbias.models import create_model
from softbias.probes.gradient_biasing import by_distance, draw, gradient_biasing, recording

RNG = np.random.default_rng(0)
IMAGES = (RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), RNG.integers(0, 10, 20))


def values(rows, measure: str, layer: int = 0) -> dict[float, float]:
    return {row["distance"]: row["value"] for row in rows if row["measure"] == measure and row["layer"] == layer}


def test_recording_changes_no_output_and_the_score_gradient_is_the_mask_times_the_map_gradient():
    torch.manual_seed(0)
    attention = Masked(32, 4, Grid(3, 3, prefix=1), rank=5)
    x = torch.randn(2, 10, 32)
    plain = attention(x)
    with recording({0: attention}) as found:
        explicit = attention(x)
    torch.testing.assert_close(explicit, plain)
    scores, masked, mask = found[0]
    on_scores, on_map = torch.autograd.grad(explicit.square().sum(), (scores, masked))
    torch.testing.assert_close(on_scores, mask * on_map)
    assert "forward" not in vars(attention), "the layer is as it was"


def test_strength_by_distance_on_a_hand_made_gradient():
    grid = Grid(1, 3)
    near = torch.eye(3).expand(2, 1, 3, 3)  # all of the gradient at distance 0
    found = by_distance(near, near, torch.ones(1, 3, 3), grid, near=0.5)
    assert found["on_scores", 0.0].tolist() == [3, 3] and found["on_scores", 1.0].tolist() == [0, 0]
    assert found["near_share", 0.0].tolist() == [1, 1]
    assert found["uniform_near_share", 0.0].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert found["mask", 2.0].tolist() == [1, 1]


def test_a_kernel_mask_concentrates_the_gradient_and_full_attention_has_no_mask():
    torch.manual_seed(0)
    ibit = gradient_biasing(create_model("ibit_nano"), IMAGES, n=20)
    mask = values(ibit, "mask")
    assert mask[0.0] > mask[1.0] > mask[4.0]
    (share,) = values(ibit, "near_share").values()
    (uniform,) = values(ibit, "uniform_near_share").values()
    assert share > 2 * uniform
    deit = gradient_biasing(create_model("deit_nano"), IMAGES, n=20)
    assert set(values(deit, "mask").values()) == {1.0}
    assert values(deit, "on_scores") == values(deit, "on_map")


def test_a_layer_whose_patches_reach_no_logit_is_left_out():
    rows = gradient_biasing(create_model("deit_nano"), IMAGES, n=4)
    assert {row["layer"] for row in rows} == {0, 1, 2}, "the last layer is read at its class token alone"


def test_a_mask_inside_the_logarithm_is_refused():
    with pytest.raises(ValueError, match='norm="softmax"'):
        gradient_biasing(create_model("ibit_nano", norm="softmax"), IMAGES, n=4)


def test_a_figure_is_drawn_and_no_gradient_is_left_behind(tmp_path):
    model = create_model("ibit_nano")
    (file,) = draw(gradient_biasing(model, IMAGES, n=4), tmp_path)
    assert file.stat().st_size > 5000
    assert all(parameter.grad is None for parameter in model.parameters())
