"""The interface of an objective, and its contract.

Shapes: B images of a batch, K outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from softbias.data.augment.apply import normalize
from softbias.data.dataset import Dataset
from softbias.training.balance import ClassBalance
from softbias.training.batches import Batch, Batches, SplitImages
from softbias.training.objectives import find_objective
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Objective(ABC):
    """What a batch is made of, the loss, and the scores on held-out images."""

    task: ClassVar[str]
    """The task in a few words, for the summary of a run."""
    pretext: ClassVar[bool] = True
    """Whether the task needs no labels, so that its outputs are not the classes of the data set."""
    learns_features: ClassVar[bool] = False
    """Whether the outputs mean nothing after training; see `features.FeatureObjective`."""
    compares_images: ClassVar[bool] = False
    """Whether the loss compares the images of a batch with each other, so that no batch can be computed in parts."""

    @abstractmethod
    def output_names(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """What each output of the model stands for."""

    @abstractmethod
    def batch(self, batches: Batches, index: Tensor, epoch: Tensor) -> Batch:
        """The training batch of the images `index`; `epoch` decides their augmentation.  # 2 × (B,)"""

    @abstractmethod
    def held_out(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Images without augmentation as the model sees them in validation, and the right outputs.  # (B, …), (B,)"""

    def count_outputs(self, class_names: Sequence[str], n_train: int) -> int:
        """How many outputs the model has while it learns from this number of images."""
        return len(self.output_names(class_names))

    def make_head(self, linear: nn.Linear) -> nn.Module:
        """What a model has in the position of its linear head while it learns."""
        return linear

    def views(self, recipe: Recipe) -> int:
        """How many inputs of the model a training image becomes in a step."""
        return 1

    def loss(self, logits: Tensor, targets: Tensor, balance: ClassBalance | None, smoothing: float) -> Tensor:
        """The mean over the batch; `balance` is None for a pretext task.  # 2 × (B, K) -> ()"""
        return (balance or ClassBalance()).loss(logits.float(), targets, smoothing)

    def accuracy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The share of right outputs in a batch.  # 2 × (B, K) -> ()"""
        return (logits.argmax(-1) == targets.argmax(-1)).float().mean()

    def chance_level(self, class_names: Sequence[str]) -> float:
        """The accuracy of guessing."""
        return 1 / len(self.output_names(class_names))

    def pretext_scores(self, scores: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, Any]:
        """What the summary of a run says about a pretext task: no interval, because the views of one image are not
        independent."""
        known = {"task": self.task, "chance_level": self.chance_level(class_names)}
        return {name: scores[name] for name in ("n", "accuracy", "log_loss")} | known


def check_objective(name: str, *, steps: int = 150) -> None:
    """Assert the contract of a registered objective, on a few random images and a small model.

    - a batch is a function of its images and their epoch, and has as many inputs as `views` states
    - the targets fit the names of the outputs, and their rows sum to one
    - logits of zero give the loss log K, and right logits a loss near zero
    - the gradient is finite and reaches the first layer of a model
    - training on one batch lowers its loss to less than half

    The outputs of an objective that learns features have no names and no known loss: its loss falls by a third, and the
    accuracy rises.
    """
    objective = find_objective(name)
    generator = np.random.default_rng(0)
    random_images = generator.integers(0, 256, (8, 16, 16, 3), np.uint8)
    data = Dataset("random", random_images, np.arange(8) % 3, ("a", "b", "c"), {"train": np.arange(8)})
    outputs = objective.count_outputs(data.class_names, len(data))
    recipe = Recipe(objective=name, batch_size=8)
    images = SplitImages(data, data.splits["train"], torch.device("cpu"))
    batches = Batches(images, recipe, 0, outputs, (0.5,) * 3, (0.25,) * 3)
    index, view = batches.at(0, batches.epoch(0))
    batch = batches.load(index, view, 0)
    assert batch.images.shape[1:] == (3, 16, 16), f"{name}: a batch has images of shape {tuple(batch.images.shape)}"
    assert len(batch.images) == 8 * objective.views(recipe), f"{name}: {len(batch.images)} inputs for 8 images"
    again = batches.load(index, view, 0)
    assert all(map(torch.equal, batch, again)), f"{name}: a batch is not the same when it is made again"
    if not objective.learns_features:
        check_outputs(name, objective, data, batches, index, batch)

    torch.manual_seed(0)
    first, linear = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(1024, outputs)
    model = nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(), objective.make_head(linear))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses, accuracies = [], []
    for _ in range(steps):
        seen = model(batch.images)
        loss = objective.loss(seen, batch.targets, None, 0.0)
        optimizer.zero_grad()
        loss.backward()
        assert first.weight.grad is not None and first.weight.grad.isfinite().all() and first.weight.grad.any(), (
            f"{name}: no finite gradient reaches the first layer"
        )
        optimizer.step()
        losses.append(loss.item())
        accuracies.append(objective.accuracy(seen.detach(), batch.targets).item())
    most = losses[0] - abs(losses[0]) / 3 if objective.learns_features else losses[0] / 2
    assert losses[-1] < most, f"{name}: the loss of one batch only went from {losses[0]:.3f} to {losses[-1]:.3f}"
    assert accuracies[-1] == max(accuracies) <= 1, f"{name}: the accuracy of one batch ends at {accuracies[-1]:.3f}"


def check_outputs(name: str, objective: Objective, data: Dataset, batches: Batches, index: Tensor, batch: Batch) -> None:
    """The part of the contract about outputs that have names."""
    names, images = objective.output_names(data.class_names), batches.images
    assert batch.targets.shape == (len(batch.images), len(names)), f"{name}: targets of shape {tuple(batch.targets.shape)}"
    torch.testing.assert_close(batch.targets.sum(1), torch.ones(len(batch.targets)))
    zeros = objective.loss(torch.zeros_like(batch.targets), batch.targets, None, 0.0)
    torch.testing.assert_close(zeros, torch.tensor(len(names), dtype=zeros.dtype).log())
    hard = nn.functional.one_hot(batch.targets.argmax(1), len(names)).float()
    assert objective.loss(50 * hard, hard, None, 0.0) < 1e-3, f"{name}: right logits have a loss"
    inputs, truth = objective.held_out(normalize(images.load(index), batches.mean, batches.std), images.labels[index])
    assert len(inputs) == len(truth) and int(truth.max()) < len(names), f"{name}: held-out images and labels do not fit"
