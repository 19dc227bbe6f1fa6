"""Mistakes that are refused before the work begins, and advice that fits what was asked."""

from __future__ import annotations

import json

import pytest

from softbias.cli import main
from softbias.data.check import check
from softbias.errors import SoftbiasError
from softbias.files import require_writable
from softbias.runs.automatic import LONGER
from softbias.runs.partial import PartialRunSpec
from softbias.runs.resolve import resolve
from softbias.runs.run import Run

NOT_THERE = "/proc/nowhere/out"
REFUSED = {
    ("explain", "RUN", "nope.jpg"): "nope.jpg",
    ("compare", "PICTURES", "--models", "deit_nano,convit_nanoo"): "'convit_nanoo'",
    ("fit", "PICTURES", "--out", NOT_THERE): NOT_THERE,
    ("compare", "PICTURES", "--models", "deit_nano,convit_nano", "--out", NOT_THERE): NOT_THERE,
    ("demo", "--out", NOT_THERE): NOT_THERE,
    ("probe", "RUN", "--out", NOT_THERE): NOT_THERE,
    ("report", "RUN", "--out", NOT_THERE): NOT_THERE,
    ("pretrain", "PICTURES", "--objective", "supervised"): "rotation",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_mistake_is_refused_in_one_line_before_anything_is_printed(
    arguments, run, image_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    paths = {"RUN": str(run), "PICTURES": str(image_folder)}
    assert main([paths.get(argument, argument) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert REFUSED[arguments] in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not list(tmp_path.iterdir())


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    require_writable(tmp_path / "new" / "inner")
    (tmp_path / "old").mkdir()
    require_writable(tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SoftbiasError):
        require_writable(tmp_path / "file")


@pytest.mark.parametrize(
    ("asked", "longer"), [({}, LONGER), ({"epochs": 3.0}, 1), ({"epochs": 900.0}, None), ({"steps": 5}, None)]
)
def test_a_longer_training_is_advised_only_where_it_is_sensible(asked, longer, image_folder, monkeypatch):
    """The automatic choice, if the user asked for less; several times that, if the user asked for nothing."""
    monkeypatch.setattr("softbias.runs.automatic.MOST_EPOCHS", 10_000)
    partial = PartialRunSpec(data=str(image_folder), overrides=asked).completed()
    without = resolve(PartialRunSpec(data=str(image_folder)).completed(), "cpu", advise=False)
    chosen = without.spec.recipe.epochs
    resolved = resolve(partial, "cpu", without.data)
    values = next(note.values for note in resolved.advice if note.kind == "training-time")
    if longer is None:
        assert "longer_epochs" not in values
    else:
        assert values["longer_epochs"] == longer * chosen and values["automatic"] == (longer == 1)
        assert values["longer_seconds"] > values["seconds"]


def test_resume_without_a_folder_names_the_stopped_runs_of_the_same_images(
    image_folder, tmp_path, monkeypatch, capsys, no_page
):
    monkeypatch.chdir(tmp_path)
    command = ["fit", str(image_folder), "--model", "deit_nano", "--recipe", "quick", "--no-baseline", "--trackers", "none",
               "--device", "cpu"]  # fmt: skip
    assert main([*command, "--epochs", "1"]) == 0
    stopped = next((tmp_path / "runs").iterdir())
    (stopped / "summary.json").unlink()  # as a kill before the last file leaves it
    capsys.readouterr()
    assert main([*command, "--epochs", "2", "--resume"]) == 2
    printed = capsys.readouterr().err
    assert stopped.name in printed and printed.count("\n") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [stopped.name]
    assert main([*command, "--epochs", "1", "--resume"]) == 0  # the same settings: it is found
    assert Run(stopped).finished
    capsys.readouterr()
    assert main([*command, "--epochs", "2", "--resume", "--json"]) == 0  # nothing was stopped, and that is said
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any("resume" in event.get("text", "") for event in events)


def test_copies_are_counted_in_groups_and_images(tmp_path, image_folder):
    root = tmp_path / "set"
    for name in ("blue", "red"):
        (root / name).mkdir(parents=True)
        for file in (image_folder / name).iterdir():
            (root / name / file.name).write_bytes(file.read_bytes())
    for number in range(2):
        (root / "blue" / f"again {number}.png").write_bytes((root / "blue" / "blue 3.png").read_bytes())
    (root / "red" / "again.png").write_bytes((root / "red" / "red 5.png").read_bytes())
    found = [problem.note.values for problem in check(root).problems if problem.note.kind == "copies"]
    exact = next(values for values in found if values["copies"] == "exact")
    assert exact["groups"] == 2 and exact["count"] == 5
