"""One optimizer step: batch → loss → gradient → clip → update. Plain, or replayed as CUDA graphs.

At 32 px a step is hundreds of small kernels, and launching them takes longer than running them. On a single GPU a step is
captured once and replayed: the same kernels on the same numbers, without the launches. What changes between steps is copied
into fixed tensors first: the indices of the images, the epoch, and the learning rate. Making a batch and training on it are
two graphs on two streams. So the next batch is made during the present step: its kernels are too small to fill a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from softbias.training.balance import ClassBalance
from softbias.training.batches import Batch, Batches
from softbias.training.optim import trainable


def step_names(regularizers: Iterable[str]) -> tuple[str, ...]:
    """The names of the numbers that a step returns; losses of regularizers are without their weight.

    >>> step_names(["distance"])
    ('loss', 'accuracy', 'taken', 'skipped', 'task_loss', 'distance_loss', 'distance_active')
    """
    more = [name for each in regularizers for name in (f"{each}_loss", f"{each}_active")]
    return ("loss", "accuracy", "taken", "skipped", *(["task_loss", *more] if more else []))


class PlainStep:
    """A step without a CUDA graph.

    regularizers   label -> weight; with any, the model returns logits and values
    """

    name = "plain steps"

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        batches: Batches,
        balance: ClassBalance | None,
        regularizers: Mapping[str, float] | None = None,
    ) -> None:
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer
        self.regularizers = dict(regularizers or {})
        self.names = step_names(self.regularizers)
        self.batches, self.recipe, self.balance = batches, batches.recipe, balance
        self.parameters = list(trainable(model))
        self.guarded = False  # whether a gradient that is not finite leaves the weights as they are

    def __call__(self, index: Tensor, view: Tensor, epoch: Tensor, lr: float) -> Tensor:
        """The numbers of `names`: "taken" is 1 and "skipped" 0, or "skipped" is 1 and all others are 0.

        They are means over all processes. So the sums of an epoch are the same in all of them, and the main process's
        checkpoint is that of all.
        """
        self.set_lr(lr)
        self.optimizer.zero_grad(set_to_none=True)
        seen = self.update(self.batches.load(index, view, epoch))
        if self.accelerator.num_processes > 1:
            seen = self.accelerator.reduce(seen, "mean")
        return seen

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["lr_factor"])
            else:
                group["lr"] = lr * group["lr_factor"]

    def update(self, batch: Batch) -> Tensor:
        loss, right, *more = self.gradients(batch)
        norm = self.accelerator.clip_grad_norm_(self.parameters, self.recipe.clip or float("inf"))
        finite = loss.isfinite() if norm is None else loss.isfinite() & norm.isfinite()
        if self.guarded:  # a fused optimizer changes nothing where found_inf is one
            self.optimizer.found_inf = (~finite).float()
        self.optimizer.step()
        one, none = torch.ones_like(loss), torch.zeros_like(loss)
        fine = torch.stack([loss, right, one, none, *more])
        skipped = torch.stack([one if name == "skipped" else none for name in self.names])
        return torch.where(finite, fine, skipped)

    def gradients(self, batch: Batch) -> list[Tensor]:
        """Compute the gradients of the mean loss in `accumulate` parts; loss, accuracy, and the numbers of regularizers."""
        seen: list[Tensor] = []
        parts = list(zip(*(each.chunk(self.recipe.accumulate) for each in batch), strict=True))
        for images, targets in parts:
            share = len(images) / len(batch.images)  # a small set makes fewer or unequal parts
            last = images is parts[-1][0]
            with nullcontext() if last else self.accelerator.no_sync(self.model), self.accelerator.autocast():
                logits, *values = self.model(images) if self.regularizers else [self.model(images)]
                task = self.batches.objective.loss(logits, targets, self.balance, self.recipe.smoothing)
                loss, more = self.regularized(task, *values)
            self.accelerator.backward(loss * share)
            right = self.batches.objective.accuracy(logits.detach(), targets)
            new = [each * share for each in (loss.detach(), right, *more)]
            seen = [a + b for a, b in zip(seen, new, strict=True)] if seen else new
        return seen

    def regularized(self, task: Tensor, values: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """The loss with its regularizers, and the numbers that are logged.  # (), (regularizers, B)"""
        if values is None:
            return task, []
        loss, means = task, values.float().mean(1)
        for mean, weight in zip(means, self.regularizers.values(), strict=True):
            loss = loss + weight * mean if weight else loss
        active = (values.detach() != 0).float().mean(1)
        return loss, [task.detach(), *torch.stack([means.detach(), active], 1).flatten()]


class CudaGraphStep(PlainStep):
    """The same step as CUDA graphs, after a few plain ones.

    The loss is not read between two replays, so a step whose gradient is not finite changes nothing, and is counted.
    """

    name = "steps as CUDA graphs"

    def __init__(self, *args: Any, plain_steps: int = 3) -> None:
        super().__init__(*args)
        self.guarded = True
        self.plain_steps = plain_steps  # still to do: they allocate, compile and choose kernels
        self.graphs: CudaGraphs | None = None

    def __call__(self, index: Tensor, view: Tensor, epoch: Tensor, lr: float) -> Tensor:
        if self.plain_steps > 0:
            self.plain_steps -= 1
            return super().__call__(index, view, epoch, lr)
        self.set_lr(lr)
        if self.graphs is None:
            self.optimizer.zero_grad(set_to_none=True)  # the graph makes its own gradients, anew in every replay
            self.graphs = CudaGraphs(self.batches.load, self.update, (index, view, epoch))
        return self.graphs.replay((index, view, epoch))


Inputs = tuple[Tensor, Tensor, Tensor]  # index and view of each image, and the epoch


class CudaGraphs:
    """One graph that makes a batch, and one that trains on it."""

    def __init__(self, load: Callable[..., Batch], update: Callable[[Batch], Tensor], given: Inputs) -> None:
        self.inputs = [each.clone() for each in given]
        self.epoch: Tensor | None = None
        self.side = torch.cuda.Stream(priority=-1)  # its small kernels start as soon as a multiprocessor is free
        self.loaded, self.taken = torch.cuda.Event(), torch.cuda.Event()
        self.loading, self.training = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.loading, stream=self.side):
            self.fresh = load(*self.inputs)
        self.batch = Batch(*(torch.empty_like(each) for each in self.fresh))
        with torch.cuda.graph(self.training):
            self.outputs = update(self.batch)

    def replay(self, given: Inputs) -> Tensor:
        """One step. Its batch is made during earlier steps that the GPU still works on."""
        present = torch.cuda.current_stream()
        if given[2] is not self.epoch:  # a new epoch: the present stream is still computing its order
            self.epoch = given[2]
            self.side.wait_stream(present)
        with torch.cuda.stream(self.side):
            self.side.wait_event(self.taken)
            for fixed, changed in zip(self.inputs, given, strict=True):
                fixed.copy_(changed)
                changed.record_stream(self.side)
            self.loading.replay()
            self.loaded.record(self.side)
        present.wait_event(self.loaded)
        for fixed, made in zip(self.batch, self.fresh, strict=True):
            fixed.copy_(made)
        self.taken.record(present)
        self.training.replay()
        return self.outputs


def supports_cuda_graph(accelerator: Accelerator, batches: Batches, model: nn.Module | None = None) -> bool:
    """One process, one NVIDIA GPU that holds the images, and neither loss scaling nor a regularizer that needs the host."""
    return (
        accelerator.device.type == "cuda"
        and accelerator.num_processes == 1
        and accelerator.scaler is None
        and batches.images.resident is not None
        and getattr(model, "supports_cuda_graph", True)
    )
