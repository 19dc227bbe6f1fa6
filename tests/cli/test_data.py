"""softbias data check and softbias data cache."""

import json
import shutil

from softbias.cli import main


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
    from softbias.data import load_dataset

    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path))
    load_dataset(image_folder)
    assert main(["data", "cache", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["bytes"] > 60 * 32 * 32 * 3 and about["folder"] == str(tmp_path / "pictures")
    assert main(["data", "cache", "--clear"]) == 0
    assert f"0.2 MB freed in {tmp_path / 'pictures'}" in capsys.readouterr().out
    assert main(["data", "cache"]) == 0
    assert "0.0 MB of decoded pictures" in capsys.readouterr().out


def test_data_alone_shows_what_there_is(capsys):
    assert main(["data"]) == 0
    printed = capsys.readouterr().out
    assert "softbias data check" in printed and "softbias data cache" in printed
