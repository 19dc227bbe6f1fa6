"""The state of a training: all that a step changes, and therefore all that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbias.training import checkpoint
from softbias.training.optim import ModelEma


@dataclass
class Best:
    """The best epoch so far, by validation accuracy, then by lower loss."""

    accuracy: float = -1.0
    loss: float = float("inf")
    step: int = 0
    epoch: int = 0

    def beaten_by(self, accuracy: float, loss: float) -> bool:
        return (accuracy, -loss) > (self.accuracy, -self.loss)


@dataclass
class State:
    """Weights, averaged weights, optimizer, where we are, and sums of the epoch under way (see `step`)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: ModelEma | None
    sums: Tensor
    total_steps: int
    step: int = 0
    seconds: float = 0.0
    best: Best = field(default_factory=Best)
    scaler: Any = None

    def weights(self) -> dict[str, Tensor]:
        """What would be the model now."""
        return self.average.tensors if self.average else dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        tensors = checkpoint.prefixed("model", self.model.state_dict())
        tensors |= checkpoint.prefixed("optimizer", checkpoint.flatten_optimizer(self.optimizer))
        tensors |= checkpoint.prefixed("average", self.average.tensors) if self.average else {}
        tensors["sums"] = self.sums
        meta = {"seconds": self.seconds, "total_steps": self.total_steps, "best": vars(self.best)}
        if self.scaler is not None:
            meta["scaler"] = self.scaler.state_dict()
        checkpoint.write(folder, self.step, tensors, meta)

    def save_best(self, folder: Path) -> None:
        checkpoint.write(folder, self.step, self.weights(), {}, name="best")

    def restore(self, folder: Path) -> list[str] | None:
        """Continue from the newest whole checkpoint; None if there is none, else the names of damaged ones."""
        checkpoint.clear_unfinished(folder)
        found = checkpoint.read_last(folder)
        if found is None:
            return None
        tensors, meta, damaged = found
        self.model.load_state_dict(checkpoint.part("model", tensors))
        checkpoint.restore_optimizer(self.optimizer, checkpoint.part("optimizer", tensors))
        if self.average:
            for name, tensor in checkpoint.part("average", tensors).items():
                self.average.tensors[name].copy_(tensor)
        self.sums.copy_(tensors["sums"])
        self.step, self.seconds, self.total_steps = meta["step"], meta["seconds"], meta["total_steps"]
        self.best = Best(**meta["best"])
        if self.scaler is not None and "scaler" in meta:
            self.scaler.load_state_dict(meta["scaler"])
        return damaged
