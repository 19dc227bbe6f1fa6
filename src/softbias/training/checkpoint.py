"""Checkpoints that survive anything: written aside, synced, renamed, verified when read; the last good one is kept.

    checkpoints/step-00001200/state.safetensors     weights, averaged weights, optimizer state
    checkpoints/step-00001200/meta.json             step, best score so far, and the checksum of the tensors
    checkpoints/best/                               the weights of the best epoch

A folder appears under its name only when it is complete: a kill or a power cut leaves a `.tmp` folder, which the next start
removes. A damaged checkpoint is recognized by its checksum, and the one before it is used. Nothing is unpickled.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from softbias.errors import SoftbiasError, in_one_line
from softbias.files import replacing_folder, sha256
from softbias.schema import from_plain
from softbias.training.optim import ModelEma

NAME = re.compile(r"step-(\d{8})")


class CheckpointError(SoftbiasError):
    """A checkpoint could not be written or read."""


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

    def keeps(self, step: int, steps_per_epoch: int) -> bool:
        """Whether the checkpoint of that step is one of a K-th epoch."""
        epoch, rest = divmod(step, steps_per_epoch)
        return bool(self.every) and rest == 0 and epoch % self.every == 0


@dataclass(frozen=True)
class Best:
    """The best epoch so far, by validation accuracy, then by lower loss."""

    accuracy: float = -1.0
    loss: float = float("inf")
    step: int = 0
    epoch: int = 0

    def beaten_by(self, accuracy: float, loss: float) -> bool:
        return (accuracy, -loss) > (self.accuracy, -self.loss)


class Meta(TypedDict):
    """The meta.json of every checkpoint."""

    step: int
    sha256: str


class TrainingMeta(Meta):
    """The meta.json of a checkpoint that a run can continue from."""

    seconds: float
    total_steps: int
    best: Best | None
    scaler: NotRequired[dict[str, Any]]


@dataclass
class State:
    """All that a step changes, and therefore all that a checkpoint holds.

    sums      what the steps of the epoch under way returned (`step.step_names`)
    seconds   time spent on steps
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: ModelEma | None
    sums: Tensor
    total_steps: int
    step: int = 0
    seconds: float = 0.0
    best: Best = field(default_factory=Best)
    scaler: Any = None

    def advance(self, seen: Tensor) -> None:
        """Count a step that was taken, and what it returned."""
        self.step += 1
        if self.ema:
            self.ema.update(self.step)
        self.sums += seen.to(self.sums.dtype)

    def weights(self) -> dict[str, Tensor]:
        """The weights that would be the model now: averaged, where the recipe averages."""
        return self.ema.tensors if self.ema else dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        tensors = prefixed("model", self.model.state_dict())
        tensors |= prefixed("optimizer", flatten_optimizer(self.optimizer))
        tensors |= prefixed("ema", self.ema.tensors) if self.ema else {}
        tensors["sums"] = self.sums
        best = vars(self.best) if self.best.epoch else None
        meta = {"seconds": self.seconds, "total_steps": self.total_steps, "best": best}
        if self.scaler is not None:
            meta["scaler"] = self.scaler.state_dict()
        write(folder, self.step, tensors, meta)

    def save_best(self, folder: Path) -> None:
        write(folder, self.step, self.weights(), {}, name="best")

    def restore(self, folder: Path) -> list[str] | None:
        """Continue from the newest whole checkpoint; the names of damaged ones, or None where there is no checkpoint."""
        clear_unfinished(folder)
        found = read_last(folder, TrainingMeta)
        if found is None:
            return None
        tensors, meta, damaged = found
        self.model.load_state_dict(part("model", tensors))
        restore_optimizer(self.optimizer, part("optimizer", tensors))
        if self.ema:
            for name, tensor in part("ema", tensors).items():
                self.ema.tensors[name].copy_(tensor)
        self.sums.copy_(tensors["sums"])
        self.step, self.seconds, self.total_steps = meta["step"], meta["seconds"], meta["total_steps"]
        self.best = meta["best"] or Best()
        if self.scaler is not None and "scaler" in meta:
            self.scaler.load_state_dict(meta["scaler"])
        return damaged


def write(folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, name: str | None = None) -> Path:
    """Write a checkpoint durably and return its folder; on any failure earlier ones are untouched."""
    target = folder / (name or f"step-{step:08d}")
    try:
        with replacing_folder(target) as temporary:
            file = temporary / "state.safetensors"
            save_file({key: tensor.detach().contiguous().cpu() for key, tensor in tensors.items()}, file)
            (temporary / "meta.json").write_text(json.dumps({**meta, "step": step, "sha256": sha256(file)}, indent=1))
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        raise CheckpointError(
            f"no checkpoint could be written to {folder} ({in_one_line(error)}); the earlier ones are intact: "
            "make room or choose another folder, and continue with --resume"
        ) from error
    return target


def listed(folder: Path) -> list[Path]:
    """Checkpoints by step, the last one last."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name)) if folder.is_dir() else []


def read(path: Path, kind: Any = Meta) -> tuple[dict[str, Tensor], Any]:
    """The tensors and the meta data of a checkpoint, verified; `kind` is `Meta` or `TrainingMeta`."""
    file = path / "state.safetensors"
    try:
        meta = from_plain(kind, json.loads((path / "meta.json").read_text()), f"{path / 'meta.json'}")
        if sha256(file) != meta["sha256"]:
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
        return load_file(file), meta
    except CheckpointError:
        raise
    except (OSError, ValueError, SafetensorError) as error:  # text that is not UTF-8, not JSON, or has other fields
        raise CheckpointError(f"{path} is damaged: {in_one_line(error)}") from error


def read_some(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors of a checkpoint that it has. No other is read, so the checksum is not verified."""
    try:
        with safe_open(path / "state.safetensors", "pt") as file:
            kept = set(file.keys())
            return {name: file.get_tensor(name) for name in names if name in kept}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def read_last(folder: Path, kind: Any = Meta) -> tuple[dict[str, Tensor], Any, list[str]] | None:
    """The newest checkpoint that is whole, and the names of later ones that are damaged; None where there is none."""
    damaged = []
    for path in reversed(listed(folder)):
        try:
            tensors, meta = read(path, kind)
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
    """Remove the half-written checkpoint that a kill left. Only the process that trains may do so."""
    for unfinished in folder.glob("*.tmp") if folder.is_dir() else ():
        shutil.rmtree(unfinished, ignore_errors=True)


def prune(folder: Path, keep: Keep, steps_per_epoch: int) -> None:
    """Remove checkpoints that `keep` does not name; the last two stay, so that there is one to fall back on."""
    for path in listed(folder)[:-2]:
        if not keep.keeps(int(path.name[5:]), steps_per_epoch):
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
