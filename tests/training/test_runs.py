"""Run directories, checkpoints, and what happens when something is wrong."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import softbias
from softbias.data.dataset import Dataset
from softbias.training import checkpoint
from softbias.training.fit import Result, fit
from softbias.training.loop import DivergedError
from softbias.training.preparing import class_weights, split_up
from softbias.training.recipe import Recipe
from softbias.training.run import RunSpec

TINY = {"epochs": 1, "batch_size": 16, "model_options": {"patch_size": 8}, "device": "cpu"}


def little(n: int = 60, classes: int = 3, side: int = 32, uneven: bool = False) -> Dataset:
    """Pictures whose class is their brightness."""
    generator = np.random.default_rng(0)
    labels = np.arange(n) % classes if not uneven else np.minimum(np.arange(n) // (n // 2), classes - 1)
    images = (labels[:, None, None, None] * 70 + generator.integers(0, 60, (n, side, side, 3))).astype(np.uint8)
    order = generator.permutation(n)
    splits = {"train": np.sort(order[: n * 2 // 3]), "test": np.sort(order[n * 2 // 3 :])}
    return Dataset("little", images, labels.astype(np.int64), tuple("abcdefg"[:classes]), splits)


def run(tmp_path, **options) -> Result:
    return fit(little(), "deit_nano", "quick", out=tmp_path / "run", **{**TINY, **options})


def test_a_run_leaves_all_its_files_and_a_model_that_loads(tmp_path):
    result = run(tmp_path, epochs=6)
    names = {path.name for path in result.path.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "model", "predictions.parquet", "environment.json"} <= names
    assert {"summary.json", "tensorboard"} <= names and result.summary["test"]["accuracy"] > 0.5
    model = softbias.load(result.path / "model")
    assert model.class_names == ("a", "b", "c")
    import pandas

    table = pandas.read_parquet(result.path / "predictions.parquet")
    assert len(table) == 20 and np.allclose(table[["p0", "p1", "p2"]].sum(axis=1), 1, atol=1e-5)
    assert (table["label"] == table["predicted"]).mean() == pytest.approx(result.summary["test"]["accuracy"])
    assert RunSpec.from_dict(__import__("yaml").safe_load((result.path / "config.yaml").read_text())).id == result.summary["id"]


def test_a_second_run_into_the_same_directory_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match="holds a finished run; --resume"):
        run(tmp_path)


def test_resuming_with_other_settings_shows_the_difference(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match=r"recipe\.lr was 0\.002, is 0\.5"):
        run(tmp_path, resume=True, lr=0.5)


def test_a_run_in_progress_keeps_others_out(tmp_path):
    from softbias.training.run import RunDirectory

    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    spec = RunSpec("fashion", "deit_nano", Recipe())
    first.open(spec, resume=False)
    with pytest.raises(ValueError, match="another process is training"):
        second.open(spec, resume=True)
    first.close()
    second.open(spec, resume=True)
    second.close()


def test_a_start_that_fails_leaves_nothing_to_refuse_the_next(tmp_path):
    with pytest.raises(ValueError, match="neither a file or folder nor a named set"):
        fit("no-such-set", "deit_nano", out=tmp_path / "run", device="cpu")
    run(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot be written"):
        fit(little(), "deit_nano", "quick", out=tmp_path / "file" / "run", **TINY)


def test_divergence_stops_with_step_rate_and_advice(tmp_path):
    with pytest.raises(DivergedError, match=r"step \d+ with learning rate .*--recipe\.lr"):
        run(tmp_path, lr=1e30, epochs=30, clip=0.0, schedule="constant", warmup_epochs=0.0)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_full_disk_is_a_clear_error_and_the_earlier_checkpoint_survives(tmp_path):
    code = """
import resource, sys, torch
from pathlib import Path
from softbias.training import checkpoint
folder = Path(sys.argv[1])
checkpoint.write(folder, 1, {"a": torch.arange(10.0)}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    checkpoint.write(folder, 2, {"a": torch.zeros(100_000)}, {})
except checkpoint.CheckpointError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "c"], capture_output=True, text=True, env={**os.environ})
    assert "no checkpoint could be written" in done.stdout, done.stdout + done.stderr
    tensors, meta, damaged = checkpoint.read_last(tmp_path / "c")
    assert meta["step"] == 1 and not damaged and torch.equal(tensors["a"], torch.arange(10.0))
    assert not list((tmp_path / "c").glob("*.tmp"))


def test_checkpoints_that_nobody_asked_to_keep_are_removed(tmp_path):
    for step in range(1, 9):
        checkpoint.write(tmp_path, step, {"a": torch.zeros(1)}, {})
    checkpoint.prune(tmp_path, checkpoint.Keep.parse("last,every=2"), steps_per_epoch=2)
    assert [path.name for path in checkpoint.listed(tmp_path)] == [f"step-{step:08d}" for step in (4, 7, 8)]
    with pytest.raises(ValueError, match="'lst'"):
        checkpoint.Keep.parse("lst")


def test_a_run_whose_every_checkpoint_is_damaged_says_so(tmp_path):
    (checkpoint.write(tmp_path, 3, {"a": torch.zeros(9)}, {}) / "state.safetensors").write_bytes(b"junk")
    with pytest.raises(checkpoint.CheckpointError, match="every checkpoint"):
        checkpoint.read_last(tmp_path)


def test_uneven_classes_get_weights_and_even_ones_none():
    assert class_weights(np.array([0, 0, 1, 1]), 2, Recipe()) is None
    weights = class_weights(np.array([0] * 9 + [1]), 2, Recipe())
    assert weights is not None and weights[1] / weights[0] == pytest.approx(9)
    assert class_weights(np.array([0] * 9 + [1]), 2, Recipe(class_weights="none")) is None


def test_the_test_split_takes_part_in_no_choice():
    data = little(300)
    split = split_up(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.2), fraction=50))
    assert not set(split.test) & (set(split.train) | set(split.val)) and set(split.test) == set(data.splits["test"])
    smaller = split_up(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.0), fraction=25))
    larger = split_up(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.0), fraction=50))
    assert set(smaller.train) < set(larger.train)


def test_rotation_is_learned_and_its_model_fine_tuned(tmp_path):
    pretext = fit(little(), "arvit_nano", "arvit-pretrain", out=tmp_path / "p", **{**TINY, "epochs": 1})
    assert pretext.summary["objective"] == "rotation" and pretext.summary["test"]["n"] == 80
    before = softbias.load(pretext.path / "model")
    for how in ("probe", "full"):
        tuned = fit(little(), source=pretext.path, finetune=how, out=tmp_path / how, **TINY)
        after = tuned.model.state_dict()
        same = all(torch.equal(tensor, after[name]) for name, tensor in before.state_dict().items() if "head" not in name)
        assert same == (how == "probe") and tuned.summary["test"]["n"] == 20


def test_models_of_timm_train_too(tmp_path):
    options = {"patch_size": 8, "depth": 2}
    result = fit(little(), "timm:vit_tiny_patch16_224", out=tmp_path / "run", **{**TINY, "model_options": options})
    assert json.loads((result.path / "summary.json").read_text())["test"]["n"] == 20
    assert softbias.load(result.path / "model").class_names == ("a", "b", "c")


def test_the_best_epoch_is_the_model(tmp_path):
    result = run(tmp_path, epochs=5, val_fraction=0.3, select="best")
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert result.summary["best_epoch"] == best["epoch"] and result.summary["validation_accuracy"] == best["val_accuracy"]
