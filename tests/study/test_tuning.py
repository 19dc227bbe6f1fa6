"""The same search for every arm, never with the test pictures."""

import builtins
import json
from dataclasses import replace
from pathlib import Path

import pytest

from softbias.runs.run import Run
from softbias.study import task as task_module
from softbias.study.compare import run_study
from softbias.study.execute import ExecutionSettings, ThisProcess
from softbias.study.progress import StudyDisplay
from softbias.study.tuning import VALIDATION, tune


def test_every_arm_has_as_many_trials_none_sees_the_test_images_and_the_choice_is_used(little_study, tmp_path):
    pytest.importorskip("optuna")
    spec = little_study("deit_nano,convit_nano", seeds=1, fractions=1, tune=2)
    done = run_study(spec, tmp_path, device="cpu", report=False, baseline=False)
    record = json.loads((tmp_path / "tuning.json").read_text())
    assert (
        record["trials"] == 2
        and record["validation"] == VALIDATION
        and {row["arm"] for row in record["arms"]} == {"deit_nano", "convit_nano"}
    )
    trials = list((tmp_path / "trials").glob("*/summary.json"))
    assert len(trials) == 4
    for file in trials:
        summary = json.loads(file.read_text())
        assert "test" not in summary and summary["pictures"] == {"train": 96, "val": 24}
        assert not (file.parent / "predictions.npz").exists()
    for row in record["arms"]:
        assert row["trials"][0]["lr"] == spec.recipe.lr  # the recipe itself is the first trial
        best = max(row["trials"], key=lambda trial: trial["validation_accuracy"])
        assert row["chosen"] == {"lr": best["lr"], "weight_decay": best["weight_decay"]}
        (run,) = done.runs[done.runs["arm"] == row["arm"]]["run"]
        recipe = Run(Path(run)).spec.recipe
        assert recipe.lr == best["lr"] and recipe.val_fraction == spec.recipe.val_fraction
    before = {file: file.stat().st_mtime_ns for file in trials}
    settings = ExecutionSettings(tmp_path / "runs", "cpu", baseline=False)
    tune(
        spec, tmp_path, ThisProcess("cpu"), settings, StudyDisplay()
    )  # asked again, it proposes the same trials and finds them done
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").glob("*/summary.json")} == before


def test_trials_and_study_share_their_pretrainings(little_study, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    arms = "arvit_nano@pretrain=arvit-pretrain@finetune=linear@name=probe,arvit_nano@pretrain=arvit-pretrain@name=full"
    spec = little_study(arms, seeds=2, fractions=1, tune=2, overrides={"steps": 2})
    short = {"steps": 2, "batch_size": 8}
    recipes = [replace(arm.pretrain, recipe=arm.pretrain.recipe.with_overrides(short)) for arm in spec.arms]
    spec = replace(spec, arms=tuple(replace(arm, pretrain=before) for arm, before in zip(spec.arms, recipes, strict=True)))
    trained, real = [], task_module.train_run
    monkeypatch.setattr(task_module, "train_run", lambda task, *rest: trained.append(task) or real(task, *rest))
    done = run_study(spec, tmp_path / "s", device="cpu", report=False, baseline=False)
    assert not done.failed
    assert [task.spec.seed for task in trained if task.spec.recipe.objective == "rotation"] == [0, 1]  # one per seed, no more
    assert len(trained) == 2 + 4 + 4  # two trials of two arms, then two seeds of two arms
    moved = (tmp_path / "s").rename(tmp_path / "moved")
    run_study(spec, moved, device="cpu", report=False, baseline=False)
    assert len(trained) == 10


def test_a_pretraining_that_fails_ends_the_search_with_the_reason(little_study, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(task_module, "train_run", lambda *_: 1 / 0)
    with pytest.raises(ValueError, match=r"arvit_nano pre-training · 100 % · seed 0 failed, .* softbias runs .* says why"):
        run_study(little_study("arvit_nano@pretrain=arvit-pretrain", tune=2), tmp_path, device="cpu", report=False)


def test_without_optuna_the_error_says_what_to_install(little_study, tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ValueError, match=r"pip install 'softbias\[tune\]'"):
        run_study(little_study(tune=2), tmp_path, device="cpu", report=False)
