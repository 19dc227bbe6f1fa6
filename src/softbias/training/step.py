"""One optimizer step: batch → loss → gradient → clip → update. Plain, or replayed as one CUDA graph.

At 32 px a step is hundreds of small kernels, and launching them takes longer than running them. On a single GPU the whole
step, augmentation included, is recorded once and replayed: the same kernels on the same numbers, without the launches. All
that changes between steps is copied into fixed tensors first: which pictures, the epoch, and the learning rate.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softbias.training.batches import Batch, Batches
from softbias.training.optim import trainable

PLAIN_STEPS = 3  # before recording: they allocate, compile and choose kernels


class PlainStep:
    """A step as everybody would write it."""

    name = "plain steps"

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        batches: Batches,
        class_weights: Tensor | None,
    ) -> None:
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer
        self.batches, self.recipe, self.class_weights = batches, batches.recipe, class_weights
        self.parameters = list(trainable(model))
        self.guarded = False

    def __call__(self, index: Tensor, view: Tensor, epoch: Tensor, lr: float) -> Tensor:
        """Loss, share that was right, 1 and 0; or 0, 0, 0 and 1 for a step that was skipped.  # (4,)"""
        self.set_lr(lr)
        self.optimizer.zero_grad(set_to_none=True)
        return self.work(index, view, epoch)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def work(self, index: Tensor, view: Tensor, epoch: Tensor) -> Tensor:
        loss, right = self.gradients(self.batches.load(index, view, epoch))
        norm = self.accelerator.clip_grad_norm_(self.parameters, self.recipe.clip or float("inf"))
        finite = loss.isfinite() if norm is None else loss.isfinite() & norm.isfinite()
        if self.guarded:  # fused optimizers leave everything as it is where this is one
            self.optimizer.found_inf = (~finite).float()
        self.optimizer.step()
        one = torch.ones_like(loss)
        fine, skipped = torch.stack([loss, right, one, one * 0]), torch.stack([one * 0, one * 0, one * 0, one])
        return torch.where(finite, fine, skipped)

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients of the mean loss over the batch, in `accumulate` parts."""
        losses, rights = [], []
        parts = self.recipe.accumulate
        for number, (images, targets) in enumerate(zip(batch.images.chunk(parts), batch.targets.chunk(parts), strict=True)):
            last = number == parts - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model), self.accelerator.autocast():
                logits = self.model(images)
                loss = cross_entropy(logits.float(), targets, weight=self.class_weights, label_smoothing=self.recipe.smoothing)
            self.accelerator.backward(loss / parts)
            losses.append(loss.detach())
            rights.append((logits.detach().argmax(-1) == targets.argmax(-1)).float().mean())
        return torch.stack(losses).mean(), torch.stack(rights).mean()


class RecordedStep(PlainStep):
    """The same step as one CUDA graph, after a few plain ones.

    Nobody looks at the loss between two replays, so a step whose gradient is not finite changes nothing, and is counted.
    """

    name = "one CUDA graph per step"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.guarded = True
        self.count = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, index: Tensor, view: Tensor, epoch: Tensor, lr: float) -> Tensor:
        if self.count < PLAIN_STEPS:
            self.count += 1
            return super().__call__(index, view, epoch, lr)
        self.set_lr(lr)
        if self.graph is None:
            self.record(index, view, epoch)
        assert self.graph is not None
        for fixed, given in zip(self.inputs, (index, view, epoch), strict=True):
            fixed.copy_(given)
        self.graph.replay()
        return self.outputs

    def record(self, index: Tensor, view: Tensor, epoch: Tensor) -> None:
        self.inputs = (index.clone(), view.clone(), epoch.clone())
        self.optimizer.zero_grad(set_to_none=True)  # the graph makes its own gradients, and makes them anew in every replay
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.work(*self.inputs)


def can_be_recorded(accelerator: Accelerator, batches: Batches) -> bool:
    """One process, one NVIDIA GPU, pictures that live on it, and no loss scaling, which asks the host."""
    return (
        accelerator.device.type == "cuda"
        and accelerator.num_processes == 1
        and accelerator.scaler is None
        and batches.pixels.resident is not None
    )
