"""The model of a run is the one that its summary names: of the best epoch, or the last."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from softbias.notes import Note
from softbias.pages.wording import text
from softbias.runs.run import Run
from softbias.training import checkpoint, loop

NOISY = {"epochs": 4, "val_fraction": 0.3, "select": "best", "lr": 0.05, "warmup_epochs": 0.0, "baseline": False}


@pytest.fixture
def first_is_best(monkeypatch):
    """The first epoch is the best: scores of validation fall."""
    scores = iter(range(90, 0, -1))
    monkeypatch.setattr(loop, "validate", lambda *args, **options: (next(scores) / 100, 1.0))


def weights(path):
    return load_file(path / "model" / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("keep", ["last", "last,best"])
def test_the_best_epoch_is_the_model_whatever_checkpoints_are_kept(train, first_is_best, keep):
    result = train(keep=keep, **NOISY)
    assert result.summary["selected"] == "best" and result.summary["best_epoch"] == 1
    tensors, meta = checkpoint.read(checkpoint.listed(result.run.checkpoint_folder)[-1], checkpoint.TrainingMeta)
    assert meta["best"].epoch == 1 and same(weights(result.path), checkpoint.part("best", tensors))
    assert not same(weights(result.path), checkpoint.part("ema", tensors) or checkpoint.part("model", tensors))


def test_a_run_that_is_resumed_after_its_last_step_still_has_its_best_epoch(train, first_is_best):
    whole = train(**NOISY)
    kept = weights(whole.path)
    for name in ("model", "summary.json"):
        path = whole.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = train(resume=True, keep="last", **NOISY)
    assert again.summary["selected"] == "best" and same(weights(again.path), kept)


def test_a_checkpoint_without_its_best_weights_gives_the_last_ones_and_says_so_in_the_summary(train, first_is_best):
    run = train(**NOISY).run
    run.summary_path.unlink()
    for path in checkpoint.listed(run.checkpoint_folder):
        tensors, meta = checkpoint.read(path, checkpoint.TrainingMeta)
        others = {name: tensor for name, tensor in tensors.items() if not name.startswith("best/")}
        about = {**meta, "best": vars(meta["best"])}
        checkpoint.write(run.checkpoint_folder, meta["step"], others, about)
    summary = train(resume=True, **NOISY).summary
    last = checkpoint.part("ema", others) or checkpoint.part("model", others)
    assert summary["selected"] == "last" and same(weights(run.path), last)
    assert summary["notes"][-1] == {"kind": "last-instead-of-best", "values": {"best_epoch": 1, "step": meta["step"]}}
    assert json.loads(Run(run.path).summary_path.read_text())["selected"] == "last"


def test_a_run_whose_time_was_over_before_an_epoch_has_its_last_weights_and_says_so(train, monkeypatch):
    monkeypatch.setattr(loop, "OVERTIME", 0.0)
    monkeypatch.setattr("softbias.training.plan.steps_within", lambda plan, minutes: plan.batches.total_steps)
    summary = train(minutes=0.001, **{**NOISY, "batch_size": 4}).summary
    assert summary["best_epoch"] is None and summary["selected"] == "last"
    assert [note["kind"] for note in summary["notes"][-2:]] == ["last-instead-of-best", "few-steps"]
    assert text(Note(**summary["notes"][-1])).startswith("only 1 step fitted into 0.001 minutes")


@pytest.mark.parametrize(("val_fraction", "select", "validated"), [(0.1, "last", 5), (0.4, "last", 1), (0.4, "best", 5)])
def test_on_a_cpu_a_large_validation_split_that_chooses_nothing_is_evaluated_less_often(train, val_fraction, select, validated):
    rows = train(epochs=5, val_fraction=val_fraction, select=select, baseline=False).run.metrics()
    assert len([row for row in rows if "val_accuracy" in row]) == validated and "val_accuracy" in rows[-1]
