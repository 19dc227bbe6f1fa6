"""Checkpoints that survive anything: written aside, synced, renamed, verified when read; the last good one is kept.

    checkpoints/step-00001200/state.safetensors     weights, averaged weights, optimizer state
    checkpoints/step-00001200/meta.json             step, scores so far, and the checksum of the tensors

A folder appears under its name only when it is complete: a kill or a power cut leaves a `.tmp` folder that the next start
removes. A damaged checkpoint is recognized by its checksum and the one before it is used. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from softbias.errors import SoftbiasError

NAME = re.compile(r"step-(\d{8})")


class CheckpointError(SoftbiasError):
    """A checkpoint could not be written, or none can be read."""


class AllCheckpointsDamagedError(CheckpointError):
    """A run has checkpoints, but none of them can be read."""


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: always the last; the best epoch's weights; every K-th epoch's.

    >>> Keep.parse("last,best,every=10")
    Keep(best=True, every=10)
    """

    best: bool = True
    every: int = 0

    @staticmethod
    def parse(text: str) -> Keep:
        best, every = False, 0
        for word in text.split(","):
            match = re.fullmatch(r"last|best|every=(\d+)", word.strip())
            if match is None:
                raise SoftbiasError(f"keep takes last, best and every=K, separated by commas, but got {word!r}")
            best |= word.strip() == "best"
            every = int(match[1]) if match[1] else every
        return Keep(best, every)


def write(folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, name: str | None = None) -> Path:
    """Write a checkpoint durably and return its folder; on any failure earlier ones are untouched."""
    target = folder / (name or f"step-{step:08d}")
    aside = folder / f"{target.name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        file = aside / "state.safetensors"
        save_file({key: tensor.detach().contiguous().cpu() for key, tensor in tensors.items()}, file)
        sync(file)
        described = {**meta, "step": step, "sha256": checksum(file)}
        (aside / "meta.json").write_text(json.dumps(described, indent=1))
        sync(aside / "meta.json")
        sync(aside)
        if target.exists():
            shutil.rmtree(target)
        os.rename(aside, target)
        sync(folder)
    except Exception as error:  # safetensors reports a full disk as an error of its own
        shutil.rmtree(aside, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(
            f"no checkpoint could be written to {folder} ({reason}); the earlier ones are intact: "
            "make room or choose another folder, and continue with --resume"
        ) from error
    return target


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def listed(folder: Path) -> list[Path]:
    """Checkpoints by step, the last one last."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name)) if folder.is_dir() else []


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A verified checkpoint."""
    file = path / "state.safetensors"
    try:
        meta = json.loads((path / "meta.json").read_text())
        if checksum(file) != meta["sha256"]:
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
        return load_file(file), meta
    except CheckpointError:
        raise
    except (OSError, LookupError, TypeError, ValueError) as error:  # what any bytes in the place of meta.json may raise
        raise CheckpointError(f"{path} is damaged: {error}") from error


def read_last(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
    """The newest checkpoint that is whole, and the names of damaged ones that were passed over."""
    damaged = []
    for path in reversed(listed(folder)):
        try:
            tensors, meta = read(path)
        except CheckpointError:
            damaged.append(path.name)
            continue
        return tensors, meta, damaged
    if damaged:
        raise AllCheckpointsDamagedError(
            f"every checkpoint in {folder} is damaged ({', '.join(damaged)}); remove the run and start again"
        )
    return None


def clear_unfinished(folder: Path) -> None:
    """Remove what a kill left half written; only for the process that trains, as another's may be growing right now."""
    for aside in folder.glob("*.tmp") if folder.is_dir() else ():
        shutil.rmtree(aside, ignore_errors=True)


def prune(folder: Path, keep: Keep, steps_per_epoch: int) -> None:
    """Remove what `keep` does not ask for; the last two stay, so that there is one to fall back on."""
    for path in listed(folder)[:-2]:
        epoch, rest = divmod(int(path.name[5:]), steps_per_epoch)
        if not (keep.every and rest == 0 and epoch % keep.every == 0):
            with suppress(OSError):
                shutil.rmtree(path.rename(path.with_name(f"{path.name}.tmp")))  # renamed first: a kill leaves no half of it


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as named tensors."""
    found: dict[str, Tensor] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if value is not None:
                found[f"{index}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}/")}


def rows_until(file: Path, step: int) -> Iterator[str]:
    """Lines of metrics.jsonl up to a step; an incomplete last line is dropped."""
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            if json.loads(line)["step"] <= step:
                yield line.decode()
        except (LookupError, TypeError, ValueError):
            return
