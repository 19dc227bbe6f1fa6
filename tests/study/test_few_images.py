"""Studies of a few images of each class, and of converted models: the amount of data is the axis of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import softbias
from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.study.arms import parse_arm
from softbias.study.compare import run_study
from softbias.study.execute import ThisProcess
from softbias.study.frame import runs_frame
from softbias.study.plan import study_runs
from softbias.study.spec import StudySpec, extended, read_study
from softbias.study.starts import with_starts

from .small_studies import SHORT


@pytest.fixture(scope="module")
def start(image_file, tmp_path_factory):
    """A finished run, as the start of others."""
    out = tmp_path_factory.mktemp("start") / "run"
    options = {"model_options": {"patch_size": 2}, "start": "scratch", "device": "cpu", "page": False, "baseline": False}
    return softbias.fit(image_file, "deit_nano", "quick", out=out, trackers=(), steps=2, **options).path


def test_a_study_of_few_images_compares_a_converted_model_and_its_report_names_the_axis(image_file, start, tmp_path, capsys):
    arms = f"deit_nano@start={start}@name=base,deit_nano@start={start}@convert=gated:blocks=0-2@name=gated"
    words = ["compare", image_file, "--models", arms, "--per-class", "2,5", "--seeds", "2", "--out", str(tmp_path / "s")]
    words += ["--recipe", "quick", "--recipe.steps", "3", "--recipe.val-fraction", "0", "--device", "cpu", "--no-baseline"]
    assert main(words) == 0
    assert "5 per class (15 pictures)" in capsys.readouterr().out
    frame = runs_frame(tmp_path / "s")
    assert sorted(set(frame["amount"])) == [2.0, 5.0] and set(frame["n_train"]) == {6, 15} and len(frame) == 8
    page = (tmp_path / "s" / "report.html").read_text()
    assert "5 pictures per class" in page and "2 per class" in page and "of each class and number" in page
    spec = read_study(tmp_path / "s")
    assert spec.per_class == (2, 5) and [arm.convert for arm in spec.arms] == [None, "gated:blocks=0-2"]
    plan = json.loads((tmp_path / "s" / "plan.json").read_text())["runs"]
    assert {row["per_class"] for row in plan.values()} == {2, 5}
    assert main(["runs", str(tmp_path / "s")]) == 0
    assert "5 per class" in capsys.readouterr().out
    assert main([*words, "--no-report"]) == 0  # all runs are reused
    assert "8 finished, 0 to do" in capsys.readouterr().out


def test_a_study_in_a_file_may_name_numbers_of_each_class(image_file, tmp_path):
    plain = {"name": "few", "data": image_file, "arms": ["deit_nano"], "per_class": 5, "seeds": 1, "recipe": SHORT}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(plain))
    spec = read_study(tmp_path / "few.yaml")
    assert spec.per_class == (5,) and StudySpec.from_dict(spec.to_dict()) == spec
    (run,) = study_runs(spec)
    assert run.spec.per_class == 5 and run.spec.train_fraction == 1 and "5 per class" in run.label
    more = StudySpec.from_dict({**plain, "per_class": [10, 2]})
    assert extended(spec, more).per_class == (2, 5, 10)
    with pytest.raises(SoftbiasError, match="not both"):
        StudySpec.from_dict({**plain, "fractions": [0.1, 1]})
    with pytest.raises(SoftbiasError, match="shares"):
        extended(spec, StudySpec.from_dict({name: value for name, value in plain.items() if name != "per_class"}))


def test_an_arm_converts_a_model_that_has_learned_something():
    arm = parse_arm("deit_tiny@start=pretrained@convert=masked:blocks=0-9,rank=4@lr=1e-3")
    assert arm.convert == "masked:blocks=0-9,rank=4" and arm.recipe == {"lr": 1e-3}
    with pytest.raises(SoftbiasError, match="has learned something"):
        parse_arm("deit_tiny@convert=gated")


def test_an_arm_that_cannot_be_converted_is_refused_before_anything_is_trained(image_file, start, little_study):
    spec = little_study("deit_nano@pretrain=arvit-pretrain@convert=gated:blocks=9")
    with pytest.raises(SoftbiasError, match="block 9"):
        study_runs(spec)


FILE = Path(__file__).resolve().parents[2] / "docs" / "soft-on-pretrained.yaml"


def test_the_study_of_soft_biases_on_pretrained_weights_is_planned_with_other_images(image_file, start, tmp_path, monkeypatch):
    plain = yaml.safe_load(FILE.read_text())
    for arm in plain["arms"]:
        arm |= {"model": "deit_nano", "start": str(start)}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(plain))
    seen = {}
    monkeypatch.setattr("softbias.cli.compare.run", lambda spec, options: seen.update(spec=spec) or 0)
    words = ["--data", image_file, "--per-class", "2", "--seeds", "2", "--steps", "3", "--img-size", "16"]
    assert main(["study", str(tmp_path / "few.yaml"), *words]) == 0
    spec = with_starts(seen["spec"], "cpu")
    runs = study_runs(spec)
    assert {(run.arm, run.spec.convert) for run in runs} == {
        ("base", None), ("gated", "gated:rate=5"), ("masked", "masked:rate=50"), ("distance", None)
    }  # fmt: skip
    assert len(runs) == 8 and {run.spec.recipe.steps for run in runs} == {3} and {run.spec.per_class for run in runs} == {2}
    assert {run.spec.data_options["img_size"] for run in runs} == {16} and spec.recipe.layer_decay == 0.75


def test_a_part_of_a_study_is_named_by_its_arms_seeds_and_shares(image_file, tmp_path, monkeypatch, capsys):
    arms = [{"name": name, "model": "deit_nano"} for name in ("DeiT", "IBiT, softmax", "IBiT")]
    (tmp_path / "parts.yaml").write_text(yaml.safe_dump({"name": "parts", "data": image_file, "arms": arms, "recipe": SHORT}))
    seen = {}
    monkeypatch.setattr("softbias.cli.compare.run", lambda spec, options: seen.update(spec=spec) or 0)
    study = ["study", str(tmp_path / "parts.yaml")]
    assert main([*study, "--arms", "IBiT, softmax,DeiT", "--seeds", "2,", "--fractions", "0.5,1"]) == 0
    spec = seen["spec"]
    assert [arm.name for arm in spec.arms] == ["IBiT, softmax", "DeiT"] and spec.seeds == (2,) and spec.fractions == (0.5, 1)
    assert main([*study, "--arms", "IBiT, softmax; IBiT"]) == 0  # as the error below parts the names
    assert [arm.name for arm in seen["spec"].arms] == ["IBiT, softmax", "IBiT"]
    assert main([*study, "--arms", "ConViT"]) == 2 and "DeiT; IBiT; IBiT, softmax" in capsys.readouterr().err
    assert main([*study, "--fractions", "0.5", "--per-class", "3"]) == 2 and "--per-class" in capsys.readouterr().err


def test_a_study_that_was_begun_is_not_changed_by_its_folder(image_file, tmp_path, capsys):
    plain = {"name": "few", "data": image_file, "arms": ["deit_nano"], "per_class": 5, "seeds": 1, "recipe": SHORT}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(plain))
    assert main(["study", str(tmp_path), "--per-class", "2", "--steps", "9"]) == 2
    printed = capsys.readouterr().err
    assert "--per-class" in printed and "--steps" in printed and printed.count("\n") == 1


def test_without_an_estimate_no_step_is_timed(little_study, tmp_path, monkeypatch):
    monkeypatch.setattr(ThisProcess, "seconds_per_step", lambda *_: pytest.fail("a step was timed"))
    done = run_study(little_study("deit_nano", seeds=1), tmp_path, device="cpu", estimate=False, baseline=False, report=False)
    assert len(done.runs) == 2 and not done.plan.seconds
