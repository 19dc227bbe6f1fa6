"""`softbias compare`, `study` and `runs` as a user types them."""

import json

import pytest
import yaml

from softbias.cli import main

QUICK = [
    "--recipe",
    "quick",
    "--recipe.steps",
    "4",
    "--recipe.batch-size",
    "16",
    "--device",
    "cpu",
    "--no-baseline",
    "--no-report",
]


@pytest.fixture(scope="module")
def study(image_folder, tmp_path_factory):
    """Two finished runs, made by the command."""
    out = tmp_path_factory.mktemp("studies") / "s"
    words = [
        "compare",
        str(image_folder),
        "--models",
        "deit_nano@patch_size=8,resnet_nano@stem=large",
        "--seeds",
        "1",
        "--img-size",
        "32",
    ]
    assert main([*words, "--out", str(out), *QUICK, "--quiet"]) == 0
    return out


def fails(capsys, *words) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err.strip()


def test_a_study_prints_a_table_and_is_reused_by_its_folder(study, capsys):
    assert main(["study", str(study), "--device", "cpu", "--no-report"]) == 0
    printed = capsys.readouterr().out
    assert "2 runs: 2 finished, 0 to do" in printed and "n = 1" in printed and "says nothing about another seed" in printed
    assert main(["study", str(study), "--device", "cpu", "--no-report", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["event"] == "study" and last["missing"] == 0 and len(last["rows"]) == 2


def test_a_dry_run_lists_what_is_missing(study, capsys):
    settings = yaml.safe_load((study / "study.yaml").read_text())
    (study.parent / "more.yaml").write_text(yaml.safe_dump({**settings, "seeds": 2}))
    assert main(["study", str(study.parent / "more.yaml"), "--out", str(study), "--dry-run", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "4 runs: 2 finished, 2 to do, about" in printed and "resnet_nano@stem=large" in printed
    assert yaml.safe_load((study / "study.yaml").read_text())["seeds"] == [0]


def test_a_file_without_images_takes_those_of_the_command(study, image_folder, tmp_path, capsys):
    settings = {**yaml.safe_load((study / "study.yaml").read_text()), "data": None}
    (tmp_path / "any.yaml").write_text(yaml.safe_dump({name: value for name, value in settings.items() if value is not None}))
    words = ["study", str(tmp_path / "any.yaml"), "--out", str(study), "--dry-run", "--device", "cpu"]
    assert "data is missing" in fails(capsys, *words)
    assert main([*words, "--data", str(image_folder)]) == 0
    assert "2 runs: 2 finished, 0 to do" in capsys.readouterr().out


def test_scores_for_choosing_are_those_of_val(image_folder, tmp_path, capsys):
    words = ["compare", str(image_folder), "--models", "deit_nano@patch_size=8", "--seeds", "1", "--img-size", "32"]
    assert main([*words, "--score", "val", "--out", str(tmp_path / "s"), *QUICK]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "test pictures themselves are not looked at" in printed and "95 % interval over validation pictures only" in printed
    (config,) = (tmp_path / "s" / "runs").glob("*/config.yaml")
    assert yaml.safe_load(config.read_text())["data_options"] == {"img_size": 32, "score": "val"}
    assert "--score" in fails(capsys, "study", tmp_path / "s", "--score", "test")


def test_runs_are_listed_filtered_compared_and_removed(study, capsys, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(study, copy)
    assert main(["runs", str(copy), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["status"] for row in rows} == {"finished"} and len(rows) == 2
    assert main(["runs", str(copy), "--model", "deit_*"]) == 0
    printed = capsys.readouterr().out
    assert "deit_nano@patch_size=8" in printed and "resnet" not in printed
    first, second = (row["run"] for row in rows)
    assert main(["runs", "diff", first, second]) == 0
    printed = capsys.readouterr().out
    assert ("model_options.patch_size" in printed and "accuracy" in printed) or "parameters" in printed
    assert main(["runs", "diff", first, first]) == 0
    assert "do not differ" in capsys.readouterr().out
    assert "--yes" in fails(capsys, "runs", "delete", first)
    assert main(["runs", "delete", first, "--yes"]) == 0
    assert "1 run removed" in capsys.readouterr().out
    assert main(["runs", str(copy), "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [second]


def test_a_run_being_worked_on_is_not_removed(study, capsys, tmp_path):
    import shutil

    from softbias.runs.store import Store

    shutil.copytree(study, tmp_path / "copy")
    folder = next(iter(Store(tmp_path / "copy" / "runs").folders()))
    with Store(folder.parent).claim(folder.name[-10:]):
        assert main(["runs", "delete", str(folder), "--yes"]) == 1
    assert folder.is_dir() and "is being worked on and stays" in capsys.readouterr().err


MISTAKES = {
    ("compare",): "which pictures? softbias compare DATA --models A,B",
    ("compare", "fashion"): "which models? softbias compare DATA --models",
    ("compare", "fashion", "--models", "deit_nano@lr"): "an override of an arm is NAME=VALUE",
    ("compare", "fashion", "--models", "deit_nan", "--recipe", "quick"): "did you mean 'deit_nano'?",
    ("compare", "fashion", "--models", "deit_nano", "--fractions", "ten"): "--fractions takes numbers separated by commas",
    ("compare", "fashion", "--models", "deit_nano", "--fractions", "0", "--recipe", "quick"): "at most 1, but is 0",
    ("compare", "fashion", "--models", "deit_nano", "--fractions", "10,100", "--recipe", "quick"): "for 10 % give 0.1",
    ("compare", "fashion", "--models", "deit_nano", "--seeds", "x"): "seeds takes their number",
    ("compare", "fashion", "--models", "deit_nano", "--recipe.lrr", "1"): "did you mean --lr?",
    ("compare", "fashoin", "--models", "deit_nano"): "did you mean 'fashion'?",
    (
        "compare",
        "fashion",
        "--models",
        "deit_nano",
        "--jobs",
        "-1",
        "--recipe",
        "quick",
    ): "--jobs must be a whole number",
    ("compare", "fashion", "--models", "deit_nano", "--on", "slurm", "--recipe", "quick"): "--on takes ray",
    ("compare", "fashion", "--models", "deit_nano", "--on", "ray", "--jobs", "2", "--recipe", "quick"): "leave out --jobs",
    ("study",): "which study?",
    ("study", "nowhere.yaml"): "the study nowhere.yaml cannot be read",
    ("runs", "nowhere"): "nowhere is no folder",
    ("runs", "diff", "abc", "abd"): "there is no run 'abc'",
    ("runs", "delete"): "which runs?",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_clear_line(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = fails(capsys, *words)
    assert MISTAKES[words] in message and "\n" not in message and not list(tmp_path.iterdir())


def test_a_failed_run_is_named_at_the_end_with_exit_status_1(study, capsys, tmp_path, monkeypatch):
    import shutil

    shutil.copytree(study, tmp_path / "s")
    shutil.rmtree(next((tmp_path / "s" / "runs").glob("*deit*")))
    monkeypatch.setattr("softbias.study.task.train_run", lambda *_: 1 / 0)
    assert main(["study", str(tmp_path / "s"), "--device", "cpu", "--no-report"]) == 1
    printed = capsys.readouterr()
    assert "failed: ZeroDivisionError" in printed.err and "1 run failed" in printed.err and "resnet_nano" in printed.out
