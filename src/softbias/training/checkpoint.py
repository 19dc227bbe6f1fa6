"""Checkpoints that survive anything: written aside, synced, renamed, verified when read; the last good one is kept.

    checkpoints/step-00001200/state.safetensors     weights, averaged weights, weights of the best epoch, optimizer state
    checkpoints/step-00001200/meta.json             step, and the best score so far
    checkpoints/step-00001200/SHA256SUMS            the checksums of both

A folder appears under its name only when it is complete: a kill or a power cut leaves a temporary folder, which the next
start removes. A damaged checkpoint is recognized by its checksums, and the one before it is used. Nothing is unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from softbias.checksums import verify_checksums, write_checksums
from softbias.errors import SoftbiasError, in_one_line
from softbias.files import remove_folder, replacing_folder, write_text
from softbias.json_file import read_json
from softbias.models.weights import load_state
from softbias.schema import from_plain
from softbias.training.optim import ModelEma

NAME = re.compile(r"step-(\d{8})")
STATE, META = FILES = ("state.safetensors", "meta.json")


class CheckpointError(SoftbiasError):
    """A checkpoint could not be written or read."""


class AllCheckpointsDamagedError(CheckpointError):
    """A run has checkpoints, but none of them can be read."""


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: always the last, with or without the best epoch's weights, and every K-th epoch's.

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


class TrainingMeta(Meta):
    """The meta.json of a checkpoint that a run can continue from."""

    seconds: float
    elapsed: float
    minutes: float | None
    corrected: tuple[int, float]
    total_steps: int
    best: Best | None
    scaler: NotRequired[dict[str, Any]]


@dataclass
class State:
    """All that a step changes, and therefore all that a checkpoint holds.

    sums           what the steps of the epoch under way returned (`step.step_names`)
    seconds        time spent on steps; elapsed: on evaluations and checkpoints, too
    minutes        time that the user gave; total_steps follows from it, see `pace`
    corrected      step and elapsed time when total_steps was decided last
    best_weights   of the best epoch, in the memory of the CPU; empty if they are not kept
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: ModelEma | None
    sums: Tensor
    total_steps: int
    step: int = 0
    seconds: float = 0.0
    elapsed: float = 0.0
    minutes: float | None = None
    corrected: tuple[int, float] = (0, 0.0)
    best: Best = field(default_factory=Best)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
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

    def keep_best(self) -> None:
        """Remember the weights as those of the best epoch."""
        self.best_weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.weights().items()}

    def save(self, folder: Path) -> None:
        tensors = prefixed("model", self.model.state_dict())
        tensors |= prefixed("optimizer", flatten_optimizer(self.optimizer))
        tensors |= prefixed("ema", self.ema.tensors) if self.ema else {}
        tensors |= prefixed("best", self.best_weights)
        tensors["sums"] = self.sums
        best = vars(self.best) if self.best.epoch else None
        meta: dict[str, Any] = {"seconds": self.seconds, "elapsed": self.elapsed, "minutes": self.minutes}
        meta |= {"corrected": self.corrected, "total_steps": self.total_steps, "best": best}
        if self.scaler is not None:
            meta["scaler"] = self.scaler.state_dict()
        write(folder, self.step, tensors, meta)

    def restore(self, folder: Path) -> list[str] | None:
        """Continue from the newest whole checkpoint; the names of damaged ones, or None where there is no checkpoint."""
        found = read_last(folder, TrainingMeta)
        if found is None:
            return None
        tensors, meta, damaged = found
        try:
            self.take(tensors, meta)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint of step {meta['step']} in {folder} does not fit this run: {in_one_line(error)}"
            ) from error
        return damaged

    def take(self, tensors: Mapping[str, Tensor], meta: TrainingMeta) -> None:
        """Become the state that a checkpoint holds."""
        load_state(self.model, part("model", tensors))
        restore_optimizer(self.optimizer, part("optimizer", tensors))
        if self.ema:
            averaged = part("ema", tensors)
            for name, tensor in self.ema.tensors.items():
                tensor.copy_(averaged[name])
        self.sums.copy_(tensors["sums"])
        self.step, self.total_steps = meta["step"], meta["total_steps"]
        self.seconds, self.elapsed = meta["seconds"], meta["elapsed"]
        self.minutes, self.corrected = meta["minutes"], meta["corrected"]
        self.best = meta["best"] or Best()
        self.best_weights = part("best", tensors)
        if self.scaler is not None and "scaler" in meta:
            self.scaler.load_state_dict(meta["scaler"])


def write(folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Write a checkpoint durably and return its folder; on any failure earlier ones are untouched."""
    target = folder / f"step-{step:08d}"
    try:
        with replacing_folder(target) as temporary:
            save_file({key: tensor.detach().contiguous().cpu() for key, tensor in tensors.items()}, temporary / STATE)
            write_text(temporary / META, json.dumps({**meta, "step": step}, indent=1))
            write_checksums(temporary, FILES)
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
    try:
        verify_checksums(path, FILES)
        meta = from_plain(kind, read_json(path / META), f"{path / META}")
        return load_file(path / STATE), meta
    except (OSError, ValueError, SafetensorError) as error:  # text that is not UTF-8, not JSON, or has other fields
        raise CheckpointError(f"{path} is damaged: {in_one_line(error)}") from error


def read_some(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors of a checkpoint that it has, verified."""
    try:
        verify_checksums(path, FILES)
        with safe_open(path / STATE, "pt") as file:
            kept = set(file.keys())
            return {name: file.get_tensor(name) for name in names if name in kept}
    except (OSError, SoftbiasError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {in_one_line(error)}") from error


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


def prune(folder: Path, keep: Keep, steps_per_epoch: int) -> None:
    """Remove checkpoints that `keep` does not name; the last two stay, so that there is one to fall back on."""
    for path in listed(folder)[:-2]:
        if not keep.keeps(int(path.name[5:]), steps_per_epoch):
            with suppress(OSError):
                remove_folder(path)


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
