"""Run directories, and what happens when something is wrong."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import yaml

import softbias
from softbias.environment import git_hash
from softbias.errors import SoftbiasError
from softbias.runs.fit import fit, run_fit
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.training.loop import DivergedError
from softbias.training.recipe import Recipe


def test_a_run_leaves_all_its_files_and_a_model_that_loads(train):
    result = train(epochs=6)
    names = {path.name for path in result.path.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "model", "predictions.npz", "environment.json"} <= names
    assert {"summary.json", "tensorboard"} <= names and result.summary["test"]["accuracy"] > 0.5
    model = softbias.load(result.path / "model")
    assert model.class_names == ("a", "b", "c")
    table = Run(result.path).predictions().to_frame()
    assert len(table) == 20 and np.allclose(table[["p0", "p1", "p2"]].sum(axis=1), 1, atol=1e-5)
    assert (table["label"] == table["predicted"]).mean() == pytest.approx(result.summary["test"]["accuracy"])
    assert RunSpec.from_dict(yaml.safe_load((result.path / "config.yaml").read_text())).id == result.summary["id"]


def test_a_second_run_into_the_same_directory_is_refused_and_does_not_keep_it_locked(train):
    train()
    with pytest.raises(ValueError, match="holds a finished run") as kept:  # as a notebook keeps it
        train()
    with pytest.raises(ValueError, match=r"recipe\.lr was 0\.008, is 0\.5"):
        train(resume=True, lr=0.5)
    assert kept.value.__traceback__ is not None


def test_a_run_in_progress_keeps_others_out(tmp_path):
    first, second = Run(tmp_path / "run"), Run(tmp_path / "run")
    spec = RunSpec("fashion", "deit_nano", Recipe())
    first.open(spec, resume=False)
    with pytest.raises(ValueError, match="another process is training"):
        second.open(spec, resume=True)
    first.close()
    second.open(spec, resume=True)
    second.close()


def test_a_start_that_fails_leaves_nothing_to_refuse_the_next(train, tmp_path):
    with pytest.raises(ValueError, match="no-such-set"):
        fit("no-such-set", "deit_nano", out=tmp_path / "run", device="cpu")
    train()


def test_a_folder_that_cannot_be_written_is_a_clear_error(train, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot be written"):
        train(out="file/run")


def test_divergence_stops_with_step_rate_and_advice(train, tmp_path):
    with pytest.raises(DivergedError, match=r"step \d+ with learning rate .*smaller --lr"):
        train(optimizer="sgd", lr=1000.0, epochs=30, clip=0.0, schedule="constant", warmup_epochs=0.0)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train_fraction": 0}, "more than 0 and at most 1, but is 0"),
        ({"train_fraction": 10}, "for 10 % give 0.1"),
        ({"finetune": "head"}, "no finetune 'head'; the choices are full, linear"),
    ],
)
def test_impossible_runs_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        RunSpec("fashion", "deit_nano", Recipe(), **wrong)


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("tensorbord", "no tracker 'tensorbord'; did you mean 'tensorboard'"),
        ("wandb", "wandb is not installed: pip install wandb"),
    ],
)
def test_a_tracker_that_cannot_be_had_stops_the_run_before_it_begins(little, tmp_path, tracker, message):
    if tracker == "wandb" and find_spec("wandb"):
        pytest.skip("it is installed")
    spec = RunSpec("little", "deit_nano", Recipe(epochs=1), model_options={"patch_size": 8})
    with pytest.raises(ValueError, match=message):
        run_fit(spec, tmp_path / "run", data=little(), device="cpu", trackers=("tensorboard", tracker))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_machine_without_git_finishes_its_runs(train, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert json.loads((train().path / "environment.json").read_text())["git"] is None


def test_a_package_inside_somebody_elses_checkout_has_no_commit(tmp_path):
    import subprocess

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    for folder in ("own", "installed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.py").touch()
    subprocess.run([*git, "add", "own"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert git_hash(tmp_path / "own") == head
    assert git_hash(tmp_path / "installed") is None


def test_any_seed_of_64_bits_trains(train):
    assert train(recipe="small", seed=2**63 - 1).summary["steps"] == 2


def test_images_of_one_class_have_no_baseline(train, little):
    assert train(data=little(classes=1)).summary["baseline"] is None


def test_rotation_is_learned_and_its_model_fine_tuned(train):
    pretext = train("arvit_nano", "arvit-pretrain", out="p")
    assert pretext.summary["objective"] == "rotation" and pretext.summary["test"]["n"] == 80
    before = softbias.load(pretext.path / "model")
    for how in ("linear", "full"):
        tuned = train(None, start=pretext.path, finetune=how, out=how)
        after = tuned.model.state_dict()
        same = all(torch.equal(tensor, after[name]) for name, tensor in before.state_dict().items() if "head" not in name)
        assert same == (how == "linear") and tuned.summary["test"]["n"] == 20


def test_the_best_epoch_is_the_model(train):
    result = train(epochs=5, val_fraction=0.3, select="best")
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert result.summary["best_epoch"] == best["epoch"] and result.summary["validation_accuracy"] == best["val_accuracy"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"seed": "seven"}, "seed must be a whole number"),
        ({"recipe": {"lr": "fast"}}, "recipe: lr must be a number"),
        ({"recipe": {"epohcs": 3}}, "did you mean 'epochs'"),
        ({"modle": "deit_nano"}, "did you mean 'model'"),
        ({"data_options": 3}, "data_options must be settings by name"),
    ],
)
def test_a_config_is_checked_field_by_field(tmp_path, wrong, named):
    plain = {"data": "fashion", "model": "deit_nano", "recipe": {}, **wrong}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain))
    with pytest.raises(SoftbiasError, match=named) as refused:
        _ = Run(tmp_path).spec
    assert str(tmp_path / "config.yaml") in str(refused.value)


def test_what_is_wrong_with_a_summary_or_a_metric_is_reported_with_its_file(tmp_path):
    (tmp_path / "summary.json").write_text('{"id": "a"}')
    with pytest.raises(SoftbiasError, match=r"summary\.json: \w+ is missing"):
        Run(tmp_path).summary()
    (tmp_path / "metrics.jsonl").write_text('{"event": "epoch", "epoch": 1, "step": 5}\n{"event": "epo')
    assert [row["step"] for row in Run(tmp_path).metrics()] == [5]  # a kill tears the last line
    (tmp_path / "metrics.jsonl").write_text('{"event": "epo\n{"event": "epoch", "epoch": 1, "step": 5}\n')
    with pytest.raises(SoftbiasError, match=r"metrics\.jsonl, line 1"):
        Run(tmp_path).metrics()


def test_a_file_system_without_locks_is_trained_on(tmp_path, monkeypatch):
    import errno

    def no_locks(*_args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    run = Run(tmp_path / "run")
    run.open(RunSpec("fashion", "deit_nano", Recipe()), resume=False)
    run.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"index": np.zeros((2, 2), np.int64)},
        {"label": np.array(["a", "b"])},
        {"label": np.zeros(3, np.int64)},
        {"probabilities": np.zeros(2, np.float32)},
        {"probabilities": np.zeros((2, 3), np.complex64)},
        {"files": np.array(["a"])},
        {"files": np.array([1.5, 2.5])},
    ],
)
def test_predictions_of_another_form_are_refused_by_the_name_of_the_column(tmp_path, changed):
    (name,) = changed
    columns = {"index": np.arange(2), "label": np.arange(2), "probabilities": np.zeros((2, 3), np.float32)}
    np.savez(tmp_path / "predictions.npz", **columns | changed)
    with pytest.raises(SoftbiasError, match=f"predictions.npz: {name} must be"):
        Predictions.read(tmp_path / "predictions.npz")


@pytest.mark.parametrize("out", [None, "mine/here"])
def test_a_wrong_option_of_the_model_leaves_nothing_behind(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SoftbiasError, match="depth"):
        softbias.fit("fashion", "deit_nano", model_options={"depth": "nan"}, device="cpu", epochs=1, out=out)
    assert not list(tmp_path.iterdir())
