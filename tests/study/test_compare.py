"""A study in this process: what runs, what is reused, what happens to the others when one fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import softbias
from softbias.runs.feature_learning import choose
from softbias.study import task as task_module
from softbias.study.arms import arms_from
from softbias.study.compare import run_study
from softbias.study.frame import COLUMNS, runs_frame
from softbias.study.progress import StudyDisplay
from softbias.study.settings import study_for
from softbias.study.spec import write_study
from softbias.training.recipe import RECIPES

from .small_studies import SHORT, outcome


class Counting(StudyDisplay):
    """Which runs were started."""

    def __init__(self):
        super().__init__()
        self.started, self.messages = [], []

    def start(self, run):
        self.started.append(run.label.split(" · ", 1)[1])

    def message(self, text):
        self.messages.append(text)


def do(spec, out, **options):
    display = Counting()
    done = run_study(spec, out, device="cpu", display=display, report=False, **{"baseline": False, **options})
    return done, display


def test_a_study_grows_and_nothing_runs_twice(little_study, tmp_path):
    out = tmp_path / "s"
    done, display = do(little_study("deit_nano", seeds=1, out=out), out)
    assert len(display.started) == 2 and not done.failed
    before = outcome(out)
    done, display = do(little_study("convit_nano", seeds=1, out=out), out)
    assert display.started == ["convit_nano · 50 % · seed 0", "convit_nano · 100 % · seed 0"]
    done, display = do(little_study("deit_nano", seeds=2, fractions=1, out=out), out)
    assert len(display.started) == 4 and all("seed 1" in label for label in display.started)
    after = outcome(out)
    assert len(after) == 8 and all(after[id] == before[id] for id in before)
    _, display = do(little_study("deit_nano", seeds=1, out=out), out)
    assert display.started == [] and "8 runs: 8 finished, 0 to do" in display.messages
    frame = runs_frame(out)
    assert tuple(frame.columns) == COLUMNS and list(dict.fromkeys(frame["arm"])) == ["deit_nano", "convit_nano"]
    assert set(frame["n_train"]) == {60, 120} and set(frame["n_test"]) == {60} and frame["macs"].gt(0).all()
    assert frame["accuracy"].between(0, 1).all() and set(frame["steps"]) == {6} and not (out / "runs" / "x").exists()


def test_a_dry_run_writes_nothing(little_study, tmp_path):
    done, display = do(little_study(out=tmp_path / "s"), tmp_path / "s", dry_run=True)
    assert len(done.plan.missing) == 8 and not (tmp_path / "s").exists() and display.started == []


def test_several_studies_share_a_store(little_study, tmp_path):
    shared = tmp_path / "shared"
    do(little_study("deit_nano", seeds=1, store=shared, out=tmp_path / "a"), tmp_path / "a")
    do(little_study("resnet_nano", seeds=1, fractions=1, store=shared, out=tmp_path / "c"), tmp_path / "c")
    done, display = do(little_study("deit_nano,convit_nano", seeds=1, store=shared, out=tmp_path / "b"), tmp_path / "b")
    assert all(label.startswith("convit_nano") for label in display.started) and len(display.started) == 2
    assert len(done.runs) == 4 and set(done.runs["arm"]) == {"deit_nano", "convit_nano"}  # not what others left there
    assert len(runs_frame(shared)) == 5


def test_one_failing_run_does_not_stop_the_others_and_is_tried_again(little_study, tmp_path, monkeypatch):
    real = task_module.train_run

    def fails_once(task, store, display):
        if task.spec.model == "deit_nano" and task.spec.seed == 1:
            raise RuntimeError("the lamp went out")
        return real(task, store, display)

    monkeypatch.setattr(task_module, "train_run", fails_once)
    spec = little_study(fractions=1)
    done, _ = do(spec, tmp_path)
    ((label, error),) = done.failed
    assert "deit_nano · 100 % · seed 1" in label and error == "RuntimeError: the lamp went out" and len(done.runs) == 3
    monkeypatch.setattr(task_module, "train_run", real)
    done, display = do(spec, tmp_path)
    assert display.started == ["deit_nano · 100 % · seed 1"] and not done.failed and len(done.runs) == 4
    assert not list(tmp_path.glob("runs/*/failure.json"))


def test_fine_tunes_start_from_the_pretraining_they_share(little_study, tmp_path):
    arms = "arvit_nano@pretrain=arvit-pretrain@finetune=linear@name=probe,arvit_nano@pretrain=arvit-pretrain@name=full"
    spec = little_study(arms, seeds=1)
    short = {"steps": 2, "batch_size": 8, "objective": "rotation"}
    from dataclasses import replace

    spec = replace(
        spec,
        arms=tuple(
            replace(arm, pretrain=replace(arm.pretrain, recipe=arm.pretrain.recipe.with_overrides(short))) for arm in spec.arms
        ),
    )
    done, display = do(spec, tmp_path)
    assert display.started[0].startswith("arvit_nano pre-training") and len(display.started) == 5 and not done.failed
    frame = done.runs
    (first,) = frame[frame["pretext"]]["run"]
    body = softbias.load(f"{first}/model").state_dict()
    probed = softbias.load(frame[frame["arm"] == "probe"]["run"].iloc[0] + "/model").state_dict()
    assert all((tensor == probed[name]).all() for name, tensor in body.items() if "head" not in name)
    moved = tmp_path.rename(tmp_path.with_name("moved"))  # ids do not depend on where the source lies
    _, display = do(spec, moved)
    assert display.started == []


def test_arms_start_from_features_learned_without_labels(little_study, tmp_path):
    before = "@pretrain=views:steps=3,batch_size=8"
    spec = little_study(f"deit_nano{before}@finetune=linear@name=probe,deit_nano{before}@name=full,deit_nano", seeds=1)
    done, display = do(spec, tmp_path)
    assert display.started[0].startswith("deit_nano pre-training") and not done.failed
    assert sum("pre-training" in label for label in display.started) == 1
    frame = done.runs
    (first,) = frame[frame["pretext"]]["run"]
    assert not any(name.startswith("head") for name in softbias.load(f"{first}/model").state_dict())
    assert set(frame[~frame["pretext"]]["arm"]) == {"probe", "full", "deit_nano"}


def test_a_pretraining_of_features_suits_the_images_unless_it_is_changed(tmp_path):
    arms = arms_from(
        "convit_nano@pretrain=views,convit_nano@pretrain=views:epochs=3@name=short,arvit_nano@pretrain=arvit-pretrain"
    )
    spec = study_for("fashion", arms, device="cpu", out=tmp_path / "study")
    chosen, short, paper = (arm.pretrain.recipe for arm in spec.arms)
    assert chosen == choose(5000, (32, 32), "cpu", 1, objective="views").recipe and chosen != RECIPES["views"]
    assert short.epochs == 3 and paper == RECIPES["arvit-pretrain"]


@pytest.mark.parametrize("given", [{"fractions": (0.5,)}, {"per_class": (4, 8)}])
def test_a_new_arm_gets_the_seeds_and_amounts_that_the_study_has(given, image_file, tmp_path):
    first = study_for(image_file, arms_from("deit_nano"), seeds=2, recipe="quick", out=tmp_path, **given)
    write_study(first, tmp_path)
    longer = study_for(image_file, arms_from("convit_nano"), out=tmp_path)
    assert [arm.name for arm in longer.arms] == ["deit_nano", "convit_nano"]
    assert longer.seeds == (0, 1) and longer.amounts == first.amounts
    assert study_for(image_file, arms_from("convit_nano"), out=tmp_path, seeds=3).seeds == (0, 1, 2)
    assert study_for(image_file, arms_from("deit_nano"), recipe="quick", out=tmp_path / "new").seeds == (0, 1, 2)


def test_runs_that_need_a_failed_one_fail_with_the_reason(little_study, tmp_path, monkeypatch):
    monkeypatch.setattr(task_module, "train_run", lambda *_: 1 / 0)
    done, display = do(little_study("arvit_nano@pretrain=arvit-pretrain", seeds=1), tmp_path)
    reasons = sorted(error for _, error in done.failed)
    assert len(reasons) == 3 and reasons[0] == "ZeroDivisionError: division by zero" and "which failed" in reasons[1]
    assert len(display.started) == 1


def test_a_half_written_run_is_done_again(little_study, tmp_path):
    spec = little_study("deit_nano", fractions=1)
    do(spec, tmp_path)
    whole = outcome(tmp_path)
    first, second = sorted(path for path in (tmp_path / "runs").iterdir() if not path.name.startswith("."))
    (first / "summary.json").write_text((first / "summary.json").read_text()[:40])
    (second / "summary.json").unlink()
    (second / "config.yaml").write_text("")
    _, display = do(spec, tmp_path)
    assert len(display.started) == 2 and outcome(tmp_path) == whole


def test_a_run_whose_model_or_settings_are_damaged_is_done_again_and_other_losses_are_named(little_study, tmp_path):
    spec = little_study("deit_nano", seeds=5, fractions=1)
    do(spec, tmp_path)
    before = outcome(tmp_path)
    first, second, third, fourth, fifth = sorted(
        path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")
    )
    weights = first / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    (second / "config.yaml").write_text((second / "config.yaml").read_text()[:40])
    (third / "environment.json").unlink()
    (fourth / "model" / "config.json").write_text("")
    settings = yaml.safe_load((fifth / "config.yaml").read_text())
    (fifth / "config.yaml").write_text(yaml.safe_dump({**settings, "seed": 99}))
    done, display = do(spec, tmp_path)
    assert len(display.started) == 4 and not done.failed and outcome(tmp_path) == before
    assert any("environment.json" in each for each in display.messages)
    assert sum("trained again" in each for each in display.messages) == 4


def test_the_library_returns_a_comparison_that_a_notebook_shows(image_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = softbias.compare(
        image_file, ["deit_nano", "convit_nano@strength=2"], seeds=1, recipe="quick", device="cpu", report=False, **SHORT
    )
    frame = done.runs
    assert len(frame) == 2 and done.path == Path("studies/bright") and done.failed == () and done.report is None
    assert list(done.summary["arm"]) == ["deit_nano", "convit_nano@strength=2"] and len(done.differences) == 1
    page = done._repr_html_()
    assert "convit_nano@strength=2" in page and "n = 1" in page and done.headline in page
    assert frame["baseline_accuracy"].notna().all()
    again = softbias.compare(image_file, "deit_nano", seeds=1, device="cpu", report=False)  # the recipe is the study's
    assert list(again.runs["run"]) == list(frame["run"])
    with pytest.raises(ValueError, match=r"studies/bright holds a study already, and its recipe was another"):
        softbias.compare(image_file, "deit_nano", seeds=1, device="cpu", lr=0.5)


def test_a_study_keeps_its_words_and_its_published_numbers_when_an_arm_is_added(little_study, tmp_path):
    number = {
        "data": "bright",
        "arm": "deit_nano",
        "train_fraction": 1.0,
        "metric": "accuracy",
        "value": 0.9,
        "note": "table 2",
    }
    words = {
        "title": "A title",
        "question": "Why?",
        "source": "somebody",
        "notes": ("so it is",),
        "warnings": ("beware",),
        "published": (number,),
    }
    write_study(replace(little_study("deit_nano"), **words), tmp_path)
    grown = little_study("convit_nano", out=tmp_path)
    assert [arm.name for arm in grown.arms] == ["deit_nano", "convit_nano"]
    assert {name: getattr(grown, name) for name in words} == words


def test_loose_runs_are_named_by_what_differs(image_file, tmp_path):
    for number, options in enumerate([{"lr": 0.01}, {"lr": 0.01, "seed": 1}, {"lr": 0.02}]):
        softbias.fit(image_file, "deit_nano", "quick", out=tmp_path / f"run{number}", device="cpu", **SHORT, **options)
    frame = runs_frame([tmp_path / f"run{number}" for number in range(3)])
    assert sorted(frame["arm"]) == ["deit_nano@lr=0.01", "deit_nano@lr=0.01", "deit_nano@lr=0.02"]
    assert frame["id"].nunique() == 3 and json.loads((tmp_path / "run0" / "summary.json").read_text())["macs"] > 0
