"""How strongly images are changed follows how often each is seen."""

import pytest

from softbias.runs.automatic import choose, in_batches_of
from softbias.runs.strength import LEVELS, level_for, with_strength
from softbias.training.recipe import RECIPES


def test_more_views_never_weaken_the_augmentation():
    order = list(LEVELS)
    for n_train in (50, 500, 5_000, 50_000, 500_000):
        levels = [order.index(level_for(epochs, n_train)) for epochs in (1, 5, 19, 20, 50, 99, 100, 300, 1000)]
        assert levels == sorted(levels)


def test_every_level_changes_more_than_the_one_before():
    for weaker, stronger in (("mild", "medium"), ("medium", "strong")):
        first, second = (RECIPES["soft"].with_overrides(LEVELS[level]) for level in (weaker, stronger))
        assert first.drop_path < second.drop_path and first.augmentation.erasing < second.augmentation.erasing
        mixed = [recipe.augmentation.mixes * recipe.augmentation.mix_probability for recipe in (first, second)]
        assert mixed[0] < mixed[1]


def test_a_long_training_takes_the_recipe_soft_as_it_stands():
    assert with_strength(RECIPES["soft"], 200, 50_000) == RECIPES["soft"]
    assert choose(50_000, (32, 32), "cuda", 8).recipe == RECIPES["soft"]


def test_a_first_look_stays_as_it_is():
    assert with_strength(RECIPES["quick"], 8, 5_000) == RECIPES["quick"]


def test_crops_and_flips_are_the_recipes_at_every_level():
    given = RECIPES["soft"].with_overrides({"crop_padding": 0.0625, "flip": 0.3})
    for epochs in (5, 50, 500):
        kept = with_strength(given, epochs, 50_000).augmentation
        assert (kept.crop, kept.crop_padding, kept.flip) == ("pad", 0.0625, 0.3)


@pytest.mark.parametrize("length", [{"epochs": 10.0}, {"steps": 900}, {"steps": 7200, "batch_size": 64}])
def test_a_length_that_the_user_names_decides_about_the_strength(length):
    choice = choose(50_000, (32, 32), "cuda", 8, named=length)  # steps of nine epochs, too
    assert choice.strength.values["level"] == "mild" and not choice.recipe.augmentation.mixes
    assert choose(50_000, (32, 32), "cuda", 8).strength.values["level"] == "strong"


@pytest.mark.parametrize("name", ["small", "soft"])
def test_the_learning_rate_follows_the_root_of_the_batch_once(name):
    recipe = RECIPES[name]
    for batch in (64, 128, recipe.batch_size, 1024):
        expected = recipe.peak_lr() * (batch / recipe.batch_size) ** 0.5
        assert in_batches_of(recipe, batch).peak_lr() == pytest.approx(expected, abs=1e-6)
    assert in_batches_of(RECIPES["small"], 64).peak_lr() == pytest.approx(2.5e-4)


def test_five_hundred_images_get_the_learning_rate_that_was_meant():
    chosen = choose(500, (32, 32), "cuda", 8).recipe
    assert chosen.batch_size == 64 and chosen.peak_lr() == pytest.approx(4e-3 / 8**0.5, abs=1e-6)
