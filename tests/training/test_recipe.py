"""Recipes and schedules."""

from itertools import pairwise

import pytest
import yaml

from softbias.errors import SoftbiasError
from softbias.schema import SchemaError
from softbias.training.optim import learning_rate
from softbias.training.recipe import ABOUT, RECIPES, Recipe, find_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_yaml_and_says_what_it_is_for(name):
    recipe = find_recipe(name)
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert ABOUT[name]


def test_fields_of_the_recipe_and_of_its_augmentation_can_be_overridden():
    recipe = find_recipe("small").with_overrides({"lr": 1e-4, "augmentation.flip": 0.0, "cutmix": 0.5})
    assert recipe.lr == 1e-4 and recipe.augmentation.flip == 0 and recipe.augmentation.cutmix == 0.5
    assert find_recipe("small").augmentation.flip == 0.5


def test_epochs_replace_the_steps_that_a_recipe_had():
    short = find_recipe("quick").with_overrides({"steps": 12})
    assert short.with_overrides({"epochs": 10}).steps is None and short.with_overrides({"epochs": 10}).epochs == 10
    assert short.with_overrides({"epochs": 10, "steps": 7}).steps == 7 and short.with_overrides({"lr": 1e-3}).steps == 12


def test_unknown_fields_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        find_recipe("small").with_overrides({"epocs": 3})
    with pytest.raises(ValueError, match="did you mean 'small'"):
        find_recipe("smal")
    with pytest.raises(ValueError, match="did you mean 'schedule'"):
        Recipe.from_dict({"schedul": "cosine"})


def test_the_learning_rate_scales_with_the_batch_where_the_recipe_says_so():
    assert find_recipe("deit").peak_lr() == pytest.approx(1e-3)
    assert find_recipe("convit").peak_lr() == pytest.approx(4e-4)
    assert Recipe(lr=1e-3, batch_size=64).peak_lr() == 1e-3


def test_convit_differs_from_deit_in_learning_rate_and_batch_alone():
    convit, deit = find_recipe("convit"), find_recipe("deit")
    assert (convit.lr, convit.batch_size, deit.lr, deit.batch_size) == (4e-4, 512, 5e-4, 1024)
    assert convit.with_overrides({"lr": deit.lr, "batch_size": deit.batch_size}) == deit


def test_cosine_warms_up_peaks_and_ends_at_its_floor():
    recipe = Recipe(lr=1.0, warmup_lr=0.0, min_lr=0.1)
    rates = [learning_rate(recipe, step, 100, 10) for step in range(100)]
    assert rates[0] < rates[5] < rates[9] < rates[10] == pytest.approx(1.0)
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(0.1)
    assert rates[10 + 89 // 2] == pytest.approx(0.55, abs=0.02)


def test_one_cycle_rises_for_thirty_percent_and_falls_below_its_start():
    recipe = Recipe(lr=1.0, schedule="one-cycle", min_lr=1e-5)
    rates = [learning_rate(recipe, step, 101, 0) for step in range(101)]
    assert rates[0] == pytest.approx(1 / 25) and rates[30] == pytest.approx(1.0) and rates[-1] == pytest.approx(1e-5)


def test_a_constant_rate_stays():
    recipe = Recipe(lr=0.5, schedule="constant")
    assert {learning_rate(recipe, step, 50, 0) for step in range(50)} == {0.5}


@pytest.mark.parametrize(
    "wrong",
    [
        {"accumulate": 3, "batch_size": 10}, {"val_fraction": 1.0}, {"ema": 1.0}, {"lr": -1.0}, {"epochs": float("nan")},
        {"steps": 0}, {"patience": 0}, {"smoothing": 1.5}, {"drop_path": -0.1}, {"clip": -1.0}, {"weight_decay": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_recipes_are_refused_with_what_was_given(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(SoftbiasError, match=rf"{name}.*{value}"):
        Recipe(**wrong)


@pytest.mark.parametrize(
    "field",
    ["objective", "rotations", "optimizer", "schedule", "class_weights", "select", "precision", "compile"],
)
def test_a_word_that_a_field_does_not_know_is_refused_and_never_taken_for_another(field):
    for make in (lambda: Recipe(**{field: "zzz"}), lambda: find_recipe("quick").with_overrides({field: "zzz"})):
        with pytest.raises(ValueError, match=f"there is no {field} 'zzz'; the choices are "):
            make()
    assert getattr(Recipe.from_dict({field: getattr(Recipe(), field)}), field) == getattr(Recipe(), field)


@pytest.mark.parametrize(("written", "meant"), [("off", "off"), ("on", "on"), ("auto", "auto"), ("'off'", "off")])
def test_compile_off_in_yaml_is_off_though_yaml_reads_a_bare_off_as_false(written, meant):
    given = yaml.safe_load(f"compile: {written}")
    assert Recipe.from_dict(given).compile == Recipe().with_overrides(given).compile == meant


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": "abc"},
        {"lr": "fast"},
        {"betas": [0.9]},
        {"augmentation": {"flip": "often"}},
        {"augmentation": 3},
        {"epochs": None},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_in_a_file_is_refused_by_its_name(wrong):
    with pytest.raises(SchemaError, match=rf"a\.yaml: {next(iter(wrong))}"):
        Recipe.from_dict(wrong, "a.yaml")


def test_a_rate_that_yaml_reads_as_text_is_a_number():
    assert Recipe.from_dict(yaml.safe_load("lr: 1e-3")).lr == 1e-3
