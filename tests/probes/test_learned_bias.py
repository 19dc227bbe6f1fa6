"""What is read off the weights: gates and bumps of gated heads, learned masks."""

from __future__ import annotations

import math

import pytest
import torch

from softbias.attention.masked import Masked, mask_measures
from softbias.attention.positional import bump_rows
from softbias.grid import Grid
from softbias.kernels.rolling import kernel_map
from softbias.models import create_model
from softbias.probes import illustrations
from softbias.probes.learned_bias import draw_gates, draw_masks, gates, masks


def by_head(rows, measure: str, layer: int = 0) -> list[float]:
    found = {row["head"]: row["value"] for row in rows if row["measure"] == measure and row["layer"] == layer}
    return [found[head] for head in sorted(found)]


def test_a_fresh_convit_has_its_gates_at_sigma_of_one_and_its_bumps_on_a_kernel():
    rows = gates(create_model("convit_nano", strength=2.0, gate=1.0))
    assert by_head(rows, "gate") == pytest.approx([1 / (1 + math.exp(-1))] * 4)
    centers = set(zip(by_head(rows, "center_row"), by_head(rows, "center_column"), strict=True))
    assert centers == {(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5), (0.5, 0.5)}
    assert by_head(rows, "width") == pytest.approx([0.5] * 4) and by_head(rows, "strength") == pytest.approx([2.0] * 4)
    assert {row["layer"] for row in rows} == {0, 1, 2}, "the last block is full attention and has no gate"


def bump(weight: torch.Tensor) -> dict[str, float]:
    return {row["measure"]: row["value"] for row in bump_rows(weight)}


def test_the_width_is_the_standard_deviation_of_the_heads_own_map():
    torch.manual_seed(0)
    bias = create_model("convit_nano", img_size=128, patch_size=4, strength=0.1).blocks[0].attn.position
    middle = 16 * 32 + 16
    attention = bias.map()[0, middle]
    offsets = bias.grid.offsets()[middle].float()
    found = bump(bias.weight[:1])
    center = (attention[:, None] * offsets).sum(0)
    spread = (attention * (offsets[:, 0] - center[0]).square()).sum().sqrt()
    assert [found["center_row"], found["center_column"]] == pytest.approx(center.tolist(), abs=0.02)
    assert found["width"] == pytest.approx(spread.item(), rel=0.02)


def test_a_head_that_prefers_what_is_far_has_no_bump():
    found = bump(torch.tensor([[0.5, 0.5, 0.1]]))
    assert found["strength"] < 0 and math.isnan(found["width"]) and math.isnan(found["center_row"])


def test_timms_convit_says_the_same_as_ours():
    with pytest.warns(UserWarning, match="only 4 tokens"):
        reference = gates(create_model("timm:convit_tiny", num_classes=10, img_size=32))
    ours = gates(create_model("convit_tiny", num_classes=10, img_size=32))
    for measure in ("gate", "center_row", "center_column", "width"):
        assert by_head(reference, measure) == pytest.approx(by_head(ours, measure), abs=1e-5)


def test_a_model_without_them_is_refused_by_name():
    with pytest.raises(ValueError, match="deit_nano has no gated"):
        gates(create_model("deit_nano"))
    with pytest.raises(ValueError, match="deit_nano has no learned masks"):
        masks(create_model("deit_nano"))


def test_a_fresh_mask_has_not_moved_and_a_scaled_one_has_moved_by_the_scale():
    model = create_model("ibit_nano")
    assert by_head(masks(model), "moved") == pytest.approx([0] * 4, abs=1e-6)
    with torch.no_grad():
        model.blocks[0].attn.mask_a *= 1.25
    rows = masks(model)
    assert by_head(rows, "moved") == pytest.approx([0.25] * 4, rel=1e-4)
    assert by_head(rows, "moved", layer=1) == pytest.approx([0] * 4, abs=1e-6)


def test_the_rank_of_known_masks():
    grid = Grid(3, 3)
    ones, distances = torch.ones(9, 9), grid.distances()
    flat = mask_measures(torch.stack([ones, torch.eye(9)]), torch.stack([ones, torch.eye(9)]), ones, ones, grid)
    assert flat["rank"] == pytest.approx([1, 9], rel=1e-6) and flat["rank_1%"] == [1, 9]
    assert flat["reach"] == pytest.approx([distances.mean().item(), 0]) and flat["negative"] == [0, 0]
    assert flat["kernel_fit"] == pytest.approx([1, 1 / 3], rel=1e-5)


def test_a_three_by_three_kernel_uses_nine_ranks_of_its_rolled_mask():
    attention = Masked(32, 2, Grid(8, 8), rank=20, kernel="conv3x3")
    rolled = attention.mask_a.mT @ attention.mask_b
    found = mask_measures(
        attention.mask(), rolled, attention.initial_mask(), kernel_map(attention.grid, "conv3x3"), attention.grid
    )
    assert found["rank_1%"] == [9, 9] and found["kernel_fit"] == pytest.approx([1, 1], abs=1e-4)


def test_the_drawn_mask_is_the_row_of_the_middle_patch():
    model = create_model("ibit_nano")
    rows = [row for row in masks(model) if row["measure"] == "mask" and row["layer"] == 2 and row["head"] == 1]
    assert len(rows) == 64
    peak = max(rows, key=lambda row: row["value"])
    assert (peak["row"], peak["column"]) == (4, 4), "the kernel peaks at the query"
    assert peak["value"] == pytest.approx(model.blocks[2].attn.mask()[1, 1 + 36, 1 + 36].item())


@pytest.mark.slow
def test_figures_are_drawn(tmp_path):
    convit, ibit = gates(create_model("convit_nano")), masks(create_model("ibit_nano"))
    through = [{**row, "step": step, "epoch": step} for step in (0, 1, 2) for row in ibit]
    made = [
        *draw_gates(convit, tmp_path),
        *draw_masks(ibit, tmp_path / "a"),
        *draw_masks(through, tmp_path),
    ]
    assert len(made) == 5 and all(file.stat().st_size > 5000 for file in made)


def test_illustrations_show_a_flat_map_and_bumps_that_narrow(tmp_path):
    data = (torch.zeros(1, 32, 32, 3, dtype=torch.uint8).numpy(), None)
    rows = illustrations.illustrations(create_model("deit_nano"), data)
    largest = {}
    for row in rows:
        largest[row["measure"]] = max(row["value"], largest.get(row["measure"], 0))
    assert largest["full attention, untrained"] < 0.03, "nearly 1/64 everywhere"
    bumps = [largest[f"positional, α = {strength:g}"] for strength in illustrations.STRENGTHS]
    assert bumps == sorted(bumps) and bumps[-1] == pytest.approx(0.25, abs=0.01), "centers between four patches"
    flat = [row["value"] for row in rows if row["measure"] == "target conv3x3"]
    assert sum(flat) == 9 and set(flat) == {0, 1}
    assert [file.name for file in illustrations.draw(rows, tmp_path)] == ["positional.png", "targets.png"]
