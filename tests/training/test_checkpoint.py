"""Checkpoints that survive a full disk and damage, and the lines of metrics that belong to them."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from softbias.files import NotAFileError
from softbias.training import checkpoint
from softbias.training.loop import cut_back


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
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-00000001"]


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


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00 not text", b"[1, 2]", b"null", b'{"step": 2}'], ids=repr)
def test_whatever_stands_where_its_description_should_a_checkpoint_is_passed_over(tmp_path, content):
    for step in (1, 2):
        written = checkpoint.write(tmp_path, step, {"a": torch.full((3,), float(step))}, {})
    (written / "meta.json").write_bytes(content)
    tensors, meta, damaged = checkpoint.read_last(tmp_path)
    assert meta["step"] == 1 and tensors["a"].tolist() == [1, 1, 1] and damaged == ["step-00000002"]


def test_another_step_in_the_description_of_a_checkpoint_is_damage(tmp_path):
    for step in (1, 2):
        written = checkpoint.write(tmp_path, step, {"a": torch.full((3,), float(step))}, {})
    (written / "meta.json").write_text((written / "meta.json").read_text().replace("2", "7"))
    _, meta, damaged = checkpoint.read_last(tmp_path)
    assert meta["step"] == 1 and damaged == ["step-00000002"]


@pytest.mark.parametrize("name", ["state.safetensors", "meta.json", "SHA256SUMS"])
def test_a_checkpoint_that_lacks_a_file_is_passed_over(tmp_path, name):
    for step in (1, 2):
        written = checkpoint.write(tmp_path, step, {"a": torch.full((3,), float(step))}, {})
    (written / name).unlink()
    _, meta, damaged = checkpoint.read_last(tmp_path)
    assert meta["step"] == 1 and damaged == ["step-00000002"]


@pytest.mark.parametrize("name", ["state.safetensors", "meta.json", "SHA256SUMS"])
def test_nobody_waits_for_a_pipe_that_stands_where_a_file_should(tmp_path, name):
    for step in (1, 2):
        written = checkpoint.write(tmp_path, step, {"a": torch.full((3,), float(step))}, {})
    (written / name).unlink()
    os.mkfifo(written / name)
    code = "import sys; from pathlib import Path; from softbias.training import checkpoint\n"
    code += "print(checkpoint.read_last(Path(sys.argv[1]))[2])\n"
    code += "try: checkpoint.read_some(Path(sys.argv[1]) / 'step-00000002', ['a'])\n"
    code += "except checkpoint.CheckpointError: print('refused')"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60, check=True)
    assert "['step-00000002']" in done.stdout and "refused" in done.stdout


def test_a_flipped_bit_is_found_by_a_reader_of_some_tensors(tmp_path):
    written = checkpoint.write(tmp_path, 1, {"a": torch.zeros(3), "b": torch.zeros(3)}, {})
    assert checkpoint.read_some(written, ["a"])["a"].tolist() == [0, 0, 0]
    state = written / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-2] + b"\x80\x3f")
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.read_some(written, ["a", "b"])


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("model/weight"),
        lambda tensors: tensors.pop("sums"),
        lambda tensors: tensors.update({"model/weight": torch.zeros(7)}),
        lambda tensors: tensors.update({"model/more": torch.zeros(7)}),
        lambda tensors: tensors.update({"optimizer/x.exp_avg": torch.zeros(7)}),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path, change):
    state = checkpoint.State(model := nn.Linear(2, 2), torch.optim.AdamW(model.parameters()), None, torch.zeros(3), 10, step=4)
    state.save(tmp_path)
    tensors, meta = checkpoint.read(tmp_path / "step-00000004", checkpoint.TrainingMeta)
    change(tensors)
    checkpoint.write(tmp_path, 4, tensors, meta)
    with pytest.raises(checkpoint.CheckpointError, match="step 4") as refused:
        state.restore(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("end", [b'{"step": 3, "lo', b"\xff\x00\xfe", b"7\n"], ids=repr)
def test_metrics_end_where_the_checkpoint_is_or_a_line_is_broken(tmp_path, end):
    metrics = tmp_path / "metrics.jsonl"
    for step, kept in ((2, 2), (1, 1), (9, 2)):
        metrics.write_bytes(b'{"step": 1}\n{"step": 2}\n' + end)
        cut_back(metrics, step)
        assert metrics.read_text() == "".join(f'{{"step": {number}}}\n' for number in range(1, kept + 1))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_metrics_that_are_no_file_are_refused_before_the_first_step(tmp_path, make):
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(NotAFileError, match="metrics"):
        cut_back(tmp_path / "metrics.jsonl", 0)
