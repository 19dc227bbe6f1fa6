"""Whatever a finished run loses is made again by --resume, as it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from softbias.checksums import DamagedError
from softbias.errors import SoftbiasError
from softbias.files import temporary_name
from softbias.runs import fit as fit_module
from softbias.runs import outcome
from softbias.runs.artifacts import find_lost
from softbias.runs.fit import fit
from softbias.runs.opening import open_classifier
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.training.display import Display

from ..training.conftest import little_set

MODEL = ("model/model.safetensors", "model/config.json", "model/SHA256SUMS", "model/README.md")
RESULTS = ("predictions.npz", "environment.json", "summary.json", "SHA256SUMS")
PAGE = ("report.html", "confusion.png")


class Messages(Display):
    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


def start(out, **options):
    usual = {"epochs": 1, "batch_size": 16, "device": "cpu", "trackers": (), "model_options": {"patch_size": 8}}
    return fit(little_set(), "deit_nano", "quick", out=out, **{**usual, **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return start(tmp_path_factory.mktemp("whole") / "run").path


def contents(run: Path) -> dict:
    """What must be the same bits, and the summary."""
    predictions = Run(run).predictions()
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    weights = {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model" / "model.safetensors").items()}
    return {
        "weights": weights,
        "predictions": (predictions.probabilities.tobytes(), predictions.index.tobytes()),
        "summary": Run(run).summary(),
        "config": (run / "model" / "config.json").read_text(),
        "files": sorted(map(str, files)),
    }


@pytest.mark.parametrize("name", [*MODEL, *RESULTS, *PAGE])
def test_what_is_gone_or_cut_off_is_made_again(whole, tmp_path, name):
    run, display = shutil.copytree(whole, tmp_path / "run"), Messages()
    path = run / name
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.unlink() if name in ("model/README.md", "SHA256SUMS", "environment.json") else path.write_bytes(half)
    result = start(run, resume=True, display=display)
    timed = {"total_seconds", "peak_memory"} if name in ("summary.json", "SHA256SUMS") else set()
    found, before = contents(run), contents(whole)
    for each in timed:
        found["summary"].pop(each), before["summary"].pop(each)
    assert found == before and result.summary["test"] == before["summary"]["test"]
    assert find_lost(Run(run), page=True) == ()
    printed = " ".join(display.lines)
    assert name.split("/")[0] in printed and "finished already" not in printed


@pytest.mark.parametrize("name", ["model/model.safetensors", "model/config.json", "summary.json", "predictions.npz"])
def test_one_flipped_bit_is_found_and_never_read(whole, tmp_path, name):
    run = shutil.copytree(whole, tmp_path / "run")
    content = bytearray((run / name).read_bytes())
    at = content.index(b'"accuracy": 0.') + 14 if name == "summary.json" else len(content) * 2 // 3
    content[at] ^= 1
    (run / name).write_bytes(content)
    assert find_lost(Run(run), page=True) == (name.split("/")[0],)
    if name.startswith("model"):
        with pytest.raises(DamagedError, match="--resume"):
            open_classifier(run)
    else:
        with pytest.raises(SoftbiasError):
            Run(run).summary() if name == "summary.json" else Run(run).predictions()


def test_a_finished_run_without_its_model_does_not_become_its_last_checkpoint(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "model")
    with pytest.raises(DamagedError, match="--resume"):
        open_classifier(run)


def test_a_model_without_a_checkpoint_is_trained_again(whole, tmp_path):
    run, display = shutil.copytree(whole, tmp_path / "run"), Messages()
    shutil.rmtree(run / "checkpoints")
    (run / "model" / "model.safetensors").unlink()
    start(run, resume=True, display=display)
    assert contents(run)["weights"] == contents(whole)["weights"] and "model" in " ".join(display.lines)


def test_lost_metrics_are_noted_in_the_summary(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "metrics.jsonl").write_text("")
    assert "metrics-lost" in [note["kind"] for note in start(run, resume=True).summary["notes"]]
    assert find_lost(Run(run), page=True) == ()


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (outcome, "describe_machine"),
        (outcome, "save"),
        (outcome, "write_results_checksums"),
        (fit_module, "write_page"),
        (fit_module, "finish"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_run_killed_between_two_of_its_files_ends_as_if_it_had_not_been(whole, tmp_path, monkeypatch, module, function):
    def kill(*args, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, function, kill)
        with pytest.raises(Killed):
            start(tmp_path / "run")
    start(tmp_path / "run", resume=True)
    found, before = contents(tmp_path / "run"), contents(whole)
    for each in ("total_seconds", "peak_memory", "seconds", "images_per_second"):
        found["summary"].pop(each), before["summary"].pop(each)
    assert found == before and find_lost(Run(tmp_path / "run"), page=True) == ()


def test_temporary_files_of_a_killed_process_go_on_resume_and_others_stay(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for folder in (run, run / "model", run / "checkpoints"):
        name = temporary_name(folder / "x.npz").name.replace(f".{os.getpid()}-", f".{process.pid}-")
        (folder / name).write_text("half")
        (folder / "my notes.tmp").write_text("the user's")
    start(run, resume=True)
    left = {path.name for path in run.rglob("*") if "tmp" in path.name}
    assert left == {"my notes.tmp"}


def test_checkpoints_whose_settings_are_lost_are_not_continued_by_another_run(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "config.yaml").unlink()
    (run / "summary.json").unlink()
    with pytest.raises(SoftbiasError, match=r"config\.yaml"):
        start(run, resume=True, lr=0.1)


def test_settings_that_are_changed_after_the_end_are_refused_by_all_who_read_the_run(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    short = "".join(line for line in text.splitlines(keepends=True) if "seed" not in line)
    (run / "config.yaml").write_text(short)
    RunSpec.from_dict(yaml.safe_load(short), "still valid")
    for read in (lambda: Run(run).spec, lambda: start(run, resume=True), lambda: start(tmp_path / "new", config=run)):
        with pytest.raises(DamagedError, match=r"config\.yaml"):
            read()
    (run / "SHA256SUMS").unlink()
    assert Run(run).spec.model == "deit_nano"


def test_a_damaged_model_is_found_even_if_the_checksums_of_the_run_are_gone(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "SHA256SUMS").unlink()
    (run / "model" / "config.json").write_text("")
    assert find_lost(Run(run), page=False) == ("SHA256SUMS", "model")
    start(run, resume=True)
    assert contents(run)["weights"] == contents(whole)["weights"] and find_lost(Run(run), page=True) == ()


def test_maps_of_regularized_layers_are_made_again(tmp_path):
    options = {"regularize": ["distance:layer=1,weight=0.01"], "page": False}
    run = start(tmp_path / "run", **options).path
    before = {name: dict(np.load(run / name)) for name in ("attention-before.npz", "attention-after.npz")}
    for name in before:
        (run / name).write_bytes((run / name).read_bytes()[:200])
    assert find_lost(Run(run), page=False) == tuple(before)
    start(run, resume=True, **options)
    for name, arrays in before.items():
        assert all(np.array_equal(array, np.load(run / name)[key]) for key, array in arrays.items())


CODE = """
import sys
from softbias.runs.fit import fit
fit("fashion", "deit_nano", "quick", out=sys.argv[1], resume=True, train_fraction=0.04, epochs=1, device="cpu", trackers=(),
    model_options={"patch_size": 8})
"""


def start_process(out: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CODE, str(out)], env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("never") / "run"
    assert start_process(out).wait(timeout=300) == 0
    return contents(out)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["checkpoints", "predictions.npz", "model/config.json", "summary.json"])
def test_a_process_killed_as_soon_as_a_file_appears_loses_nothing(never_killed, tmp_path, file):
    out = tmp_path / "run"
    process = start_process(out)
    while not (out / file).exists() and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert start_process(out).wait(timeout=300) == 0
    found = contents(out)
    assert all(found[name] == never_killed[name] for name in ("weights", "predictions", "files", "config"))
    assert found["summary"]["test"] == never_killed["summary"]["test"] and find_lost(Run(out), page=True) == ()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("environment.json", lambda run: run.environment()),
        ("metrics.jsonl", lambda run: run.metrics()),
        ("predictions.npz", lambda run: run.predictions()),
        ("summary.json", lambda run: run.summary()),
    ],
)
def test_a_changed_number_in_a_finished_run_is_noticed_by_whoever_reads_it(whole, tmp_path, name, read):
    run = Run(shutil.copytree(whole, tmp_path / "run"))
    assert read(run)
    content = (run.path / name).read_bytes()
    index = next(index for index, byte in enumerate(content) if chr(byte).isdigit())
    (run.path / name).write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
    with pytest.raises(DamagedError, match=name):
        read(run)
