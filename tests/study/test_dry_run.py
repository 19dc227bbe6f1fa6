"""A dry run writes nothing, and looks for all sets first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.cli import main
from softbias.data import load_dataset
from softbias.data.cache import writing_nothing
from softbias.study.papers import find_study, list_studies
from softbias.study.spec import read_study


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    """An empty working folder beside an empty cache and a folder of pictures."""
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOFTBIAS_DATA", str(tmp_path / "sets"))
    rng = np.random.default_rng(0)
    for name in "abc":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            image = Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8))
            image.save(tmp_path / "pictures" / name / f"{number}.png")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("jobs", ["0", "2"])
def test_a_dry_run_writes_nothing_and_counts_the_runs(jobs, empty, capsys):
    before = files(empty)
    arguments = ["compare", "../pictures", "--models", "deit_nano@patch_size=4", "--img-size", "16", "--recipe", "quick"]
    assert main([*arguments, "--epochs", "1", "--seeds", "2", "--device", "cpu", "--jobs", jobs, "--dry-run"]) == 0
    assert files(empty) == before and not (empty / "cache").exists() and not list((empty / "here").iterdir())
    assert "2 runs: 0 finished, 2 to do" in capsys.readouterr().out


def test_a_missing_set_is_found_before_another_is_read(empty, capsys):
    (empty / "here" / "s.yaml").write_text("name: s\ndata: [../pictures, imagenet]\narms: [deit_nano]\n")
    before = files(empty)
    assert read_study("s.yaml").data == ("../pictures", "imagenet")
    assert main(["study", "s.yaml", "--dry-run", "--device", "cpu"]) == 2
    assert "imagenet" in capsys.readouterr().err and files(empty) == before and not (empty / "cache").exists()


def test_a_set_that_is_not_decoded_has_its_labels_splits_and_sizes(empty):
    with writing_nothing():
        planned = load_dataset("../pictures", img_size=16)
    assert not (empty / "cache").exists()
    read = load_dataset("../pictures", img_size=16)
    assert planned.class_names == read.class_names and planned.images.shape == read.images.shape
    assert np.array_equal(planned.labels, read.labels) and {*planned.splits} == {*read.splits}
    assert not np.array_equal(planned.images, read.images)


@pytest.mark.parametrize("name", list_studies())
def test_a_dry_run_of_a_paper_names_a_missing_set_and_writes_nothing(name, empty, capsys):
    before = files(empty)
    assert main(["reproduce", name, "--scale", "paper", "--dry-run", "--device", "cpu"]) == 2
    spec = find_study(name).spec("paper")
    assert any(each in capsys.readouterr().err for each in spec.data)
    assert files(empty) == before and not (empty / "cache").exists() and not list((empty / "here").iterdir())
