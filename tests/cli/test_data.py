"""softbias data check and softbias data cache."""

import json
import shutil

import numpy as np
import pandas
from PIL import Image

from softbias.cli import main
from softbias.data import load_dataset


def test_check_says_that_a_set_is_fit_to_train_on(image_folder, capsys):
    assert main(["data", "check", str(image_folder)]) == 0
    printed = capsys.readouterr().out
    assert "60 pictures, 3 classes" in printed and printed.strip().endswith("fit to train on") and "NOT" not in printed


def test_check_names_what_is_broken_and_its_exit_status_says_so(image_folder, tmp_path, capsys):
    root = tmp_path / "mit Lücken"
    shutil.copytree(image_folder, root)
    (root / "red" / "zero.png").write_bytes(b"")
    assert main(["data", "check", str(root)]) == 1
    printed = capsys.readouterr().out
    assert "zero.png" in printed and "NOT fit to train on" in printed
    assert main(["data", "check", str(root), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["fit_to_train"] is False and "zero bytes" in report["reasons"][0]


def test_check_of_nothing_is_a_mistake(tmp_path, capsys):
    assert main(["data", "check", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_cache_says_its_folder_and_size_and_can_be_cleared(image_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path))
    load_dataset(image_folder)
    assert main(["data", "cache", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["bytes"] > 60 * 32 * 32 * 3 and about["folder"] == str(tmp_path / "pictures")
    assert main(["data", "cache", "--clear"]) == 0
    assert f"0.2 MB freed in {tmp_path / 'pictures'}" in capsys.readouterr().out
    assert main(["data", "cache"]) == 0
    assert "0.0 MB of decoded pictures" in capsys.readouterr().out


def test_check_takes_a_named_set_and_the_folder_of_named_sets(tmp_path, capsys):
    folder = tmp_path / "sets" / "cifar10"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)
    for part, images in (("train", noise[:200]), ("test", noise[200:])):
        np.save(folder / f"{part}_images.npy", images)
        np.save(folder / f"{part}_labels.npy", np.arange(len(images)) % 10)
    assert main(["data", "check", "cifar10", "--data-dir", str(tmp_path / "sets")]) == 0
    printed = capsys.readouterr().out
    assert "300 pictures, 10 classes" in printed and "airplane" in printed
    assert main(["data", "check", "cifar10", "--data-dir", str(tmp_path)]) == 2  # there is none
    assert main(["data", "check", str(folder), "--data-dir", str(tmp_path)]) == 2
    assert "data_dir is for named sets" in capsys.readouterr().err


def test_scenes_on_backgrounds_are_a_set_that_training_takes(tmp_path, capsys):
    out = tmp_path / "scenes"
    assert main(["data", "scenes", "background", "fashion", "--out", str(out), "--n", "60", "--seed", "3"]) == 0
    assert "60 scenes of 128 × 128 px" in capsys.readouterr().out
    table = pandas.read_csv(out / "scenes.csv")
    source = load_dataset("fashion")
    assert table["label"].tolist() == [source.class_names[source.labels[index]] for index in table["source"]]
    assert set(table["source"]) <= set(source.splits["test"].tolist())
    first = np.asarray(Image.open(out / table["path"][0]))
    assert first.shape == (128, 128, 3)
    small = source.images[table["source"][0]]
    windows = np.lib.stride_tricks.sliding_window_view(first[..., 0], (32, 32))
    assert (windows == small[..., 0]).all((-2, -1)).any()  # the picture lies in its scene as it is
    loaded = load_dataset(out / "scenes.csv", group_by="source", img_size=32)
    assert set(loaded.class_names) <= set(source.class_names) and len(loaded) == 60
    assert main(["data", "check", str(out)]) in (0, 1) and "60 pictures" in capsys.readouterr().out
    assert main(["data", "scenes", "background", "fashion", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_combined_scenes_have_the_four_classes_of_the_study_s_label(tmp_path, capsys):
    assert main(["data", "scenes", "combined", "fashion", "--out", str(tmp_path / "four"), "--n", "20"]) == 0
    table = pandas.read_csv(tmp_path / "four" / "scenes.csv")
    corners = table[["top_left", "top_right", "bottom_left", "bottom_right"]]
    marked = table.filter(like="has:")
    assert marked.shape == (20, 10) and (marked.sum(axis=1) == 4).all()
    for (_, names), (_, row) in zip(corners.iterrows(), marked.iterrows(), strict=True):
        assert {f"has:{name}" for name in names} == set(row.index[row == 1])
    assert Image.open(tmp_path / "four" / table["path"][19]).size == (64, 64)
    assert main(["data", "scenes", "combined", "fashion", "--out", str(tmp_path / "x"), "--size", "99"]) == 2
    assert not (tmp_path / "x").exists() and "for background scenes" in capsys.readouterr().err


def test_data_alone_shows_what_there_is(capsys):
    assert main(["data"]) == 0
    printed = capsys.readouterr().out
    assert "softbias data check" in printed and "softbias data cache" in printed
