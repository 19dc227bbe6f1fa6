"""Rollout on maps made by hand, whose answer is known, and on every kind of model that can be inspected."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softbias.attention import NoAttentionMapError
from softbias.grid import Grid
from softbias.models import Layer, create_model
from softbias.models.inspect import inspect
from softbias.probes.attribution import METHODS, attention_gradient_rollout, attention_rollout, inspect_with_gradients
from softbias.probes.faithfulness import rollout_agreement
from softbias.probes.rollout import (
    drop_smallest,
    effective_patches,
    gradient_rollout,
    output_rows,
    rank_correlation,
    relevance,
    rollout,
)


def one(rows: list[list[float]], heads: int = 1) -> Tensor:
    return torch.tensor(rows, dtype=torch.double).expand(1, heads, -1, -1)


def shift(tokens: int) -> Tensor:
    """Every token looks at the next one, the last one at the first."""
    return torch.eye(tokens, dtype=torch.double).roll(1, dims=1).expand(1, 1, -1, -1)


def random_images(count: int = 2, side: int = 32) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_attention_to_oneself_rolls_out_to_the_identity():
    eye = torch.eye(5).expand(2, 3, 5, 5)
    torch.testing.assert_close(rollout([eye] * 4), torch.eye(5).expand(2, 5, 5))


def test_without_residual_three_shifts_are_a_shift_by_three():
    torch.testing.assert_close(rollout([shift(7)] * 3, residual=0.0)[0], torch.eye(7, dtype=torch.double).roll(3, dims=1))


def test_with_residual_shifts_spread_as_coins_fall():
    row = rollout([shift(7)] * 3, residual=0.5)[0, 0]
    assert row.tolist() == [1 / 8, 3 / 8, 3 / 8, 1 / 8, 0, 0, 0]


def test_rolled_out_rows_are_shares():
    maps = [torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(layer)) - 0.3 for layer in range(3)]
    for signed in ("absolute", "positive"):
        for heads in ("mean", "max", "min"):
            rolled = rollout(maps, heads=heads, signed=signed, discard=0.3)
            assert (rolled >= 0).all()
            torch.testing.assert_close(rolled.sum(-1), torch.ones(2, 6))


@pytest.mark.parametrize(("heads", "row"), [("mean", [0.5, 0.5]), ("max", [0.5, 0.5]), ("min", [1.0, 0.0])])
def test_heads_are_joined_as_asked(heads, row):
    """One head looks at itself, the other at the other token; at their minimum nothing is left and a token keeps itself."""
    maps = torch.stack([torch.eye(2), 1 - torch.eye(2)])[None]
    assert rollout([maps], heads=heads, residual=0.0)[0, 0].tolist() == row


def test_the_maximum_differs_from_the_mean_where_heads_do():
    maps = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])[None]
    torch.testing.assert_close(rollout([maps], heads="mean", residual=0.0)[0, 0], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(rollout([maps], heads="max", residual=0.0)[0, 0], torch.tensor([2 / 3, 1 / 3]))


@pytest.mark.parametrize(("heads", "joined"), [("max", [[0.6, 0.8], [0.5, 0.5]]), ("min", [[0.2, 0.4], [0.5, 0.5]])])
def test_the_identity_is_added_before_rows_are_normalized(heads, joined):
    """Abnar and Zuidema's order: a maximum over heads that sums to 1.4 counts more than the residual branch."""
    maps = torch.tensor([[[0.6, 0.4], [0.5, 0.5]], [[0.2, 0.8], [0.5, 0.5]]])[None]
    step = 0.5 * torch.eye(2) + 0.5 * torch.tensor(joined)
    step = step / step.sum(-1, keepdim=True)
    torch.testing.assert_close(rollout([maps, maps], heads=heads)[0], step @ step)


def test_for_shares_the_order_does_not_matter_under_the_mean():
    maps = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    step = (torch.eye(5) + maps.mean(1)) / 2
    torch.testing.assert_close(rollout([maps]), step / step.sum(-1, keepdim=True))


def test_ibits_own_rule_is_half_the_identity_and_half_the_maximum_with_signs():
    maps = [torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(layer)) - 1 for layer in range(3)]
    steps = [0.5 * torch.eye(5) + 0.5 * layer.amax(1) for layer in maps]
    found = rollout(maps, heads="max", signed="keep", normalize=False)
    torch.testing.assert_close(found, steps[2] @ steps[1] @ steps[0])
    assert (found < 0).any()
    with pytest.raises(ValueError, match="normalize=False"):
        rollout(maps, signed="keep")


def test_ibits_own_rule_is_a_way_to_explain_a_model_with_signed_maps():
    model = create_model("ibit_nano", num_classes=3).eval()
    images = random_images()
    maps = [attention for _, attention in sorted(inspect(model, images).maps.items())]
    rolled = rollout(maps, heads="max", signed="keep", normalize=False)[:, 0, 1:].abs()
    expected = (rolled / rolled.sum(-1, keepdim=True)).unflatten(1, (8, 8))
    torch.testing.assert_close(METHODS["rollout-signed"](model, images, torch.tensor([0, 1])), expected)


def test_the_discarded_share_is_the_smallest_of_each_row():
    kept = drop_smallest(torch.tensor([[[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.1, 0.1]]]), 0.5)
    assert kept[0, 0].tolist() == pytest.approx([0, 0.4, 0, 0.3]) and kept[0, 1, 0] == pytest.approx(0.7)
    row = rollout([one([[0.1, 0.4, 0.2, 0.3]] * 4)], residual=0.0, discard=0.5)[0, 0]
    torch.testing.assert_close(row, torch.tensor([0, 4 / 7, 0, 3 / 7], dtype=torch.double))


def test_signed_maps_are_treated_as_asked_and_never_silently():
    signed = one([[0.3, -0.6, 0.1]] * 3)
    taken = {how: rollout([signed], residual=0.0, signed=how)[0, 0].tolist() for how in ("absolute", "positive")}
    assert taken["absolute"] == pytest.approx([0.3, 0.6, 0.1]) and taken["positive"] == pytest.approx([0.75, 0, 0.25])
    with pytest.raises(ValueError, match="layer 0 has negative entries"):
        rollout([signed], signed="refuse")


def test_a_class_token_that_joins_late_sees_what_the_patches_gathered():
    """Patches shift twice without it; then it looks at patch 0 alone, which by then holds patch 2."""
    last = torch.eye(5, dtype=torch.double)
    last[0] = torch.tensor([0, 1, 0, 0, 0])
    rolled = rollout([shift(4), shift(4), last.expand(1, 1, 5, 5)], residual=0.0)
    assert rolled.shape == (1, 5, 5)
    assert relevance(rolled, Grid(2, 2, prefix=1), slice(0, 1))[0].tolist() == [[0, 0], [1, 0]]


def test_tokens_that_leave_are_refused():
    with pytest.raises(ValueError, match="join, not leave"):
        rollout([shift(5), shift(4)])


def test_without_class_token_the_relevance_is_that_of_the_average_patch():
    """All patches but the first look at the first: with half residual it holds (1 + 3/2) / 4."""
    first = torch.tensor([1.0, 0, 0, 0]).expand(1, 1, 4, 4)
    shares = relevance(rollout([first]), Grid(2, 2), slice(0, None))
    torch.testing.assert_close(shares, torch.tensor([[[0.625, 0.125], [0.125, 0.125]]]))


def test_gradients_keep_the_heads_that_support_the_class_and_drop_the_others():
    maps = torch.tensor([[[0.0, 0.7, 0.3]] * 3, [[0.0, 0.2, 0.8]] * 3])[None]
    slopes = torch.zeros_like(maps)
    slopes[:, 0] = 1.0  # the second head does not matter
    row = gradient_rollout([maps], [slopes])[0, 0]
    assert row.tolist() == pytest.approx([1, 0.35, 0.15])
    slopes[:, 0, :, 2] = -1.0
    assert gradient_rollout([maps], [slopes])[0, 0].tolist() == pytest.approx([1, 0.35, 0])


def test_two_negative_signs_speak_for_the_class():
    assert gradient_rollout([one([[0.0, -0.5]] * 2)], [one([[0.0, -2.0]] * 2)])[0, 0].tolist() == pytest.approx([1, 1])


class ByDefinition(nn.Module):
    """Attention whose map is in the graph, to differentiate it directly."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.grid, self.found = attention, attention.grid, None

    def forward(self, x: Tensor) -> Tensor:
        self.found = self.attention.attention_map(x)
        self.found.retain_grad()
        return self.attention.merge(self.found @ self.attention.values(x))


@pytest.mark.parametrize("name", ["convit_nano", "ibit_nano", "window_nano", "arvit_nano"])
def test_the_gradient_on_a_map_is_the_one_autograd_finds(name):
    torch.manual_seed(0)
    model = create_model(name, num_classes=3).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    images, target = random_images().double(), torch.tensor([2, 0])
    seen = inspect_with_gradients(model, images, target)
    for block in model.blocks:
        block.attn = ByDefinition(block.attn)
    model(images).gather(1, target[:, None]).sum().backward()
    for layer, block in enumerate(model.blocks):
        assert seen.gradients[layer].abs().max() > 0
        torch.testing.assert_close(seen.gradients[layer], block.attn.found.grad)
        torch.testing.assert_close(seen.maps[layer], block.attn.found.detach())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convit_tiny"])
def test_the_gradient_on_a_map_of_timm_is_the_one_autograd_finds(name):
    """timm's slow path has the map in the graph, as the input of its dropout."""
    torch.manual_seed(0)
    options = {"embed_dim": 48, "num_heads": 4, "depth": 3} | ({"local_up_to_layer": 2} if "convit" in name else {})
    model = create_model(f"timm:{name}", num_classes=3, img_size=32, patch_size=4, **options).double().eval()
    images, target, kept = random_images().double(), torch.tensor([2, 0]), []
    seen = inspect_with_gradients(model, images, target)
    for block in model.blocks:
        block.attn.fused_attn = False

        def keep(_, args, output):
            output.retain_grad()
            kept.append(output)

        block.attn.attn_drop.register_forward_hook(keep)
    model(images).gather(1, target[:, None]).sum().backward()
    assert len(kept) == 3
    for layer, attention in enumerate(kept):
        assert attention.grad.abs().max() > 0
        torch.testing.assert_close(seen.gradients[layer], attention.grad)


@pytest.mark.parametrize("name", ["deit_nano", "convit_nano", "ibit_nano", "window_nano", "arvit_nano", "timm:convit_tiny",
                                  "timm:vit_tiny_patch16_224", "timm:deit_tiny_distilled_patch16_224"])  # fmt: skip
def test_every_model_that_can_be_inspected_can_be_rolled_out(name):
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 4, "depth": 3, "local_up_to_layer": 2} if "convit_tiny" in name else {}
    options = options or ({"img_size": 32, "patch_size": 4, "depth": 2} if "timm:" in name else {})
    model = create_model(name, num_classes=5, **options).train()
    for found in (attention_rollout(model, random_images()), attention_gradient_rollout(model, random_images())):
        assert found.shape == (2, 8, 8) and (found >= 0).all() and found.std() > 0
        torch.testing.assert_close(found.sum((1, 2)), torch.ones(2))
    assert model.training  # as it was


@pytest.mark.slow
def test_hugging_face_models_can_be_rolled_out(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                    image_size=32, patch_size=8, num_labels=3)  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    model = create_model(f"hf:{tmp_path}")
    for found in (attention_rollout(model, random_images()), attention_gradient_rollout(model, random_images())):
        assert found.shape == (2, 4, 4)
        torch.testing.assert_close(found.sum((1, 2)), torch.ones(2))


def test_layers_without_a_map_are_refused_unless_they_may_be_skipped():
    model = create_model("dwconv_nano")
    with pytest.raises(NoAttentionMapError):
        attention_rollout(model, random_images())
    mixed = create_model("deit_nano", class_token=None, pool="average", layers=(Layer("dwconv"), Layer("full"), Layer("full")))
    with pytest.raises(NoAttentionMapError, match=r"layers \[0\] .* mix patches without attention"):
        attention_rollout(mixed, random_images())
    assert attention_rollout(mixed, random_images(), missing="identity").shape == (2, 8, 8)


def test_the_head_of_a_pooling_model_reads_patches_and_of_others_the_class_token():
    assert output_rows(create_model("arvit_nano"), Grid(8, 8)) == slice(0, None)
    assert output_rows(create_model("deit_nano"), Grid(8, 8, 1)) == slice(0, 1)
    pooled = create_model("timm:vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, global_pool="avg")
    assert output_rows(pooled, Grid(4, 4, pooled.num_prefix_tokens)) == slice(pooled.num_prefix_tokens, None)


def test_the_effective_patches_of_known_shares():
    shares = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    assert effective_patches(shares).tolist() == pytest.approx([4, 1, 2])
    assert rank_correlation(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[10.0, 20, 30, 40]])).item() == pytest.approx(1)
    assert rank_correlation(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[4.0, 3, 2, 1]])).item() == pytest.approx(-1)


def test_the_probe_has_a_row_per_way_and_measure_with_intervals():
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    rows = rollout_agreement(create_model("ibit_nano"), (images, None))
    assert len(rows) == 3 * 2 + 1 and {row["weights"] for row in rows} == {"untrained"}
    for row in rows:
        assert row["n"] == 6 and row["low"] <= row["value"] <= row["high"]
        if row["measure"] == "effective_patches":
            assert 1 <= row["value"] <= 64


def test_wrong_options_are_named():
    for options, message in (({"heads": "median"}, "no way to reduce heads 'median'"), ({"discard": 1.0}, "discard=1.0"),
                             ({"signed": "drop"}, "signed maps 'drop'")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rollout([shift(3)], **options)
