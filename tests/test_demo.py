"""The demo compares what it says it compares, and can claim something."""

import pytest

from softbias.demo import JOBS, SEEDS, STEPS, demo_study
from softbias.models import create_model
from softbias.models.cost import count_macs
from softbias.study.headline import LEAST_SEEDS
from softbias.study.plan import study_runs

ARMS = {arm.name: arm for arm in demo_study().arms}


def build(name: str):
    arm = ARMS[name]
    return create_model(arm.model, num_classes=10, img_size=32, device="meta", **arm.model_options)


def test_every_arm_has_the_same_steps_recipe_and_enough_seeds_at_both_amounts():
    study = demo_study()
    runs = study_runs(study)
    assert len(runs) == len(ARMS) * 2 * len(SEEDS) and len(SEEDS) >= LEAST_SEEDS and JOBS <= 2
    assert {run.spec.recipe.steps for run in runs} == {STEPS}
    assert {run.spec.train_fraction for run in runs} == {0.1, 1.0}
    for fraction in (0.1, 1.0):  # what is seen often is mixed with others
        (recipe,) = {run.spec.recipe for run in runs if run.spec.train_fraction == fraction}
        assert recipe.augmentation.mixes == (fraction < 1)


@pytest.mark.parametrize(
    ("name", "stem", "attention"),
    [
        ("soft_nano", "residual", "gated"),
        ("plain ViT", "patch", "full"),
    ],
)
def test_the_arms_differ_in_their_biases_alone(name, stem, attention):
    spec, whole = build(name).spec, build("soft_nano").spec
    assert spec.stem == stem and {layer.attention for layer in spec.layers} == {attention}
    assert (spec.width, spec.heads, spec.depth, spec.hidden) == (whole.width, whole.heads, whole.depth, whole.hidden)
    assert (spec.patch_size, spec.positions, spec.pool) == (whole.patch_size, whole.positions, whole.pool)


def test_the_resnet_costs_about_as_much_as_the_soft_model():
    soft, resnet = (count_macs(build(name), 3, 32, 32) for name in ("soft_nano", "resnet_nano"))
    assert resnet == pytest.approx(soft, rel=0.25)
