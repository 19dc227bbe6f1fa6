"""Bias profiles of a study's runs: measured by one command, drawn by the report, kept in a packed study."""

from pathlib import Path

import pandas
import pytest

from softbias.cli import main
from softbias.json_file import read_json
from softbias.runs.run import Run
from softbias.study.archive import unpacked
from softbias.study.arms import arms_from
from softbias.study.compare import run_study
from softbias.study.packing import pack
from softbias.study.profiles import bias_items
from softbias.study.report import write_report
from softbias.study.settings import study_for

from .small_studies import SHORT


@pytest.fixture(scope="module")
def profiled(image_file, tmp_path_factory) -> Path:
    """Two arms and two seeds; one arm starts from a pre-training, which has no classifier to measure."""
    arms = arms_from("deit_nano,arvit_nano@pretrain=arvit-pretrain:epochs=1")
    spec = study_for(image_file, arms, overrides=SHORT, seeds=2, recipe="quick", device="cpu", name="mine")
    study = run_study(spec, tmp_path_factory.mktemp("profiled") / "mine", device="cpu", baseline=False, report=False).path
    words = ["probe", str(study), "--probes", "profile", "--n", "8", "--option", "profile.scenes=8", "--device", "cpu"]
    assert main(words) == 0
    return study


def test_a_study_stands_for_its_runs_and_the_table_lies_beside_them(profiled):
    rows = read_json(profiled / "probes" / "profile.json")
    runs = [Run(file.parent) for file in profiled.glob("runs/*/summary.json")]
    assert {row["model"] for row in rows} == {run.path.name for run in runs if run.spec.recipe.objective != "rotation"}
    assert len({row["model"] for row in rows}) == 4 < len(runs)


def test_no_score_of_a_profile_is_drawn_against_the_score():
    assert {item.key for item in bias_items()} == {
        "distance_first", "distance", "gate", "field", "shift1", "shift4", "equivariance", "shape",
    }  # fmt: skip


def bias_table(study: Path, out: Path, name: str) -> pandas.DataFrame:
    write_report(study, out)
    (file,) = (out / "figures").glob(f"bias-*-100-{name}.csv")
    return pandas.read_csv(file)[["arm", "seed", "bias", "value"]]


def test_the_report_draws_scores_by_the_numbers_of_the_profile(profiled, tmp_path):
    table = bias_table(profiled, tmp_path, "distance")
    measured = {
        row["model"]: row["value"] for row in read_json(profiled / "probes" / "profile.json") if row["measure"] == "distance"
    }
    runs = [Run(profiled / "runs" / name) for name in measured]
    expected = {
        (run.summary()["model"], run.spec.seed): (measured[run.path.name], run.summary()["test"]["accuracy"]) for run in runs
    }
    found = {(row.arm.split("@")[0], row.seed): (row.bias, row.value) for row in table.itertuples()}
    assert found.keys() == expected.keys()
    for key, numbers in expected.items():
        assert found[key] == pytest.approx(numbers)


def test_a_packed_study_keeps_its_profiles_to_five_digits(profiled, tmp_path):
    whole = bias_table(profiled, tmp_path / "whole", "field")
    packed = pack(profiled, out=tmp_path / "mine.zip").path
    again = pack(packed, packed, out=tmp_path / "again.zip").path
    for path in (packed, again):
        with unpacked(path) as folder:
            small = bias_table(folder, tmp_path / path.stem, "field")
            assert str(profiled) not in (folder / "probes" / "profile.json").read_text()
        pandas.testing.assert_frame_equal(small, whole, rtol=1e-4)


def test_profiles_that_cannot_be_read_are_named_and_cost_no_other_part(profiled, tmp_path):
    file = profiled / "probes" / "profile.json"
    text = file.read_text()
    try:
        file.write_text('[{"model": 3}]')
        page = write_report(profiled, tmp_path).read_text()
    finally:
        file.write_text(text)
    assert "The profiles of the runs cannot be read" in page and (tmp_path / "figures" / "summary.csv").is_file()
