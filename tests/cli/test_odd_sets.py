"""Sets that no textbook has: `data check` and `fit` say the same about them, and a run that begins can finish."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.cli import main
from softbias.data import load_dataset
from softbias.data.check import check
from softbias.errors import SoftbiasError
from softbias.pages.wording import text

FIT = [
    "--model",
    "deit_nano",
    "--img-size",
    "16",
    "--model-option",
    "patch_size=4",
    "--epochs",
    "1",
    "--no-baseline",
    "--trackers",
    "none",
]


def picture(path: Path | bytes, seed: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    with open(path, "wb") as file:
        Image.fromarray(noise).resize((20, 20)).save(file, "PNG")


def agree(source: Path, **options: object) -> str:
    """The reason for which both `data check` and reading the set refuse it."""
    (problem,) = [problem for problem in check(source).problems if problem.severity == "error"]
    with pytest.raises(SoftbiasError) as refused:
        load_dataset(source, img_size=8, **options)
    assert text(problem.note) == str(refused.value)
    return str(refused.value)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_no_text_are_escaped_and_the_run_finishes(tmp_path, monkeypatch):
    root = os.fsencode(tmp_path) + b"/bilder\xff"
    for number, kind in enumerate((b"cat", b"hund\xe9")):
        for index in range(12):
            picture(root + b"/" + kind + b"/%d\xe9.png" % index, 100 * number + index)
    assert main(["data", "check", os.fsdecode(root), "--json"]) == 0
    out = tmp_path / "run"
    assert main(["fit", os.fsdecode(root), *FIT, "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert [row["name"] for row in summary["test"]["classes"]] == ["cat", "hund\\xe9"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "hund\\xe9" in page and "bilder\\xff" in page and "\\xe9.png" in page
    assert main(["evaluate", str(out)]) == 0
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="utf-8", errors="strict"))  # as most terminals are
    assert main(["predict", str(out), os.fsdecode(root)]) == 0
    sys.stdout.flush()
    assert printed.getvalue().count(rb"bilder\xff") == 24


def test_classes_of_one_picture_are_refused_before_the_first_step(tmp_path, capsys):
    for number in range(30):
        picture(tmp_path / "set" / f"class {number}" / "only.png", number)
    assert "none is left to test with" in agree(tmp_path / "set")
    assert main(["data", "check", str(tmp_path / "set")]) == 1
    assert main(["fit", str(tmp_path / "set"), *FIT, "--out", str(tmp_path / "run")]) == 2
    assert "none is left to test with" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(30))
    assert "none is left to test with" in agree(tmp_path / "set.npz")


def test_two_images_per_class_are_trained_on(tmp_path):
    for number in range(20):
        picture(tmp_path / "set" / f"{number % 10}" / f"{number}.png", number)
    data = load_dataset(tmp_path / "set", img_size=8)
    assert {name: len(indices) for name, indices in data.splits.items()} == {"train": 10, "test": 10}
    assert check(tmp_path / "set").fit_to_train
    assert main(["fit", str(tmp_path / "set"), *FIT, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test"]["n"] == 10


def test_a_table_in_an_older_encoding_is_refused_by_its_line(tmp_path):
    for number in range(8):
        picture(tmp_path / f"{number}.png", number)
    rows = [f"{number}.png,{'Bär' if number % 2 else 'Hund'}" for number in range(8)]
    (tmp_path / "list.csv").write_bytes("\n".join(["path,label", *rows]).encode("latin-1"))
    assert "line 3: the label B\\xe4r is not in UTF-8" in agree(tmp_path / "list.csv")


def test_a_split_that_cannot_be_read_at_all_is_not_replaced_by_another(tmp_path):
    for number in range(24):
        picture(tmp_path / "set" / ("test" if number < 6 else "train") / "ab"[number % 2] / f"{number}.png", number)
    for file in (tmp_path / "set" / "test").rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(SoftbiasError, match="no picture of test can be read"):
        load_dataset(tmp_path / "set", img_size=8, skip_broken=True)
    assert any("no picture of test can be read" in text(problem.note) for problem in check(tmp_path / "set").problems)


def test_a_class_without_test_images_is_trained_and_the_others_are_scored(tmp_path, capsys):
    counts = {"train/a": 12, "train/b": 12, "train/rare": 2, "val/a": 3, "val/rare": 3, "test/a": 4, "test/b": 4}
    for number, (folder, count) in enumerate(counts.items()):
        for index in range(count):
            picture(tmp_path / "set" / folder / f"{index}.png", 100 * number + index)
    report = check(tmp_path / "set")
    lacking = [note.values for note in report.notes if note.kind == "split-lacks-classes"]
    assert report.fit_to_train
    assert lacking == [{"split": "val", "classes": ["b"]}, {"split": "test", "classes": ["rare"]}]
    out = tmp_path / "run"
    assert main(["fit", str(tmp_path / "set"), *FIT, "--out", str(out)]) == 0
    assert "test has no picture of rare" in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    rows = {row["name"]: row for row in summary["test"]["classes"]}
    assert rows["rare"]["n"] == 0 and rows["rare"]["recall"] is None
    recalls = [rows["a"]["recall"], rows["b"]["recall"]]
    assert summary["test"]["balanced_accuracy"] == pytest.approx(sum(recalls) / 2)
    assert [note["values"] for note in summary["notes"] if note["kind"] == "split-lacks-classes"] == lacking
    assert "test has no picture of rare" in (out / "report.html").read_text()
    assert (out / "confusion.png").stat().st_size > 0
    for split in ("val", "test", "train"):
        assert main(["evaluate", str(out), "--split", split, "--json"]) == 0
    assert main(["predict", str(out), str(tmp_path / "set" / "train" / "rare")]) == 0


def test_a_class_that_is_only_in_test_is_refused_by_name(tmp_path):
    for number, folder in enumerate(("train/a", "train/b", "test/a", "test/unknown")):
        picture(tmp_path / "set" / folder / "1.png", number)
    assert "1 of the classes of test have no picture in train to learn from: unknown" in agree(tmp_path / "set")
