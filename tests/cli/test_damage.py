"""Damaged models, checkpoints and weights: one line and status 2 from every command, and never a number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from softbias.checksums import write_checksums
from softbias.cli import main

from .conftest import SHORT


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-50] ^= 64
    path.write_bytes(content)


def change(path: Path, how: str) -> None:
    """Other tensors under a checksum that fits, as another program may write them."""
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("norm.weight")]:  # of a checkpoint: of every set of weights
        if how == "missing":
            del tensors[name]
        elif how == "extra":
            tensors[name.replace("norm", "more")] = torch.zeros(3)
        else:
            tensors[name] = torch.zeros(2, 3) if how == "misshapen" else tensors[name] * float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    names = [each.name for each in path.parent.iterdir() if each.name in ("config.json", "meta.json", path.name)]
    write_checksums(path.parent, names)


def damage(path: Path, how: str) -> None:
    {"cut off": cut_off, "flipped": flip_bit, "gone": Path.unlink}.get(how, lambda path: change(path, how))(path)


DAMAGE = ("cut off", "flipped", "gone", "missing", "extra", "misshapen", "not finite")


@pytest.fixture
def picture(image_folder) -> str:
    return str(next(iter(sorted((image_folder / "red").iterdir()))))


def refused(words: list[str], capsys) -> str:
    capsys.readouterr()
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("softbias: ")
    return printed.err


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_model_is_one_line_in_every_command(run, picture, tmp_path, capsys, how):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    damage(copy / "model" / "model.safetensors", how)
    for words in (
        ["predict", str(copy), picture],
        ["evaluate", str(copy)],
        ["explain", str(copy), picture, "--out", str(tmp_path / "why")],
        ["probe", str(copy), "--probes", "gates", "--out", str(tmp_path / "probes")],
        ["export", str(copy), str(tmp_path / "m.onnx")],
        ["app", str(copy), "--no-browser"],
        ["predict", str(copy / "model"), picture],
    ):
        message = refused(words, capsys)
        assert "model.safetensors" in message
    assert not (tmp_path / "why").exists() and not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_weights_to_start_from_are_one_line(run, image_folder, tmp_path, capsys, how):
    copy = tmp_path / "weights"
    shutil.copytree(run / "model", copy)
    damage(copy / "model.safetensors", how)
    model = ["--model", "soft_nano", "--model-option", "patch_size=8", "--img-size", "32", "--device", "cpu", *SHORT]
    begin = ["fit", str(image_folder), *model, "--out", str(tmp_path / "out"), "--quiet", "--weights"]
    for weights in (copy, copy / "model.safetensors"):
        assert str(weights) in refused([*begin, str(weights)], capsys)
    assert not (tmp_path / "out" / "config.yaml").exists()
    if how == "gone":
        assert main([*begin, str(run / "model")]) == 0  # they fit, but for the damage


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoints_are_one_line(run, picture, tmp_path, capsys, how):
    copy = shutil.copytree(run, tmp_path / "run")
    for path in sorted(copy.glob("checkpoints/step-*")):
        damage(path / "state.safetensors", how)
    (copy / "summary.json").unlink()
    shutil.rmtree(copy / "model")
    refused(["predict", str(copy), picture], capsys)
    refused(["fit", "--resume", "--out", str(copy), "--quiet", "--device", "cpu"], capsys)
    refused(["probe", str(copy), "--checkpoints", "--probes", "gates", "--out", str(tmp_path / "probes")], capsys)
