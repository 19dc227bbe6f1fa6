"""Non-locality, distance and entropy on maps whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import softbias
from softbias.attention import Full
from softbias.grid import Grid
from softbias.models import create_model
from softbias.models.inspect import Site, attention_sites
from softbias.probes.locality import ABSOLUTE, PLAIN, draw, locality, measures, patch_map

IMAGES = (np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8), None)


def value(rows, measure: str, layer: int, head: int | None) -> float:
    (found,) = [row["value"] for row in rows if (row["measure"], row["layer"], row["head"]) == (measure, layer, head)]
    return found


@pytest.mark.parametrize("grid", [Grid(8, 8), Grid(3, 5), Grid(1, 4)])
def test_a_uniform_map_looks_as_far_as_the_mean_distance_of_patches(grid):
    uniform = torch.full((grid.patches, grid.patches), 1 / grid.patches)
    found = measures(uniform, grid, (4, 4))
    positions = [(row, column) for row in range(grid.height) for column in range(grid.width)]
    mean_distance = np.mean([math.dist(one, other) for one in positions for other in positions])
    assert found["non_locality"].item() == pytest.approx(mean_distance, rel=1e-5)
    assert found["distance"].item() == pytest.approx(4 * mean_distance, rel=1e-5)
    assert found["entropy"].item() == pytest.approx(math.log(grid.patches), rel=1e-5)


def test_an_identity_map_looks_nowhere_else():
    found = measures(torch.eye(15), Grid(3, 5), (4, 4))
    assert [found[name].item() for name in ("non_locality", "distance")] == [0, 0]
    assert abs(found["entropy"].item()) < 1e-6


def test_a_map_that_looks_one_patch_to_the_right_has_the_width_of_a_patch_as_distance():
    grid = Grid(1, 4)
    right = torch.eye(4).roll(1, 1)
    right[3] = torch.tensor([0.0, 0, 1, 0])  # the last one looks left instead of around the edge
    found = measures(right, grid, (2, 7))
    assert found["non_locality"].item() == 1
    assert found["distance"].item() == 7


def test_prefix_tokens_are_dropped_and_rows_normalized_again():
    grid = Grid(2, 2, prefix=1)
    attention = torch.zeros(1, 1, 5, 5)
    attention[..., 0] = 0.75  # most of every row looks at the class token
    attention[..., 1:, 1:] += 0.25 * torch.eye(4)
    part = patch_map(attention, Site(nn.Identity(), Full(4, 1, grid), "full"))
    torch.testing.assert_close(part, torch.eye(4)[None, None])


def test_signs_are_read_as_strengths_and_the_rows_say_so():
    model = create_model("ibit_nano")
    rows = locality(model, IMAGES, n=4)
    assert {row["map"] for row in rows} == {ABSOLUTE}
    site = attention_sites(model)[0]
    signed = torch.randn(2, 4, 65, 65) - 0.5
    part = patch_map(signed, site)
    torch.testing.assert_close(part.sum(-1), torch.ones(2, 4, 64))
    assert (part >= 0).all()
    assert {row["map"] for row in locality(create_model("deit_nano"), IMAGES, n=4)} == {PLAIN}


def test_the_layers_real_input_is_read_and_the_original_way_is_another():
    torch.manual_seed(0)
    model = create_model("convit_nano", strength=0.5)
    for block in model.blocks:  # content must matter for the difference to be seen
        nn.init.normal_(block.attn.qkv.weight, std=0.5)
    ours, reference = (locality(model, IMAGES, n=6, original=original) for original in (False, True))
    images = torch.from_numpy(IMAGES[0][np.random.default_rng(0).permutation(6)]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(model.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    seen = softbias.inspect(model.eval(), (images - mean) / std)
    for layer in (1, 3):
        grid = seen.grid[layer]
        part = grid.patches_only(seen.maps[layer], renormalize=True)
        expected = (part * grid.distances()).sum(-1).mean((0, 2))
        found = [value(ours, "non_locality", layer, head) for head in range(4)]
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4)
        assert value(reference, "non_locality", layer, 0) != pytest.approx(found[0], rel=1e-3)
    raw = model.patch_embed((images - mean) / std)
    attention = model.blocks[1].attn.attention_map(raw)
    expected = (attention * seen.grid[1].distances()).sum(-1).mean((0, 2))
    found = [value(reference, "non_locality", 1, head) for head in range(4)]
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4)
    assert {row["input"] for row in reference} == {"raw patch embeddings"}


def test_rows_carry_the_model_its_weights_n_and_an_interval():
    rows = locality(create_model("deit_nano"), IMAGES, n=5)
    assert {row["weights"] for row in rows} == {"untrained"} and {row["n"] for row in rows} == {5}
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    assert {(row["layer"], row["head"]) for row in rows} == {(layer, head) for layer in range(4) for head in (None, 0, 1, 2, 3)}


def test_timms_vit_is_measured_as_well():
    torch.manual_seed(0)
    model = create_model(
        "timm:vit_tiny_patch16_224", num_classes=3, img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3
    )
    rows = locality(model, IMAGES, n=3)
    assert {row["layer"] for row in rows} == {0, 1} and rows[0]["model"] == "timm:vit_tiny_patch16_224"
    assert 0 < value(rows, "distance", 0, 0) < 32


@pytest.mark.slow
def test_figures_are_drawn_by_layer_and_through_training(tmp_path):
    rows = locality(create_model("deit_nano"), IMAGES, n=2)
    (now,) = draw(rows, tmp_path)
    later = [{**row, "step": step, "epoch": step / 10} for step in (0, 10) for row in rows]
    (through,) = draw(later, tmp_path)
    assert now.stat().st_size > 5000 and through.stat().st_size > 5000 and now != through
