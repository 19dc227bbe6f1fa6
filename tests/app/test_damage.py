"""Every file of a run damaged in several ways, before and after the page opened it: a message and a status, never a 500."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from softbias.app.state import AppState
from softbias.checksums import CHECKSUMS, write_checksums
from softbias.errors import SoftbiasError

from .test_state import client

PATHS = [
    "/", "/api/state", "/api/picture/d0", "/api/picture/d0?model=0", "/api/training?model=0", "/api/charts",
    "/api/charts?model=0", "/api/charts?model=0&checkpoint=1", "/report/0", "/api/explanation?model=0&picture=d0",
    "/api/explanation?model=0&picture=d0&checkpoint=1", "/api/maps?model=0&picture=d0&query=3",
    "/api/maps?model=0&picture=d0&query=3&checkpoint=1",
]  # fmt: skip


def rewritten(file: Path, change) -> None:
    """Other tensors in a file, with checksums that fit them: what no checksum can find."""
    tensors = load_file(file)
    save_file(change(tensors), file)
    listed = [line.split()[1] for line in (file.parent / CHECKSUMS).read_text().splitlines()]
    write_checksums(file.parent, listed)


def not_finite(file: Path) -> None:
    rewritten(file, lambda all: {name: one * float("nan") if one.is_floating_point() else one for name, one in all.items()})


def misshapen(file: Path) -> None:
    rewritten(file, lambda all: {name: torch.zeros(3, 5, 7) if "gate" in name else one for name, one in all.items()})


def fewer(file: Path) -> None:
    rewritten(file, lambda all: {name: one for name, one in all.items() if "gate" not in name})


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def missing(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def junk(file: Path) -> None:
    file.write_bytes(b"\xff\x82\xc2 junk {" * 99)


def other(file: Path) -> None:
    """Whole, but something else."""
    file.write_text('{"a": [1, 2]}\n{"event": "epoch", "epoch": "x", "loss": []}\n')


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


COMMON = (truncated, flipped, missing, empty, junk, other, a_folder)
WEIGHTS = (not_finite, misshapen, fewer)
STATE = "checkpoints/step-00000001/state.safetensors"
QUICK = [("model/model.safetensors", truncated), ("metrics.jsonl", junk), ("report.html", missing)]
QUICK += [("metrics.jsonl", truncated), ("summary.json", other), ("config.yaml", other)]


def answers(state: AppState) -> dict[str, int]:
    """The status of every request; what is no success has a message."""
    found, asked = {}, client(state)
    for path in PATHS:
        answer = asked.get(path)
        found[path] = answer.status_code
        assert answer.status_code in (200, 404, 409), (path, answer.text)
        assert answer.status_code == 200 or answer.json()["error"]
        if answer.headers["content-type"] == "application/json":
            json.loads(answer.text, parse_constant=pytest.fail)  # NaN is not JSON
    return found


def damaged_copy(run, folder, name, damage, monkeypatch):
    """A copy of a run that is damaged before the page opens it, and one that is damaged while the page is open."""
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    shutil.copytree(run, folder / "before")
    shutil.copytree(run, folder / "after")
    loaded = AppState([folder / "after"])
    for copy in ("before", "after"):
        damage(folder / copy / name)
    try:
        begun = AppState([folder / "before"])
    except (SoftbiasError, OSError):
        begun = AppState([folder / "before", "ibit_nano"])  # beside another model it is a note
        assert begun.names == ["ibit_nano"] and [note.kind for note in begun.notes] == ["model-not-opened"]
    return begun, loaded


@pytest.mark.parametrize(("name", "damage"), QUICK)
def test_a_damaged_file_is_a_message_and_a_status(run, tmp_path, monkeypatch, name, damage):
    for state in damaged_copy(run, tmp_path, name, damage, monkeypatch):
        answers(state)


@pytest.mark.slow
@pytest.mark.parametrize("damage", COMMON)
def test_every_damaged_file_is_a_message_and_a_status(run, tmp_path, monkeypatch, damage):
    names = [file.relative_to(run) for file in sorted(run.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    for number, name in enumerate(names):
        for state in damaged_copy(run, tmp_path / str(number), name, damage, monkeypatch):
            answers(state)


@pytest.mark.parametrize("damage", [truncated, *WEIGHTS])
def test_a_damaged_checkpoint_is_refused_and_left_out_of_the_gates_with_a_count(run, tmp_path, monkeypatch, damage):
    for state in damaged_copy(run, tmp_path, STATE, damage, monkeypatch):
        found = answers(state)
        refused = {path for path in PATHS if "checkpoint=1" in path and "charts" not in path}
        assert {path for path, status in found.items() if status == 409} == refused
        training = client(state).get("/api/training?model=0").json()
        assert training["damaged"] == 1 and [row["epoch"] for row in training["gates"]] == [2, 3]
        assert "1 checkpoint cannot be read" in client(state).get("/api/charts?model=0").text


def test_a_run_without_its_metrics_or_summary_is_on_the_page_with_a_note(run, tmp_path, monkeypatch):
    for name in ("metrics.jsonl", "summary.json"):
        begun, _ = damaged_copy(run, tmp_path / name, name, junk, monkeypatch)
        (note,) = begun.notes
        assert note.kind == "part-not-read" and name in note.values["reason"]
        assert answers(begun)["/api/explanation?model=0&picture=d0"] == 200
