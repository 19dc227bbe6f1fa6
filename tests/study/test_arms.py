"""Arms and studies as text."""

import re

import pytest

from softbias.errors import SoftbiasError
from softbias.runs.spec import RunSpec
from softbias.study.arms import Arm, Pretrain, arms_from, parse_arm, read_arm, split_arms
from softbias.study.plan import PlannedRun, in_order
from softbias.study.spec import StudySpec, extended, parse_seeds, read_study, write_study
from softbias.training.recipe import RECIPES, Recipe


def test_overrides_go_to_the_recipe_the_model_and_the_data():
    arm = parse_arm("convit_nano@patch_size=8@strength=1.5@lr=1e-3@flip=0@betas=0.9,0.99@img_size=64@pool=average")
    assert arm.model_options == {"patch_size": 8, "strength": 1.5, "pool": "average"}
    assert arm.recipe == {"lr": 1e-3, "flip": 0, "betas": (0.9, 0.99)} and arm.data_options == {"img_size": 64}
    assert arm.name.startswith("convit_nano@patch_size=8")


def test_commas_inside_values_do_not_separate_arms():
    text = "deit_tiny@regularize=distance:layer=2,weight=0.01@lr=1,convit_tiny@betas=0.9,0.99,x@blocks=(1,2),resnet50"
    assert split_arms(text) == [
        "deit_tiny@regularize=distance:layer=2,weight=0.01@lr=1", "convit_tiny@betas=0.9,0.99", "x@blocks=(1,2)", "resnet50",
    ]  # fmt: skip


def test_regularizers_add_up():
    arm = parse_arm("deit_tiny@regularize=distance:layer=2,weight=0.01@regularize=style:layer=3")
    assert arm.recipe == {"regularize": ("distance:layer=2,weight=0.01", "style:layer=3")}


def test_a_pretraining_may_change_fields_of_its_recipe():
    first, second = arms_from("convit_nano@pretrain=views:epochs=20,lr=1e-3@finetune=linear,convit_nano")
    assert first.pretrain == Pretrain(RECIPES["views"].with_overrides({"epochs": 20.0, "lr": 1e-3}))
    assert first.finetune == "linear" and second.pretrain is None
    assert parse_arm("convit_nano@pretrain=views:flip=0").pretrain.recipe.augmentation.flip == 0


def test_an_arm_may_be_pretrained_and_named():
    arm = parse_arm("arvit_nano@pretrain=arvit-pretrain@finetune=linear@name=probed")
    assert arm.pretrain == Pretrain(RECIPES["arvit-pretrain"]) and arm.finetune == "linear" and arm.name == "probed"
    assert (
        read_arm(
            {"model": "arvit_nano", "pretrain": {"recipe": {"preset": "arvit-pretrain", "epochs": 2}}}
        ).pretrain.recipe.epochs
        == 2
    )


MISTAKES = {
    "@lr=1": "an arm is MODEL or MODEL@NAME=VALUE",
    "": "an arm is empty",
    "lr=1e-3": "an arm is MODEL",
    "deit_nano@lr": "an override of an arm is NAME=VALUE, such as lr=1e-3, but got 'lr'",
    "deit_nano@epochs=-1": "epochs must be a number of more than 0",
    "deit_nano@lr=fast": "'deit_nano@lr=fast': lr must be a number from 0 to 1,000, but is 'fast'",
    "deit_nano@pretrain=arvit": "there is no recipe 'arvit'",
    "deit_nano@pretrain=views:epochs": "NAME=VALUE",
    "deit_nano@pretrain=views:epoch=3": "did you mean 'epochs'",
    "deit_nano@pretrain=views:epochs=-3": "epochs",
    "deit_nano@finetune=some": "there is no finetune 'some'; the choices are full, linear",
    "deit_nano,,convit_nano": "an arm is empty",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_an_arm_is_named(text):
    with pytest.raises(ValueError, match=re.escape(MISTAKES[text])):
        arms_from(text)


def study(**changes) -> StudySpec:
    settings = {"name": "s", "data": ("fashion",), "arms": arms_from("deit_nano,convit_nano@strength=2@lr=0.1")}
    return StudySpec(**{**settings, "recipe": Recipe(epochs=2, betas=(0.8, 0.9)), **changes})


def test_a_study_survives_being_written_and_read(tmp_path):
    arm = Arm(
        "p",
        "arvit_nano",
        {"patch_size": 8},
        pretrain=Pretrain(RECIPES["arvit-pretrain"], train_fraction=None),
        finetune="linear",
    )
    spec = study(
        arms=(*study().arms, arm), fractions=(0.05, 1), seeds=(3, 1), budget="flops", tune=4, title="T", notes=("a", "b"),
        published=({"data": "fashion", "arm": "p", "train_fraction": 0.05, "metric": "accuracy", "value": 0.5},),
        store="../shared",
    )  # fmt: skip
    write_study(spec, tmp_path)
    assert read_study(tmp_path) == spec == read_study(tmp_path / "study.yaml")


def test_a_study_by_hand_may_be_short(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: m\ndata: fashion\narms: ['deit_nano@patch_size=8']\nfractions: 0.1\nseeds: 2\nrecipe: quick\n")
    spec = read_study(file)
    assert spec.seeds == (0, 1) and spec.fractions == (0.1,) and spec.recipe == RECIPES["quick"] and spec.budget == "steps"


FILES = {
    "data: fashion": "name is missing",
    "name: x\ndata: fashion\narms: [deit_nano]\nfration: 3": "did you mean 'fractions'?",
    "name: x\ndata: fashion\narms: [{name: a}]": "arms[0]: model is missing",
    "name: x\ndata: fashion\narms: [deit_nano, deit_nano]": "deit_nano is repeated",
    "name: x\ndata: fashion\narms: [deit_nano]\nfractions: [0]": "fractions[0] must be a number of more than 0",
    "name: x\ndata: fashion\narms: [deit_nano]\nfractions: [30]": "for 30 % give 0.3",
    "name: x\ndata: fashion\narms: [deit_nano]\nbudget: time": "there is no budget 'time'; the choices are",
    "name: a/b\ndata: fashion\narms: [deit_nano]": "a study's name is made of letters",
    "- x": "must be settings by name",
    "name: x\ndata: fashion\narms: [deit_nano]\nseeds: 1000000000": "seeds must be a whole number from 1 to 100,000",
    "name: x\ndata: fashion\narms: [deit_nano]\nseeds: [1, x]": "seeds[1] must be a whole number",
    "name: x\ndata: fashion\narms: [deit_nano, vit@lr=big]": "lr must be a number from 0 to 1,000, but is 'big'",
    "name: x\ndata: fashion\narms: [deit_nano]\nrecipe: {epochs: many}": "recipe: epochs must be a number of",
    "name: x\ndata: fashion\narms: [{model: m, pretrain: {fraction: 1}}]": "did you mean 'train_fraction'",
    "name: x\ndata: fashion\narms: [deit_nano]\npublished: [{arm: a}]": "published[0].data is missing",
    "name: [": "cannot be read",
}


@pytest.mark.parametrize("text", FILES)
def test_a_mistake_in_a_file_names_the_file_and_the_mistake(text, tmp_path):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"s\.yaml.*{re.escape(FILES[text])}"):
        read_study(tmp_path / "s.yaml")


def test_a_study_grows_but_does_not_change():
    larger = extended(study(seeds=(0,)), study(seeds=(0, 1), fractions=(0.1,), arms=arms_from("resnet_nano")))
    assert [arm.model for arm in larger.arms] == ["deit_nano", "convit_nano", "resnet_nano"]
    assert larger.seeds == (0, 1) and larger.fractions == (0.1, 1.0)
    with pytest.raises(ValueError, match=r"recipe was another \(recipe: epochs was 2\.0, is 3\.0"):
        extended(study(), study(recipe=Recipe(epochs=3, betas=(0.8, 0.9))))
    with pytest.raises(ValueError, match=r"budget, data_options was another \(budget was epochs, is steps; data_opt"):
        extended(study(budget="epochs", data_options={"img_size": 64}), study())
    with pytest.raises(ValueError, match="arm deit_nano was another"):
        extended(study(), study(arms=(Arm("deit_nano", "deit_nano", {"patch_size": 8}),)))


def test_runs_come_after_those_they_need():
    first, second, third = (PlannedRun("a", RunSpec("d", "m", Recipe(), seed=seed)) for seed in range(3))
    second = PlannedRun("b", second.spec, third.id)
    assert [run.id for run in in_order([first, second, third])] == [first.id, third.id, second.id]
    with pytest.raises(ValueError, match="in a circle"):
        in_order([PlannedRun("a", first.spec, second.id), PlannedRun("b", second.spec, first.id)])


def test_seeds_are_a_number_or_a_list():
    assert parse_seeds("1") == (0,) and parse_seeds("2") == (0, 1) and parse_seeds("5,7") == (5, 7)
    for wrong in ("-1", "a", "1.5"):
        with pytest.raises(SoftbiasError, match="seeds takes their number"):
            parse_seeds(wrong)
    for wrong in ("0", "1000000000", "9" * 30):
        with pytest.raises(SoftbiasError, match="from 1 to 100,000"):
            parse_seeds(wrong)


def test_a_study_of_absurdly_many_runs_is_refused_before_anything_is_planned():
    with pytest.raises(SoftbiasError, match=r"1 sets × 2 arms × 1 amounts of data × 60,000 seeds are 120,000 runs"):
        study(seeds=range(60_000))


def test_ids_ignore_what_is_as_usual_and_where_things_lie():
    plain = RunSpec("fashion", "deit_nano", Recipe())
    assert plain.id == RunSpec("fashion", "deit_nano", Recipe(lr=1e-3), train_fraction=1, data_options={"data_dir": "/x"}).id
    assert plain.id == "c1c3d1cf91", "ids of stored runs must never change"
    assert (
        len({plain.id, RunSpec("fashion", "deit_nano", Recipe(lr=2e-3)).id, RunSpec("fashion", "deit_nano", Recipe(), 1).id})
        == 3
    )
