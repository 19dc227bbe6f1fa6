"""The protocols of the papers: arms that differ in one thing, shared pre-trainings, recipes and gaps as printed."""

import pandas
import pytest

from softbias.attention import Masked
from softbias.models import create_model
from softbias.models.cost import COSTS
from softbias.study import plan
from softbias.study.arms import read_recipe
from softbias.study.papers import SCALES, STUDIES, arvit, convit, find_study, gaps
from softbias.training.recipe import find_recipe


def test_a_pretraining_is_shared_by_the_fine_tunes_of_its_arm_alone(pretend):
    runs = plan.study_runs(find_study("arvit-table1").spec("small"))
    before = [run for run in runs if run.spec.recipe.objective == "rotation"]
    tuned = [run for run in runs if run.needs]
    assert len(before) == 15 * 3 and len(tuned) == 5 * 15 * 3
    for run in before:
        own = [other for other in tuned if other.needs == run.id]
        assert (
            len(own) == 5 and len({other.arm for other in own}) == 1 and {other.spec.seed for other in own} == {run.spec.seed}
        )
    asked = [run.spec.recipe.regularize for run in before if run.spec.seed == 0]
    assert sorted(asked) == sorted(
        [(), (), (), *((f"{kind}:layer={layer},weight=0.01",) for kind in ("distance", "style") for layer in range(6))]
    )


@pytest.mark.parametrize("scale", SCALES)
def test_the_head_alone_is_fine_tuned_after_the_same_pretrainings(scale, pretend):
    whole, head = (plan.study_runs(find_study(name).spec(scale)) for name in ("arvit-table1", "arvit-table1-head"))
    assert {run.needs for run in whole} == {run.needs for run in head}
    assert {run.spec.finetune for run in whole if run.needs} == {"full"}
    assert {run.spec.finetune for run in head if run.needs} == {"linear"}
    assert find_study("arvit-table1-head").spec(scale).store == f"../arvit-table1-{scale}/runs"


@pytest.mark.parametrize("scale", SCALES)
def test_every_similarity_row_has_a_base_that_differs_in_the_loss_alone(scale):
    arms = {arm.name: arm for arm in find_study("arvit-table1").spec(scale).arms}
    for name, arm in arms.items():
        own = arms["ARViT-Base 512/8" if name.startswith("ARViT-R") else "ARViT-Base"]
        if name != "ViT-Tiny" and arm.pretrain.recipe.regularize:
            assert (arm.model, arm.model_options) == (own.model, own.model_options)
            assert arm.pretrain.recipe.with_overrides({"regularize": ()}) == own.pretrain.recipe
    assert arms["ARViT-Base 512/8"].model_options != arms["ARViT-Base"].model_options or scale != "smoke"


@pytest.mark.parametrize("scale", SCALES)
def test_pretraining_on_fewer_images_takes_as_many_steps_and_shares_the_runs_of_the_table(scale, pretend):
    runs = [run for run in plan.study_runs(find_study("arvit-pretraining").spec(scale)) if not run.needs]
    assert {run.spec.train_fraction for run in runs} == {0.1, 0.3, 1.0}
    if scale == "smoke":
        assert {run.spec.recipe.steps for run in runs} == {8}
    else:
        lengths = {run.spec.train_fraction * run.spec.recipe.epochs for run in runs}
        assert max(lengths) == pytest.approx(min(lengths))
    of_table = {run.id for run in plan.study_runs(find_study("arvit-table1").spec(scale))}
    assert all(run.id in of_table for run in runs if run.spec.train_fraction == 1.0)


def test_the_order_of_sit_moco_and_dino_stands_where_the_article_has_it():
    for name in ("arvit-table1", "arvit-table1-head"):
        source = find_study(name).source
        assert "outperforms the SiT" in source and "underperforms when compared to MoCo … and DINO" in source
        assert not any(each["arm"] in ("SiT", "MoCo", "DINO") for each in find_study(name).published)


def test_the_gap_to_another_arm_is_in_points_beside_the_printed_one(monkeypatch, tmp_path):
    rows = [("ARViT-Base", 0, 0.5), ("ARViT-Base", 1, 0.6), ("ViT-Tiny", 0, 0.4), ("ViT-Tiny", 1, 0.5), ("ARViT-L3", 1, 0.7)]
    frame = pandas.DataFrame(rows, columns=["arm", "seed", "accuracy"]).assign(data="cifar100", amount=1.0)
    monkeypatch.setattr(gaps, "compared_runs", lambda _: frame)
    others = dict.fromkeys(("ARViT-Base", "ARViT-L3", "ARViT-L4"), "ViT-Tiny")
    (one,) = gaps.gaps_to(tmp_path, others, arvit.table_gaps("ViT-Tiny"), ("The gap", "gap"), "")
    table = pandas.read_csv(one.tables[0]).set_index("arm")
    assert table["value"].to_dict() == pytest.approx({"ARViT-Base": 10, "ARViT-L3": 20})
    assert table["published"].to_dict() == pytest.approx({"ARViT-Base": 22.72, "ARViT-L3": 23.08})
    assert table["seeds"].to_dict() == {"ARViT-Base": 2, "ARViT-L3": 1}


def attention_of(arm):
    """What the blocks of an arm's model compute, block by block: the attention and its norm, and whether a mask is learned."""
    model = create_model(arm.model, num_classes=10, img_size=32, device="meta", **arm.model_options)
    found = []
    for block in model.blocks:
        masked = isinstance(block.attn, Masked)
        norm = block.attn.norm if masked else "softmax"
        found.append((norm, masked and block.attn.mask_a.requires_grad, block.attn.kernel if masked else "ones"))
    return found


def test_the_ablation_crosses_mask_and_norm_and_mask_and_cutmix_and_changes_nothing_else():
    for scale in SCALES:
        spec = find_study("ibit-ablation").spec(scale)
        cells = []
        for arm in spec.arms:
            recipe = read_recipe(arm.recipe, spec.recipe)
            (attention,) = set(attention_of(arm))  # the same in every block
            assert attention[1] == (attention[2] != "ones")  # a mask that is not learned is a mask of ones
            cells.append((*attention[:2], recipe.augmentation.cutmix > 0))
            assert recipe.with_overrides({"cutmix": 0}) == spec.recipe.with_overrides({"cutmix": 0})
            assert arm.model == spec.arms[0].model
            assert {*arm.model_options} <= {"patch_size", "masked_blocks", "unmasked", "norm"}
        plain = [(norm, mask, False) for norm in ("frobenius", "softmax") for mask in (True, False)]
        assert sorted(cells) == sorted([*plain, ("frobenius", True, True), ("softmax", False, True)])


def test_taking_masks_out_of_later_blocks_keeps_the_norm_of_these_blocks():
    for scale in ("smoke", "small"):
        arms = find_study("ibit-depth").spec(scale).arms
        for name in ("Frobenius", "softmax"):
            series = [arm for arm in arms if arm.name.endswith(f", {name}")]
            learned = [sum(mask for _, mask, _ in attention_of(arm)) for arm in series]
            assert learned == [arm.model_options["masked_blocks"] for arm in series] and learned[-1] == 0
            assert {norm for arm in series for norm, *_ in attention_of(arm)} == {name.lower()}
        (first, *_) = [arm for arm in arms if arm.name.endswith("then full")]
        assert {norm for norm, *_ in attention_of(first)} == {"frobenius", "softmax"}


def test_convit_s_models_are_trained_by_its_own_setting_and_quoted_ones_by_deit_s():
    spec = find_study("convit-sizes").spec("paper")
    own, quoted = (find_recipe(name).with_overrides({"val_fraction": 0.01}) for name in ("convit", "deit"))
    found = {arm.name: read_recipe(arm.recipe, spec.recipe) for arm in spec.arms}
    assert {name for name, recipe in found.items() if recipe == quoted} == {"DeiT-Ti", "DeiT-S", "DeiT-B"}
    assert all(recipe in (quoted, own) for recipe in found.values())
    assert find_study("convit-sample-efficiency").spec("paper").recipe == own
    assert find_study("convit-locality").spec("paper").recipe.batch_size == 512


def test_the_printed_sizes_of_convit_are_those_of_our_models():
    rows = find_study("convit-sizes").beside
    for metric, unit, index in (("million parameters", 1e6, 0), ("GFLOPs", 1e9, 1)):
        printed = {row["arm"]: row["value"] for row in rows if row["metric"] == metric}
        assert len(printed) == 12
        for arm, value in printed.items():
            preset, options = convit.MODELS[arm]
            if not options:  # counted once for all presets
                assert COSTS[preset][index] / unit == pytest.approx(value, rel=0.3 if value < 3 else 0.08), arm


def test_the_relative_gap_is_taken_between_runs_of_the_same_seed(monkeypatch, tmp_path):
    rows = [("DeiT", 0.05, 0, 0.4), ("DeiT", 0.05, 1, 0.5), ("ConViT", 0.05, 1, 0.6), ("ConViT", 0.05, 0, 0.5)]
    frame = pandas.DataFrame(rows, columns=["arm", "amount", "seed", "accuracy"]).assign(data="d", top5=None)
    monkeypatch.setattr(gaps, "compared_runs", lambda _: frame)
    one = gaps.relative_gaps(tmp_path, "ConViT", "DeiT", {"accuracy": {0.05: 37}, "top5": {0.05: 22}}, "theirs")
    table = pandas.read_csv(one.tables[0])
    assert table["value"].tolist() == [pytest.approx(22.5)] and table["published"].tolist() == [37]
    assert table["seeds"].tolist() == [2] and table["metric"].tolist() == ["accuracy"]  # top-5 was not measured


def test_the_scenes_are_measured_on_the_runs_of_the_cifar_study(pretend):
    ids = {name: [run.id for run in plan.study_runs(find_study(name).spec("small"))] for name in STUDIES if name[:3] == "eth"}
    assert ids["eth-combined"] == ids["eth-background"] == ids["eth-cifar10"]
    assert find_study("eth-combined").spec("small").store == "../eth-cifar10-small/runs"
