"""The named studies: valid at every scale, honest about their sources, and running at smoke scale."""

import json
from html import unescape

import numpy as np
import pandas
import pytest
import yaml

from softbias.cli import main
from softbias.models import create_model
from softbias.regularizers import parse_regularizers
from softbias.regularizers.attach import find_sites
from softbias.study import plan
from softbias.study.arms import read_recipe
from softbias.study.metric import METRICS
from softbias.study.papers import SCALES, STUDIES, find_study
from softbias.study.spec import StudySpec

from .pretended_sets import pretended

EVERY = [(name, scale) for name in STUDIES for scale in SCALES]


def test_the_fourteen_studies_are_there():
    assert list(STUDIES) == [
        "convit-sample-efficiency", "convit-sizes", "convit-locality", "ibit-imagenet", "ibit-ablation", "ibit-scaling",
        "ibit-depth", "arvit-table1", "arvit-table1-head", "arvit-pretraining", "arvit-cost", "eth-cifar10", "eth-combined",
        "eth-background",
    ]  # fmt: skip
    assert all(name == study.name for name, study in STUDIES.items())


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_study_at_every_scale_is_a_plan_of_distinct_runs_that_can_be_ordered(name, scale, pretend):
    spec = find_study(name).spec(scale)
    runs = plan.study_runs(spec)
    compared = [run for run in runs if run.spec.recipe.objective == "supervised"]
    assert len(compared) == len(spec.data) * len(spec.arms) * len(spec.fractions) * len(spec.seeds)
    assert len({run.id for run in runs}) == len(runs)
    assert [run.id for run in plan.study_runs(find_study(name).spec(scale))] == [run.id for run in runs]
    known = {run.id for run in runs}
    assert all(run.needs is None or run.needs in known for run in runs)
    assert len(plan.in_order(runs)) == len(runs)


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_study_draws_accuracy_on_held_out_images_which_choose_nothing(name, scale):
    spec = find_study(name).spec(scale)
    recipes = [read_recipe(arm.recipe, spec.recipe) for arm in spec.arms]
    assert all(recipe.select == "last" and recipe.patience is None for recipe in recipes)
    assert spec.test_curve == name.startswith("eth")  # whose Figure 4 shows test accuracy over epochs
    assert spec.test_curve or all(recipe.val_fraction > 0 for recipe in recipes)
    noted = any("held out" in note for note in spec.notes)
    assert noted == (not spec.test_curve and name != "convit-locality")  # whose validation pictures are its own setting


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_study_survives_its_file(name, scale):
    spec = find_study(name).spec(scale)
    again = StudySpec.from_dict(yaml.safe_load(yaml.safe_dump(spec.to_dict(), allow_unicode=True)))
    assert again.to_dict() == spec.to_dict() and again.arms == spec.arms


def test_every_model_of_every_study_can_be_built_and_has_the_layers_that_are_regularized():
    seen = set()
    for name, scale in EVERY:
        spec = find_study(name).spec(scale)
        for arm in spec.arms:
            recipes = [read_recipe(arm.recipe, spec.recipe), *([arm.pretrain.recipe] if arm.pretrain else [])]
            asked = tuple(request for recipe in recipes for request in recipe.regularize)
            data = pretended(spec.data[0], spec.data_options)
            key = arm.model, repr(sorted(arm.model_options.items())), data.img_size, asked
            if key in seen:
                continue
            seen.add(key)
            options = {"drop_path": spec.recipe.drop_path, **arm.model_options}
            model = create_model(arm.model, num_classes=10, img_size=data.img_size, device="meta", **options)
            if asked:
                assert find_sites(model, parse_regularizers(asked), data.img_size)
    assert len(seen) > 60


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_sources_are_quoted_and_every_published_number_says_where_it_stands(study):
    assert len(study.source) > 40 and len(study.can) > 40 and len(study.cannot) > 40 and study.question.endswith("?")
    arms = {arm.name for arm in study.build("paper").arms}
    for row in (*study.published, *study.beside):
        assert row["note"] and row["note"].split(",")[0] in ("ConViT", "IBiT", "ARViT", "ETH"), row
        assert row["arm"] in arms, row
    assert all(row["metric"] in METRICS and 1 <= row["value"] < 100 for row in study.published)
    asked = {row["metric"] for row in study.published}
    assert study.metric in METRICS and (not asked or study.metric in asked)
    spec = study.spec("paper")
    assert spec.source == study.source and study.can in spec.notes[0] and study.cannot in spec.notes[1]


def test_published_numbers_are_those_of_the_documents():
    def values(name, **wanted):
        rows = [*find_study(name).published, *find_study(name).beside]
        return [row["value"] for row in rows if all(row[key] == value for key, value in wanted.items())]

    efficiency = {"metric": "accuracy", "arm": "ConViT"}
    assert values("convit-sample-efficiency", **efficiency) == [47.8, 59.6, 73.7, 78.2, 81.4]
    assert values("convit-sizes", metric="images/s", arm="ConViT-B+") == [96]
    assert values("convit-sizes", metric="GFLOPs", arm="ConViT-S") == [5.4]
    assert values("convit-sample-efficiency", metric="relative gap, accuracy") == [37, 24, 12, 5, 2]
    assert values("arvit-table1", arm="ARViT-R1-5") == [88.45, 89.65, 85.82, 95.40, 82.70]
    assert values("arvit-cost", arm="ViT-B", metric="epoch seconds") == [1 * 3600 + 49 * 60 + 12]
    assert values("arvit-cost", arm="distance", metric="step_time") == [round(1100 / 1004, 3)]  # 18m20 against 16m44
    assert values("ibit-scaling", arm="DeiT") == [72.2, 71.5, 17.40, 60.28, 71.45]
    of_logs = [row for row in find_study("ibit-scaling").published if row["train_fraction"] < 1]
    assert len(of_logs) == 4 and all("logs of the release, not in the document" in row["note"] for row in of_logs)
    assert values("eth-cifar10") == [91.8, 74.7, 96.4]
    assert all("not in the document" in row["note"] for row in find_study("eth-cifar10").published)
    assert values("eth-combined") == [2.09, 1.93, 2.13] and values("eth-background") == [15.0, 10.5, 14.5]


def test_at_smoke_scale_absent_sets_are_replaced_and_the_study_says_so():
    spec = find_study("arvit-table1").spec("smoke")
    assert spec.data == ("fashion",) and {arm.pretrain.data for arm in spec.arms} == {"fashion"}
    assert any("cifar10, cifar100, flowers102, imagenette, imagewoof" in note and "fashion" in note for note in spec.warnings)
    assert any("imagenet is too large" in note for note in spec.warnings)  # for the pre-training
    assert find_study("arvit-table1").spec("small").data[0] == "cifar10"
    assert any("imagenet is too large" in note for note in find_study("convit-sizes").spec("smoke").warnings)


def test_at_smoke_scale_a_set_that_is_there_is_taken(tmp_path):
    folder = tmp_path / "sets" / "cifar10"
    folder.mkdir(parents=True)
    for part, count in (("train", 20), ("test", 10)):
        np.save(folder / f"{part}_images.npy", np.zeros((count, 32, 32, 3), np.uint8))
        np.save(folder / f"{part}_labels.npy", np.arange(count) % 10)
    spec = find_study("eth-cifar10").spec("smoke", data_dir=tmp_path / "sets")
    assert spec.data == ("cifar10",) and not spec.warnings
    assert find_study("eth-cifar10").spec("smoke", seeds=(4, 5)).seeds == (4, 5)


def test_a_damaged_set_is_not_replaced_in_silence(tmp_path):
    (tmp_path / "imagenette_96.npz").write_bytes(b"not a pack")
    with pytest.raises(ValueError, match="cannot be read"):
        find_study("arvit-table1").spec("smoke", data_dir=tmp_path)


def test_the_list_names_every_study_and_tells_all_about_one(capsys):
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed and study.question in printed for name, study in STUDIES.items())
    assert main(["reproduce", "arvit-table1", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "84.76" in printed and "It cannot show" in printed and "paper: cifar10" in printed and "75 runs" in printed
    assert main(["reproduce", "--list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(STUDIES)


def test_a_wrong_name_or_none_is_refused_with_what_there_is(capsys):
    assert main(["reproduce", "convit-size"]) == 2
    assert "did you mean 'convit-sizes'" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert "--list" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there is no scale 'huge'"):
        find_study("convit-sizes").spec("huge")


def test_a_dry_run_plans_and_trains_nothing(tmp_path, capsys):
    assert main(["reproduce", "ibit-depth", "--dry-run", "--out", str(tmp_path / "x"), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "7 runs: 0 finished, 7 to do" in printed and "2 masks, softmax" in printed and not (tmp_path / "x").exists()


MEASURED = {  # study -> tables that it writes beside its report, and a column with numbers in it
    "convit-sample-efficiency": {"gaps": "value"},
    "convit-sizes": {"speed": "images_per_second", "model_costs": "macs"},
    "convit-locality": {
        "strength_and_layers": "accuracy",
        "learning_curves": "accuracy",
        "locality": "value",
        "gates": "value",
        "locality_epochs": "value",
        "gates_epochs": "value",
    },
    **{name: {"masks_epochs": "value"} for name in ("ibit-imagenet", "ibit-ablation", "ibit-scaling", "ibit-depth")},
    "arvit-table1": {"pretraining": "accuracy", "gap_to_vit": "value", "gap_to_base": "value"},
    "arvit-table1-head": {"pretraining": "accuracy", "gap_to_vit": "value", "gap_to_base": "value"},
    "arvit-pretraining": {"pretraining_shares": "accuracy"},
    "arvit-cost": {"step_time": "milliseconds"},
    "eth-combined": {"combined": "value", "combined_summary": "value"},
    "eth-background": {"background": "value", "background_summary": "value"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_smoke_scale(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOFTBIAS_DEBUG", "1")
    out = tmp_path / f"{name}-smoke"
    assert main(["reproduce", name, "--out", str(out), "--device", "cpu"]) == 0
    study = find_study(name)
    spec = study.spec("smoke")
    frame = pandas.read_csv(out / "figures" / "runs.csv")
    assert set(frame["arm"]) >= {arm.name for arm in spec.arms}
    page = unescape((out / "report.html").read_text(encoding="utf-8"))
    assert study.title in page and "fashion" in page and "nano models stand in" in page
    assert "no other model to compare" not in page and "nothing to compare" not in page
    for row in study.published:
        if row["arm"] in {arm.name for arm in spec.arms}:
            assert str(row["value"]) in page and row["note"] in page
    assert (study.after is not None) == (name in MEASURED)
    for table, column in MEASURED.get(name, {}).items():
        rows = pandas.read_csv(out / "extra" / f"{table}.csv")
        assert len(rows) and rows[column].notna().any()
    if study.after is not None:
        listed = json.loads((out / "extra" / "extra.json").read_text())
        files = [file for one in listed for file in (*one["figures"], *one["tables"])]
        assert files and all((out / file).stat().st_size > 0 for file in files)
        assert all(one["title"] in page for one in listed)


def test_a_study_with_other_settings_names_them(monkeypatch):
    from softbias.cli import main

    seen = []
    monkeypatch.setattr("softbias.cli.compare.run", lambda spec, options, perform: seen.append(spec) or 0)
    words = ["reproduce", "ibit-depth", "--steps", "70", "--recipe.flip", "0", "--fractions", "0.1,0.5", "--seeds", "2"]
    assert main(words) == 0
    (spec,) = seen
    assert spec.recipe.steps == 70 and spec.recipe.augmentation.flip == 0
    assert spec.fractions == (0.1, 0.5) and spec.seeds == (0, 1)
    assert "--fractions 0.1,0.5" in spec.notes[-1] and "--steps 70 --flip 0" in spec.notes[-1]


def test_some_rows_and_columns_of_a_study_can_be_asked_for_by_name(monkeypatch, capsys):
    from softbias.cli import main

    seen = []
    monkeypatch.setattr("softbias.cli.compare.run", lambda spec, options, perform: seen.append(spec) or 0)
    words = ["reproduce", "arvit-table1", "--scale", "small", "--arms", "ARViT-L3, ARViT-Base", "--data", "imagenette"]
    assert main(words) == 0
    (spec,) = seen
    assert [arm.name for arm in spec.arms] == ["ARViT-L3", "ARViT-Base"] and spec.data == ("imagenette",)
    assert "--data imagenette" in spec.notes[-1]
    assert [(row["arm"], row["value"]) for row in spec.published] == [("ARViT-Base", 91.18), ("ARViT-L3", 92.05)]
    assert main(["reproduce", "arvit-table1", "--data", "flowers102"]) == 0  # at smoke scale, whether it is here or not
    assert len(seen[-1].data) == 1 and "--data flowers102" in seen[-1].notes[-1]
    assert main(["reproduce", "arvit-table1", "--arms", "ARViT-L7"]) == 2
    assert "there is no arm 'ARViT-L7'" in capsys.readouterr().err
    assert main(["reproduce", "arvit-table1", "--data", ","]) == 2
    assert "name at least one set of the study" in capsys.readouterr().err
