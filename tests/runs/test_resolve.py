"""A setting comes from the user, then from a config, then from the automatic choices."""

import numpy as np
import pytest

from softbias.data.dataset import Dataset
from softbias.errors import SoftbiasError, UnknownNameError
from softbias.pages.wording import text
from softbias.runs.partial import PartialRunSpec
from softbias.runs.resolve import resolve
from softbias.runs.spec import RunSpec
from softbias.training.recipe import RECIPES, Recipe

CONFIG = RunSpec("fashion", "deit_nano", Recipe(epochs=7.0), seed=5, train_fraction=0.5, model_options={"patch_size": 4})


def images(n: int = 100, side: int = 32) -> Dataset:
    labels = np.arange(n) % 2
    return Dataset("mine", np.zeros((n, side, side, 3), np.uint8), labels, ("a", "b"), {"train": np.arange(n)})


def test_the_user_comes_first_and_the_config_second():
    spec = PartialRunSpec(seed=1, overrides={"lr": 0.5}).completed(CONFIG).spec()
    assert spec is not None and spec.seed == 1 and spec.recipe.lr == 0.5
    assert spec.train_fraction == 0.5 and spec.recipe.epochs == 7 and spec.model_options == {"patch_size": 4}


def test_options_of_the_configs_model_are_not_for_another_model():
    spec = PartialRunSpec(model="convit_nano").completed(CONFIG).spec()
    assert spec is not None and spec.model == "convit_nano" and spec.model_options == {}


def test_what_is_not_named_is_chosen_with_its_reason():
    found = resolve(PartialRunSpec(data="mine", start="scratch"), "cpu", images(), advise=False)
    assert found.spec.model == "soft_nano" and found.spec.model_options == {"patch_size": 8}
    assert [note.kind for note in found.notes] == ["model-chosen", "recipe-chosen", "strength-chosen"]
    assert found.notes[1].values["epochs"] == found.spec.recipe.epochs and not found.advice


def test_on_a_gpu_the_strength_of_the_augmentation_has_a_reason_and_suits_the_epochs():
    found = resolve(PartialRunSpec(data="mine", start="scratch"), "cuda", images(), advise=False)
    assert found.spec.model == "soft_tiny" and found.spec.recipe.augmentation.mixes
    assert [note.kind for note in found.notes] == ["model-chosen", "recipe-chosen", "strength-chosen"]
    short = PartialRunSpec(data="mine", start="scratch", overrides={"epochs": 5.0, "flip": 0.0})
    found = resolve(short, "cuda", images(), advise=False)
    assert found.spec.recipe.augmentation.randaugment is None and found.spec.recipe.augmentation.flip == 0
    assert found.notes[-1].values == {"level": "mild", "epochs": 5.0}
    named = PartialRunSpec(data="mine", start="scratch", recipe="soft", overrides={"epochs": 5.0})
    assert resolve(named, "cuda", images(), advise=False).spec.recipe == RECIPES["soft"].with_overrides({"epochs": 5.0})


def test_a_batch_that_is_named_has_the_learning_rate_that_suits_it():
    small = PartialRunSpec(data="mine", start="scratch", overrides={"batch_size": 32})
    assert resolve(small, "cuda", images(), advise=False).spec.recipe.peak_lr() == pytest.approx(1e-3)


def test_what_is_named_has_no_reason():
    found = resolve(
        PartialRunSpec(data="mine", model="deit_nano", recipe="quick", start="scratch"), "cpu", images(), advise=False
    )
    assert found.notes == () and found.spec.recipe == RECIPES["quick"] and found.spec.model == "deit_nano"


def test_another_model_on_a_cpu_takes_the_epochs_of_the_preset():
    found = resolve(PartialRunSpec(data="mine", model="deit_nano", start="scratch"), "cpu", images(), advise=False)
    assert found.spec.recipe.epochs == RECIPES["quick"].epochs
    assert [note.values for note in found.notes] == [{"recipe": "quick", "epochs": RECIPES["quick"].epochs}]


@pytest.mark.parametrize(
    ("partial", "kind", "named"),
    [
        (PartialRunSpec(), SoftbiasError, "which pictures"),
        (PartialRunSpec(data="x", model="convit_nan"), UnknownNameError, "convit_nano"),
        (PartialRunSpec(data="x", recipe="smal"), UnknownNameError, "small"),
        (PartialRunSpec(data="x", model_options={"img_size": 0}), SoftbiasError, "img_size is no option of the model"),
        (PartialRunSpec(data="x", model_options={"num_classes": 2}), SoftbiasError, "num_classes is no option"),
        (PartialRunSpec(data="x", start="nowhere"), SoftbiasError, "neither a finished run nor a saved model"),
        (PartialRunSpec(data="x", start="scratch", finetune="linear"), SoftbiasError, "needs a model that has learned"),
        (PartialRunSpec(data="x", start="scratch", weights="w"), SoftbiasError, "takes fresh weights"),
        (PartialRunSpec(data="x", overrides={"epohcs": 1}), UnknownNameError, "epochs"),
        (PartialRunSpec(data="x", overrides={"epochs": -1}), SoftbiasError, "epochs must be a number of more than 0"),
    ],
)
def test_mistakes_are_refused_before_any_image_is_read(partial, kind, named):
    with pytest.raises(kind, match=named):
        partial.completed()


def test_parts_of_a_batch_are_not_checked_against_a_batch_that_is_not_known_yet():
    assert PartialRunSpec(data="x", overrides={"accumulate": 3}).completed().overrides == {"accumulate": 3}
    with pytest.raises(SoftbiasError, match="must divide"):
        PartialRunSpec(data="x", overrides={"accumulate": 3, "batch_size": 64}).completed()


def test_a_length_in_steps_is_printed_in_steps():
    found = resolve(PartialRunSpec(data="fashion", start="scratch", overrides={"steps": 430}).completed(), "cpu")
    printed = [text(note) for note in found.notes if note.kind == "recipe-chosen"]
    assert len(printed) == 1 and "430 steps" in printed[0] and "epoch" not in printed[0]
