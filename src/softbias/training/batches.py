"""Training batches: which images, in which order, and which share of a batch belongs to this process.

The order of an epoch is the order of a hash of (seed, epoch, index); augmentation and mixing follow the same hash. So a batch
is a function of (seed, step) alone: workers, processes and resumes do not change it.

Shapes: B samples of this process, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softbias.data.augment.apply import augment, normalize
from softbias.data.augment.mixing import repeated
from softbias.data.augment.rng import epoch_of_view, hash_integers
from softbias.data.dataset import Dataset
from softbias.training.objectives import find_objective
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    from softbias.training.objectives.base import Objective

GPU_SHARE = 0.4  # of the free memory of a GPU that a data set may take
HOST_MEMORY = 16 * 2**30  # bytes that are taken for free on other devices


class SplitImages:
    """The images of a split, on the device if they fit there.

    whole     take the whole images for crops, where the set has them; `aspects` are theirs
    size      (height, width) that crops get; that of the set if not given
    share     of the free memory that they may take; otherwise they are read batch by batch
    at_once   images that are copied at the same time, so that the host needs no second copy of the set
    """

    def __init__(
        self,
        data: Dataset,
        indices: NDArray[np.int64],
        device: torch.device,
        *,
        whole: bool = False,
        size: tuple[int, int] | None = None,
        share: float = GPU_SHARE,
        at_once: int = 1024,
    ) -> None:
        self.count = len(indices)
        self.device = device
        self.size = size or data.img_size
        self.labels = torch.from_numpy(np.ascontiguousarray(data.labels[indices])).to(device)
        self.source, self.indices = data.images, indices
        self.aspects: Tensor | None = None
        if whole and data.whole is not None:
            self.source = data.whole.images
            self.aspects = torch.from_numpy(data.whole.aspects[indices]).to(device)
        self.resident: Tensor | None = None
        needed = self.count * int(np.prod(self.source.shape[1:]))
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else HOST_MEMORY
        if needed <= share * free:
            self.resident = torch.empty(self.count, 3, *self.source.shape[1:3], dtype=torch.uint8, device=device)
            for start in range(0, self.count, at_once):
                part = torch.from_numpy(self.source[indices[start : start + at_once]])
                self.resident[start : start + at_once] = part.permute(0, 3, 1, 2)

    def __len__(self) -> int:
        return self.count

    def load(self, index: Tensor) -> Tensor:
        """As they are stored: whole images have another size than `size`.  # (B,) -> (B, 3, H, W) uint8"""
        if self.resident is not None:
            return self.resident[index]
        rows = np.ascontiguousarray(self.source[self.indices[index.cpu().numpy()]])
        return torch.from_numpy(rows).permute(0, 3, 1, 2).to(self.device, non_blocking=True)


class Epoch(NamedTuple):
    """The order of an epoch; for each image also the number of its appearance in it (see `repeated`)."""

    past: int  # epochs before this one
    number: Tensor  # (), the same on the device: a tensor, so that compiled code takes any epoch
    images: Tensor  # (N,)
    views: Tensor  # (N,)


class Batch(NamedTuple):
    images: Tensor  # (B, 3, H, W), normalized
    targets: Tensor  # (B, K), each row sums to one; or (B,), what a loss needs to compare images with each other


@dataclass(frozen=True)
class Batches:
    """The training batches of one process among `world`."""

    images: SplitImages
    recipe: Recipe
    seed: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rank: int = 0
    world: int = 1

    @property
    def batch_size(self) -> int:
        """Of all processes together: the recipe's, or the size of a smaller set."""
        size = min(self.recipe.batch_size, len(self.images))
        return max(1, size // self.world) * self.world

    @property
    def steps_per_epoch(self) -> int:
        return max(1, len(self.images) // self.batch_size)

    @property
    def total_steps(self) -> int:
        return self.recipe.steps or max(1, round(self.recipe.epochs * self.steps_per_epoch))

    @property
    def warmup_steps(self) -> int:
        """The recipe's, but never more than a tenth of the run."""
        return min(round(self.recipe.warmup_epochs * self.steps_per_epoch), self.total_steps // 10)

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation on the device, made once instead of in every step."""
        return torch.tensor(self.mean, device=self.images.device), torch.tensor(self.std, device=self.images.device)

    def epoch(self, past: int) -> Epoch:
        """The epoch after `past` others."""
        device = self.images.device
        order = hash_integers(self.seed, past, torch.arange(len(self.images), device=device), "order").argsort()
        return Epoch(past, torch.tensor(past, device=device), *repeated(order, self.recipe.augmentation.repeats))

    def at(self, step: int, epoch: Epoch) -> tuple[Tensor, Tensor]:
        """This process's share of a step: images and views.  # 2 × (B,)"""
        start = (step % self.steps_per_epoch) * self.batch_size
        share = self.batch_size // self.world
        mine = slice(start + self.rank * share, start + (self.rank + 1) * share)
        return epoch.images[mine], epoch.views[mine]

    @cached_property
    def objective(self) -> Objective:
        return find_objective(self.recipe.objective)

    def load(self, index: Tensor, view: Tensor, epoch: int | Tensor) -> Batch:
        return self.objective.batch(self, index, epoch_of_view(epoch, view))

    def augmented(self, index: Tensor, epoch: Tensor) -> Tensor:
        """Augmented, normalized images; `epoch` is that of `epoch_of_view`.  # 2 × (B,) -> (B, 3, H, W)"""
        images, aspects = self.images, self.images.aspects
        return augment(
            images.load(index), index, epoch, self.seed, self.recipe.augmentation, *self.statistics,
            size=images.size, aspect=None if aspects is None else aspects[index],
        )  # fmt: skip


def channel_statistics(
    data: Dataset, indices: NDArray[np.int64], most: int = 5000
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the channels, over all training images, or over 5,000 to 9,999 evenly chosen ones."""
    chosen = indices[:: max(1, len(indices) // most)]
    total, square, count = np.zeros(3), np.zeros(3), 0
    for start in range(0, len(chosen), 500):
        part = data.images[chosen[start : start + 500]].astype(np.float64) / 255
        total += part.sum((0, 1, 2))
        square += np.square(part).sum((0, 1, 2))
        count += part[..., 0].size
    mean = total / count
    std = np.sqrt(np.maximum(square / count - mean**2, 1e-6))
    return tuple(round(float(value), 4) for value in mean), tuple(round(float(value), 4) for value in std)


def plain_batches(
    images: SplitImages, mean: tuple[float, ...], std: tuple[float, ...], batch: int = 512
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalized images and their labels in order, for evaluation.  # (batch, 3, H, W), (batch,)"""
    for start in range(0, len(images), batch):
        index = torch.arange(start, min(start + batch, len(images)), device=images.device)
        yield normalize(images.load(index), mean, std), images.labels[index]
