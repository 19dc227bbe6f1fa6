"""softbias fit and pretrain, from the pictures to the run's folder."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

import softbias
from softbias.cli import TRAINING, find, main
from softbias.cli.parsing import own_options, split_recipe
from softbias.runs.run import Run
from softbias.training.loop import StoppedError

SHORT = ("--epochs", "2", "--no-baseline", "--trackers", "none", "--device", "cpu")
FASHION = ("fit", "fashion", "--fraction", "0.05", *SHORT, "--epochs", "1", "--model-option", "patch_size=8")


def fails(capsys, *arguments) -> str:
    """The one line that a mistake gives."""
    assert main([str(argument) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("softbias: ") and "Traceback" not in printed.err
    return printed.err.removeprefix("softbias: ").strip()


def config(out) -> dict:
    return yaml.safe_load((out / "config.yaml").read_text())


def test_a_folder_and_nothing_else_trains_a_model_that_has_learned(run):
    """`run` is `softbias fit FOLDER`, only shorter."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["model"] == "soft_nano" and summary["test"]["accuracy"] > 0.8
    assert config(run)["model_options"] == {"patch_size": 8} and config(run)["recipe"]["epochs"] == 10
    for name in ("report.html", "confusion.png", "predictions.npz", "environment.json", "metrics.jsonl", "split.csv"):
        assert (run / name).is_file(), name
    rows = (run / "split.csv").read_text().splitlines()
    assert len(rows) == 61 and sum(row.endswith(",test") for row in rows) == 12


def test_the_function_makes_the_same_run_as_the_command(run, image_folder, tmp_path):
    result = softbias.fit(image_folder, out=tmp_path / "run", device="cpu", epochs=10)
    assert config(result.path) == config(run) and result.run.notes == Run(run).notes
    assert {path.name for path in result.path.iterdir()} == {path.name for path in run.iterdir()}
    weights = [load_file(path / "model" / "model.safetensors") for path in (run, result.path)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    html = result._repr_html_()
    assert "Accuracy" in html and "report.html" in html and "soft_nano with patches of 8" in html


@pytest.mark.usefixtures("no_page")
def test_options_of_the_images_are_given_as_plainly_as_on_the_command_line(image_folder, tmp_path):
    short = {"device": "cpu", "steps": 1, "start": "scratch", "baseline": False, "page": False}
    plainly = softbias.fit(image_folder, out=tmp_path / "a", img_size=16, resize_mode="pad", **short)
    within = softbias.fit(image_folder, out=tmp_path / "b", data_options={"img_size": 16, "resize_mode": "pad"}, **short)
    assert config(plainly.path) == config(within.path)
    assert config(plainly.path)["data_options"] == {"img_size": 16, "resize_mode": "pad"}


@pytest.mark.usefixtures("no_page")
def test_a_run_for_choosing_scores_val_and_calls_it_so(run, image_folder, tmp_path, capsys):
    out = tmp_path / "chosen"
    assert main(["fit", str(image_folder), "--score", "val", "--out", str(out), *SHORT]) == 0
    assert "n = 6 validation pictures" in capsys.readouterr().out
    assert json.loads((out / "summary.json").read_text())["pictures"] == {"train": 42, "val": 0, "test": 6}
    assert main(["runs", "diff", str(run), str(out)]) == 0 and "score" in capsys.readouterr().out
    for words, scored in (([], "n = 6 val pictures"), (["--score", "test"], "n = 12 test pictures")):
        assert main(["evaluate", str(out), *words]) == 0 and scored in capsys.readouterr().out


def test_it_says_what_it_chose_and_why(image_folder, tmp_path, capsys):
    assert main(["fit", str(image_folder), "--out", str(tmp_path / "run"), *SHORT]) == 0
    printed = capsys.readouterr().out
    assert "soft_nano with patches of 8 (16 tokens)" in printed
    assert "recipe quick with 2 epochs" in printed and "300 epochs" in printed
    assert "start from scratch" in printed and "--weights" in printed
    assert "seed 0" in printed and "Accuracy" in printed
    start, model, recipe = Run(tmp_path / "run").notes  # as data, for every reader of the run
    assert start.kind == "start-chosen" and start.values["why"] == "offline"
    assert model.kind == "model-chosen" and model.values["model"] == "soft_nano" and model.values["patch"] == 8
    assert recipe.kind == "recipe-chosen" and recipe.values == {"recipe": "quick", "epochs": 2.0}
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())["notes"]  # for the page
    assert kept[:3] == [start.to_dict(), model.to_dict(), recipe.to_dict()] and "split-made" in [note["kind"] for note in kept]


@pytest.mark.usefixtures("no_page")
def test_fields_of_recipe_and_augmentation_can_be_changed(tmp_path):
    out = tmp_path / "run"
    changes = ["--recipe", "small", "--recipe.lr", "2e-3", "--recipe.augmentation.flip=0", "--recipe.zoom", "0.8", "1.2"]
    assert main([*FASHION, *changes, "--out", str(out), "--quiet", "--seed", "3"]) == 0
    recipe = config(out)["recipe"]
    assert recipe["lr"] == 2e-3 and recipe["augmentation"]["flip"] == 0 and recipe["augmentation"]["zoom"] == [0.8, 1.2]
    assert recipe["weight_decay"] == 0.06 and config(out)["seed"] == 3 and config(out)["model"] == "soft_nano"


@pytest.mark.usefixtures("no_page")
def test_quiet_prints_the_folder_and_json_prints_events(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*FASHION, "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert main([*FASHION, "--out", str(out), "--resume", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1]["event"] == "summary" and rows[-1]["path"] == str(out) and 0 <= rows[-1]["test"]["accuracy"] <= 1


@pytest.mark.usefixtures("no_page")
def test_a_config_is_the_base_and_options_win(run, tmp_path):
    out = tmp_path / "run"
    assert main(["fit", "--config", str(run / "config.yaml"), "--seed", "7", "--out", str(out), "--quiet", *SHORT]) == 0
    before, after = config(run), config(out)
    assert Run(run).notes and not Run(out).notes  # nothing was chosen
    assert after["seed"] == 7 and after["recipe"]["epochs"] == 2
    after["seed"], after["recipe"]["epochs"] = before["seed"], before["recipe"]["epochs"]
    before.pop("notes")
    assert after == before


def test_resuming_a_finished_run_is_quick_and_leaves_it_alone(run, capsys):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert main(["fit", "--resume", "--out", str(run)]) == 0  # its own config says the rest
    assert "is finished already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_a_run_is_refused(run, image_folder, capsys):
    message = fails(capsys, "fit", image_folder, "--out", run, *SHORT)
    assert message == f"{run} holds a finished run: choose another --out, or softbias runs delete {run}"
    message = fails(capsys, "fit", "no-such-folder", "--out", run)
    assert "holds a finished run" in message, "the folder is looked at before the pictures are"


def test_resuming_with_other_settings_shows_the_difference(run, image_folder, capsys):
    message = fails(
        capsys, "fit", image_folder, "--out", run, "--resume", "--recipe.lr", "0.5", "--seed", "2", "--device", "cpu"
    )
    assert "was started with other settings: recipe.lr was 0.008, is 0.5; seed was 0, is 2" in message


def test_a_training_asked_to_stop_says_how_to_continue(image_folder, tmp_path, monkeypatch, capsys):
    def stopped(*_args, **_options):
        raise StoppedError(123, signal.SIGTERM)

    monkeypatch.setattr("softbias.runs.fit.train", stopped)
    monkeypatch.chdir(tmp_path)
    assert main(["fit", str(image_folder), *SHORT]) == 128 + signal.SIGTERM
    printed = capsys.readouterr().err
    assert printed.startswith(f"softbias: stopped at step 123; continue with: softbias fit {image_folder} --epochs 2")
    assert printed.strip().endswith("--resume") and " --out runs/pictures-soft_nano-" in printed


@pytest.mark.slow
def test_a_real_signal_stops_it_and_the_command_it_prints_continues(tmp_path, capsys, no_page):
    """As a user sees it: a process, a signal, an exit status, a line to paste."""
    out = tmp_path / "a run"
    arguments = ["fit", "fashion", "--fraction", "0.1", "--recipe.epochs", "12", "--out", str(out), "--trackers", "none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "softbias", *arguments, "--device", "cpu", "--no-baseline"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 90
    while not (out / "metrics.jsonl").is_file() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 143, printed
    assert list(out.glob("checkpoints/step-*")) and not (out / "summary.json").exists()
    assert "softbias: stopped at step " in printed and f"--out '{out}'" in printed
    program, *again = shlex.split(printed.strip().partition("continue with: ")[2])
    assert program == "softbias" and again[-1] == "--resume"
    assert main(again) == 0
    assert "continuing at step " in capsys.readouterr().out and json.loads((out / "summary.json").read_text())["epochs"] == 12


def test_pretrain_learns_rotations_and_fit_starts_from_it(image_folder, tmp_path, no_page):
    first, second = tmp_path / "pretrained", tmp_path / "tuned"
    assert main(["pretrain", str(image_folder), "--rotations", "one", "--out", str(first), "--quiet", *SHORT]) == 0
    assert config(first)["model"] == "arvit_nano"
    assert config(first)["recipe"]["objective"] == "rotation" and config(first)["recipe"]["rotations"] == "one"
    arguments = ["fit", str(image_folder), "--start", str(first), "--finetune", "linear", "--out", str(second)]
    assert main([*arguments, "--quiet", *SHORT]) == 0
    spec, summary = config(second), json.loads((second / "summary.json").read_text())
    assert spec["start"]["path"] == str(first) and spec["finetune"] == "linear" and spec["model"] == "arvit_nano"
    assert summary["objective"] == "supervised" and len(summary["test"]["classes"]) == 3


@pytest.mark.usefixtures("no_page")
def test_broken_files_are_refused_by_name_and_can_be_left_out(image_folder, tmp_path, capsys):
    """The path has a space and is not ASCII."""
    root = tmp_path / "meine Bilder äöü 图"
    shutil.copytree(image_folder, root)
    (root / "red" / "kaputt.png").write_bytes(b"no picture")
    (root / "red" / "leer.png").write_bytes(b"")
    out = tmp_path / "läuft gut"
    message = fails(capsys, "fit", root, "--out", out, *SHORT)
    for part in ("2 of 62 pictures cannot be read", "kaputt.png", "leer.png", "--skip-broken"):
        assert part in message
    assert not out.exists()
    assert main(["fit", str(root), "--out", str(out), "--skip-broken", *SHORT]) == 0
    assert "2 of 62 pictures cannot be read" in capsys.readouterr().out
    assert config(out)["data"] == str(root) and config(out)["data_options"]["skip_broken"] is True


def test_settings_that_cannot_be_trained_do_not_occupy_the_folder(image_folder, tmp_path, capsys, no_page):
    out = tmp_path / "run"
    message = fails(capsys, "fit", image_folder, "--model", "convit_nano", "--model-option", "strenght=2", "--out", out, *SHORT)
    assert "did you mean 'strength'?" in message
    assert main(["fit", str(image_folder), "--model-option", "biased_blocks=1", "--out", str(out), "--quiet", *SHORT]) == 0


def test_fields_of_the_recipe_have_short_and_long_names(image_folder, tmp_path):
    asked = {
        "short": ["--batch-size", "8", "--flip=0", "--zoom", "0.9", "1.1"],
        "long": ["--recipe.batch-size=8", "--recipe.augmentation.flip", "0", "--recipe.zoom", "0.9", "1.1"],
    }
    for name, words in asked.items():
        assert main(["fit", str(image_folder), "--out", str(tmp_path / name), "--quiet", *SHORT, *words]) == 0
    short, long = (Run(tmp_path / name).spec.recipe for name in asked)
    assert short == long and (short.batch_size, short.augmentation.flip, short.augmentation.zoom) == (8, 0.0, (0.9, 1.1))


@pytest.mark.parametrize("command", TRAINING)
def test_options_of_a_command_go_before_fields_of_the_recipe(command):
    own = own_options(find(command))
    for name in own:
        assert split_recipe([f"--{name.replace('_', '-')}", "x"], own) == ([f"--{name.replace('_', '-')}", "x"], [])
    assert split_recipe(["--lr", "1"], own) == ([], ["--lr", "1"])


@pytest.mark.parametrize("words", [["--zoom", "--"], ["--zoom", "0.9", "--json"], ["--crop-padding", "--json"]])
def test_a_field_without_all_its_values_is_refused_and_takes_no_other_option(words, image_folder, capsys):
    assert main(["fit", str(image_folder), *words]) == 2
    assert capsys.readouterr().err.startswith("softbias: ")


MISTAKES = {
    ("fit",): "which pictures? softbias fit DATA",
    ("fit", "no-such-folder"): "there is no file or folder 'no-such-folder' in ",
    ("fit", "no-such-folder", "--model", "convit_nan"): "did you mean 'convit_nano'?",  # before pictures are looked for
    ("fit", "no-such-folder", "--epochs", "many"): "--epochs cannot be 'many': it takes a number",
    ("fit", "fashoin"): "did you mean 'fashion'?",
    ("fit", "fashion", "--recipe", "smal"): "there is no recipe 'smal'; did you mean 'small'?",
    ("fit", "fashion", "--recipe.wieght-decay", "1"): "did you mean --weight-decay?",
    ("fit", "fashion", "--recipe.lr", "fast"): "--lr cannot be 'fast': it takes a number",
    ("fit", "fashion", "--epoch", "3"): "Unrecognized options: --epoch, 3; perhaps you meant --epochs;",
    ("fit", "fashion", "--learning-rate=1"): "perhaps you meant --lr;",
    ("fit", "fashion", "--opt", "sgd"): "perhaps you meant --optimizer;",
    ("fit", "fashion", "cifar10"): "'cifar10' is one argument too many",
    ("fit", "fashion", "--recipe.epochs", "-1"): "epochs must be a number of more than 0",
    ("fit", "fashion", "--recipe.betas", "0.9"): "Expected 2 values",
    ("fit", "fashion", "--seed", "x"): "--seed cannot be 'x': it takes a whole number",
    ("fit", "fashion", "--modle", "x"): "perhaps you meant --model",
    ("fit", "fashion", "--resize-mode", "squeeze"): "--resize-mode cannot be 'squeeze': it takes crop, pad or stretch",
    ("fit", "fashion", "--model", "convit_nan", "--recipe", "quick", "--device", "cpu"): "did you mean 'convit_nano'?",
    ("fit", "fashion", "--model-option", "patch"): "--model-option takes NAME=VALUE",
    ("fit", "fashion", "--model", "convit_nano", "--start", "pretrained"): "no pretrained weights are known for convit_nano",
    (
        "fit",
        "fashion",
        "--start",
        "scratch",
        "--finetune",
        "linear",
    ): "--finetune linear needs a model that has learned something",
    ("fit", "fashion", "--start", "nowhere"): "nowhere is neither a finished run nor a saved model",
    ("fit", "fashion", "--keep", "first", "--device", "cpu"): "keep takes last, best and every=K",
    ("fit", "fashion", "--config", "nowhere.yaml"): "the config nowhere.yaml cannot be read",
    ("fit", "fashion", "--skip-broken"): "skip_broken is for your own pictures",
    ("fti", "fashion"): "there is no command 'fti'; did you mean 'fit'?",
    ("train", "fashion"): "there is no command 'train'; what it does elsewhere is softbias fit here",
    ("data", "chekc", "x"): "did you mean 'data check'?",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_clear_line(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = fails(capsys, *arguments)
    assert MISTAKES[arguments] in message and "\n" not in message
    assert not list(tmp_path.glob("runs/*/config.yaml"))


def test_a_folder_whose_name_was_cut_short_or_misspelled_is_suggested(tmp_path, capsys, monkeypatch):
    (tmp_path / "my photos (2024)").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("my photos", "my fotos (2024)"):
        message = fails(capsys, "fit", name)
        wanted = f"there is no file or folder {name!r} in {tmp_path}; did you mean 'my photos (2024)'? Sets by"
        assert message.startswith(wanted)


def test_images_that_cannot_make_a_classifier(image_folder, tmp_path, capsys):
    one, empty = tmp_path / "one", tmp_path / "empty"
    shutil.copytree(image_folder / "red", one / "red")
    assert "at least two classes, but there is only one: 'red'" in fails(capsys, "fit", one, *SHORT)
    shutil.copytree(image_folder, empty)
    (empty / "yellow").mkdir()
    assert "yellow has no pictures, it is empty" in fails(capsys, "fit", empty, *SHORT)


def test_a_config_of_a_newer_version_says_to_upgrade(run, tmp_path, capsys):
    newer = {**config(run), "format": 99, "softbias": "9.0", "surprise": True}
    (tmp_path / "newer.yaml").write_text(yaml.safe_dump(newer))
    message = fails(capsys, "fit", "--config", tmp_path / "newer.yaml", "--out", tmp_path / "run")
    assert "written by softbias 9.0 in format 99" in message and message.endswith("upgrade softbias")


def test_a_device_that_is_not_there_is_refused(capsys):
    import torch

    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    assert f"--device {missing}: there is no such device here" in fails(capsys, "fit", "fashion", "--device", missing)


def test_pretraining_refuses_an_objective_that_it_does_not_know(image_folder, tmp_path, capsys):
    assert main(["pretrain", str(image_folder), "--objective", "rotaton", "--out", str(tmp_path / "run")]) == 2
    assert "'rotation'" in capsys.readouterr().err and not (tmp_path / "run").exists()
