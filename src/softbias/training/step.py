"""One optimizer step: batch → loss → gradient → clip → update. Plain, or replayed as CUDA graphs.

At 32 px a step is hundreds of small kernels, and launching them takes longer than running them. On a single GPU it is recorded
once and replayed: the same kernels on the same numbers, without the launches. All that changes between steps is copied into
fixed tensors first: which pictures, the epoch, and the learning rate. Making a batch and training on it are two graphs on two
streams, so that the next batch is made beside the present step: its kernels are far too small to fill a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from softbias.training.batches import Batch, Batches
from softbias.training.optim import trainable


def step_names(regularizers: Iterable[str]) -> tuple[str, ...]:
    """What a step returns, in order; losses of regularizers are without their weight.

    >>> step_names(["distance"])
    ('loss', 'accuracy', 'taken', 'skipped', 'task_loss', 'distance_loss', 'distance_active')
    """
    more = [name for each in regularizers for name in (f"{each}_loss", f"{each}_active")]
    return ("loss", "accuracy", "taken", "skipped", *(["task_loss", *more] if more else []))


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
        regularizers: Mapping[str, float] | None = None,
    ) -> None:
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer
        self.regularizers = dict(regularizers or {})  # name -> weight; with any the model returns (logits, values)
        self.names = step_names(self.regularizers)
        self.batches, self.recipe, self.class_weights = batches, batches.recipe, class_weights
        self.parameters = list(trainable(model))
        self.guarded = False

    def __call__(self, index: Tensor, view: Tensor, epoch: Tensor, lr: float) -> Tensor:
        """What `names` names, "taken" 1 and "skipped" 0; or all 0 and "skipped" 1 for a step that was skipped."""
        self.set_lr(lr)
        self.optimizer.zero_grad(set_to_none=True)
        return self.update(self.batches.load(index, view, epoch))

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def update(self, batch: Batch) -> Tensor:
        loss, right, *more = self.gradients(batch)
        norm = self.accelerator.clip_grad_norm_(self.parameters, self.recipe.clip or float("inf"))
        finite = loss.isfinite() if norm is None else loss.isfinite() & norm.isfinite()
        if self.guarded:  # fused optimizers leave everything as it is where this is one
            self.optimizer.found_inf = (~finite).float()
        self.optimizer.step()
        one, none = torch.ones_like(loss), torch.zeros_like(loss)
        fine = torch.stack([loss, right, one, none, *more])
        skipped = torch.stack([one if name == "skipped" else none for name in self.names])
        return torch.where(finite, fine, skipped)

    def gradients(self, batch: Batch) -> list[Tensor]:
        """Gradients of the mean loss over the batch, in `accumulate` parts; the means of what `names` names."""
        seen: list[Tensor] = []
        parts = list(zip(*(each.chunk(self.recipe.accumulate) for each in batch), strict=True))
        for images, targets in parts:
            share = len(images) / len(batch.images)  # a set smaller than its batch makes fewer or unequal parts
            last = images is parts[-1][0]
            with nullcontext() if last else self.accelerator.no_sync(self.model), self.accelerator.autocast():
                logits, *values = self.model(images) if self.regularizers else [self.model(images)]
                task = self.batches.objective.loss(logits, targets, self.class_weights, self.recipe.smoothing)
                loss, more = self.regularized(task, *values)
            self.accelerator.backward(loss * share)
            right = (logits.detach().argmax(-1) == targets.argmax(-1)).float().mean()
            new = [each * share for each in (loss.detach(), right, *more)]
            seen = [a + b for a, b in zip(seen, new, strict=True)] if seen else new
        return seen

    def regularized(self, task: Tensor, values: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """The loss with its regularizers, and what is logged of them.  # (), (regularizers, B)"""
        if values is None:
            return task, []
        loss, means = task, values.float().mean(1)
        for mean, weight in zip(means, self.regularizers.values(), strict=True):
            loss = loss + weight * mean if weight else loss
        active = (values.detach() != 0).float().mean(1)
        return loss, [task.detach(), *torch.stack([means.detach(), active], 1).flatten()]


class CudaGraphStep(PlainStep):
    """The same step as CUDA graphs, after a few plain ones.

    Nobody looks at the loss between two replays, so a step whose gradient is not finite changes nothing, and is counted.
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


Inputs = tuple[Tensor, Tensor, Tensor]  # which pictures, which view of each, the epoch


class CudaGraphs:
    """One graph that makes a batch, and one that trains on it."""

    def __init__(self, load: Callable[..., Batch], update: Callable[[Batch], Tensor], given: Inputs) -> None:
        self.inputs = [each.clone() for each in given]
        self.epoch: Tensor | None = None
        self.aside = torch.cuda.Stream(priority=-1)  # first where a multiprocessor becomes free: it needs little, and soon
        self.loaded, self.taken = torch.cuda.Event(), torch.cuda.Event()
        self.loading, self.training = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.loading, stream=self.aside):
            self.fresh = load(*self.inputs)
        self.batch = Batch(*(torch.empty_like(each) for each in self.fresh))
        with torch.cuda.graph(self.training):
            self.outputs = update(self.batch)

    def replay(self, given: Inputs) -> Tensor:
        """A step. The batch is made beside what the GPU still has to do, as soon as the one before was taken."""
        present = torch.cuda.current_stream()
        if given[2] is not self.epoch:  # a new epoch, whose order the present stream makes
            self.epoch = given[2]
            self.aside.wait_stream(present)
        with torch.cuda.stream(self.aside):
            self.aside.wait_event(self.taken)
            for fixed, changed in zip(self.inputs, given, strict=True):
                fixed.copy_(changed)
                changed.record_stream(self.aside)
            self.loading.replay()
            self.loaded.record(self.aside)
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
