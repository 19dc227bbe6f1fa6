"""Commands on a finished run: predict, evaluate, export."""

import csv
import json
import shutil

import numpy as np
import pytest

from softbias.cli import main
from softbias.notes import Note
from softbias.pages.wording import text


@pytest.fixture
def mixed(image_folder, tmp_path):
    """Three good pictures in a folder with a space, and one bad one."""
    folder = tmp_path / "neue Bilder"
    folder.mkdir()
    for name in ("blue", "green", "red"):
        shutil.copy(image_folder / name / f"{name} 3.png", folder / f"{name}.png")
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("not a picture, and not meant to be one")
    return folder


def test_predict_prints_a_line_per_picture(run, mixed, capsys):
    assert main(["predict", str(run), str(mixed / "red.png"), str(mixed / "blue.png"), "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    lines = [line.split("\t") for line in printed.out.splitlines()]
    assert [line[:2] for line in lines] == [[str(mixed / "red.png"), "red"], [str(mixed / "blue.png"), "blue"]]
    assert "2 pictures classified" in printed.err


def test_predict_writes_csv_and_names_what_it_cannot_read(run, mixed, tmp_path, capsys):
    out = tmp_path / "deep" / "predictions.csv"
    assert main(["predict", str(run), str(mixed), "missing.png", "--out", str(out), "--batch", "2"]) == 1
    printed = capsys.readouterr().err
    assert "broken.jpg: is not a picture" in printed and "missing.png: does not exist" in printed
    assert "3 pictures classified" in printed and "2 could not be read" in printed
    with out.open() as stream:
        rows = {row["file"].split("/")[-1]: row for row in csv.DictReader(stream)}
    assert set(rows) == {"blue.png", "green.png", "red.png", "broken.jpg", "missing.png"}
    assert rows["green.png"]["label"] == "green" and rows["broken.jpg"]["label"] == ""
    assert sum(float(rows["red.png"][f"p:{name}"]) for name in ("blue", "green", "red")) == pytest.approx(1, abs=1e-4)


def test_predict_writes_json_and_flags_low_confidence(run, mixed, tmp_path):
    out = tmp_path / "predictions.json"
    assert main(["predict", str(run / "model"), str(mixed / "red.png"), "--out", str(out), "--threshold", "1"]) == 0
    (row,) = json.loads(out.read_text())
    assert row["label"] == "red" and row["low_confidence"] is True
    assert list(row["probabilities"]) == ["blue", "green", "red"] and row["confidence"] == row["probabilities"]["red"]


def test_evaluate_gives_the_scores_of_the_summary(run, capsys):
    assert main(["evaluate", str(run), "--json", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    known = json.loads((run / "summary.json").read_text())["test"]
    assert scores["split"] == "test" and scores["accuracy"] == known["accuracy"] and scores["n"] == known["n"]
    assert scores["log_loss"] == pytest.approx(known["log_loss"], abs=1e-6)


def test_answers_are_averaged_over_mirror_images(run, mixed, capsys):
    assert main(["evaluate", str(run), "--json", "--mirror", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    known = json.loads((run / "summary.json").read_text())["test"]
    assert scores["n"] == known["n"] and scores["log_loss"] != known["log_loss"]
    assert {"kind": "mirrored", "values": {"learned": True}} in scores["notes"]
    assert main(["predict", str(run), str(mixed / "red.png"), "--mirror", "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert "red.png\tred" in printed.out and "mean of every picture and its mirror image" in printed.err
    assert "may harm" not in printed.err and "may harm" in text(Note("mirrored", {"learned": False}))


def test_evaluate_shows_scores_on_other_images_by_the_names_of_their_classes(run, image_folder, tmp_path, capsys):
    """Two of three classes, in a folder of their own: labels follow the names, not the numbers."""
    for name in ("green", "red"):
        shutil.copytree(image_folder / name, tmp_path / "others" / name)
    assert main(["evaluate", str(run), "--data", str(tmp_path / "others")]) == 0
    printed = capsys.readouterr().out
    assert "others, all" in printed and "n = 40 pictures" in printed and "Accuracy" in printed
    assert "of these 40 pictures" not in printed and "seed" not in printed
    (tmp_path / "others" / "green").rename(tmp_path / "others" / "grün")
    assert main(["evaluate", str(run), "--data", str(tmp_path / "others")]) == 2
    assert "classes that the model does not know: grün; it knows blue, green, red" in capsys.readouterr().err


def test_evaluate_says_how_many_of_the_images_were_learned_from(run, image_folder, capsys):
    assert main(["evaluate", str(run), "--data", str(image_folder)]) == 0
    printed = capsys.readouterr().out
    assert "42 of these 60 pictures" in printed and "test pictures" not in printed
    assert main(["evaluate", str(run), "--data", str(image_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learned_from"] == 42
    assert main(["evaluate", str(run)]) == 0
    assert "n = 12 test pictures" in capsys.readouterr().out


def test_evaluate_elsewhere_says_where_the_images_are_missing(run, tmp_path, capsys, monkeypatch):
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    (moved / "SHA256SUMS").unlink()  # config.yaml is changed on purpose
    (moved / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace(f"data: {config_data(run)}", "data: my photos")
    )
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(moved)]) == 2
    assert f"the run's pictures, 'my photos', are not in {tmp_path}: go to the folder" in capsys.readouterr().err


def config_data(run) -> str:
    return json.loads((run / "summary.json").read_text())["data"]


def test_evaluate_of_a_pretext_run_turns_the_images(image_folder, tmp_path, capsys, no_page):
    out = tmp_path / "run"
    short = ["--recipe.epochs", "1", "--trackers", "none", "--device", "cpu", "--quiet"]
    assert main(["pretrain", str(image_folder), "--out", str(out), *short]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), "--json", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    known = json.loads((out / "summary.json").read_text())["test"]
    assert scores["n"] == known["n"] == 48 and scores["accuracy"] == pytest.approx(known["accuracy"])
    assert scores["log_loss"] == pytest.approx(known["log_loss"], abs=1e-5)
    assert main(["evaluate", str(out), "--mirror"]) == 2 and "mirror is for classes" in capsys.readouterr().err


def test_export_writes_onnx_that_agrees_with_the_model(run, image_folder, tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from softbias.data.decode import decode
    from softbias.runs.opening import open_classifier

    out = tmp_path / "model.onnx"
    assert main(["export", str(run), str(out)]) == 0
    assert "images (batch, 3, 32, 32)" in capsys.readouterr().out
    classifier = open_classifier(run)
    image = decode(image_folder / "red" / "red 1.png", classifier.img_size, classifier.resize_mode)
    inputs = (image.transpose(2, 0, 1)[None] / 255 - np.reshape(classifier.mean, (3, 1, 1))) / np.reshape(
        classifier.std, (3, 1, 1)
    )
    (logits,) = runtime.InferenceSession(str(out)).run(None, {"images": inputs.astype(np.float32)})
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert probabilities == pytest.approx(classifier.probabilities(image[None])[0], abs=1e-4)


MISTAKES = {
    ("predict", "nowhere", "x.png"): "nowhere does not exist",
    ("predict", "RUN"): "which pictures?",
    ("predict", "RUN", "EMPTY"): "there are no pictures in ",
    ("predict", "RUN", "x.png", "--out", "x.xlsx"): "--out takes a file named *.csv or *.json",
    ("predict", "RUN", "x.png", "--threshold", "2"): "--threshold must be a number from 0 to 1",
    ("predict", "EMPTY", "x.png"): "there is no model in ",
    ("evaluate", "EMPTY"): "is not a run that knows its pictures; name some with --data",
    ("evaluate", "RUN", "--split", "dev"): "--split cannot be 'dev': it takes all, test, train or val",
    ("evaluate", "RUN", "PICTURES"): "perhaps you meant --data, for other pictures than the run's own",
    ("predict", "RUN", "x.png", "--batch", "many"): "--batch cannot be 'many': it takes a whole number",
    ("predict", "RUN", "RUN/report.html", "--out", "/proc/nowhere/p.csv"): "softbias: /proc/nowhere: No such file or directory",
    ("predict", "RUNS", "x.png"): "it holds runs; give one of them: ",
    ("export", "RUN", "a.onnx", "--out", "b.onnx"): "which file? a.onnx or --out b.onnx",
    ("export", "RUN", "model.pt"): "an ONNX file is named *.onnx",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_clear_line(arguments, run, tmp_path, capsys):
    paths = {"RUN": str(run), "RUNS": str(run.parent), "EMPTY": str(tmp_path)}
    assert main([paths.get(argument, argument) for argument in arguments]) == 2
    printed = capsys.readouterr().err
    assert MISTAKES[arguments] in printed and printed.count("\n") == 1


def test_the_functions_of_the_library_do_what_the_commands_do(run, image_folder, capsys):
    import softbias

    rows = softbias.predict(run, image_folder / "red", device="cpu")
    assert main(["predict", str(run), str(image_folder / "red"), "--device", "cpu"]) == 0
    printed = [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()]
    assert printed == [[row.file, row.label] for row in rows] and len(rows) == 20
    found = softbias.evaluate(run, device="cpu")
    assert main(["evaluate", str(run), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert found.scores["accuracy"] == json.loads((run / "summary.json").read_text())["test"]["accuracy"]
    assert "95 % interval" in found._repr_html_().replace("\xa0", " ")
    assert softbias.evaluate(run, image_folder, device="cpu").learned_from == 42


def test_the_page_of_a_run_is_drawn_again_when_asked(run, capsys):
    before = (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text() == before and "opens offline" in capsys.readouterr().out


def test_a_bug_shows_its_traceback_and_a_mistake_does_not(monkeypatch, capsys):
    def broken(*_args, **_options):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr("softbias.cli.models.models", broken)
    with pytest.raises(ValueError, match="operands"):
        main(["models"])
