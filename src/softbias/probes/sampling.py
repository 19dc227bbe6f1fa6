"""The images that a probe measures on: a seeded sample of a split, with labels numbered as the model numbers its classes.

Shapes: n images of H × W, batches of B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softbias.classifier import Classifier
from softbias.data.dataset import Dataset
from softbias.errors import NotMeasurableError, SoftbiasError

BATCH = 100


@dataclass(frozen=True)
class Sample:
    """images (n, 3, H, W) uint8; labels (n,), or None where the set's classes are not the model's."""

    images: Tensor
    labels: Tensor | None
    name: str = "images"
    classes: int | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> tuple[int, int]:
        return int(self.images.shape[-2]), int(self.images.shape[-1])

    def batches(self, device: torch.device | str = "cpu", batch: int = BATCH) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Pixels in [0, 1], and labels.  # (B, 3, H, W), (B,)"""
        for start in range(0, len(self), batch):
            part = slice(start, start + batch)
            labels = None if self.labels is None else self.labels[part].to(device)
            yield self.images[part].to(device).float() / 255, labels

    def needed_labels(self, probe: str) -> Tensor:
        if self.labels is None:
            raise NotMeasurableError(
                f"{probe} compares predictions with labels, but the classes of {self.name} are not the model's"
            )
        return self.labels


Source = Dataset | Sample | tuple[Any, Any]


def sample(data: Source, classifier: Classifier, *, n: int, seed: int = 0, split: str = "test") -> Sample:
    """At most n images of a split ("all": of the whole set), drawn by the seed; all of them where there are fewer.

    data   a Dataset, a Sample, or arrays (n, H, W, 3) uint8 with labels (n,) or None
    """
    if n < 1:
        raise SoftbiasError(f"n must be at least 1, but n={n}")
    if isinstance(data, Sample):
        chosen = torch.from_numpy(drawn(len(data), n, seed))
        return dataclasses.replace(
            data, images=data.images[chosen], labels=None if data.labels is None else data.labels[chosen]
        )
    if isinstance(data, tuple):
        images, given = (None if part is None else np.asarray(part) for part in data)
        assert images is not None
        indices = drawn(len(images), n, seed)
        labels = None if given is None else torch.from_numpy(given[indices].astype(np.int64))
        return Sample(as_tensor(images[indices]), labels, classes=None if given is None else int(given.max()) + 1)
    part = np.arange(len(data)) if split == "all" else data.splits.get(split)
    if part is None or not len(part):
        raise NotMeasurableError(f"{data.name} has no images in {split!r}; it has {', '.join(data.splits)}")
    data = numbered_as_the_model(data, classifier)
    indices = part[drawn(len(part), n, seed)]
    known = classifier.class_names is None or set(data.class_names) <= set(classifier.class_names)
    labels = torch.from_numpy(np.ascontiguousarray(data.labels[indices])) if known else None
    return Sample(as_tensor(data.images[indices]), labels, data.name, len(data.class_names))


def drawn(count: int, n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(count)[:n]


def as_tensor(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).contiguous()


def numbered_as_the_model(data: Dataset, classifier: Classifier) -> Dataset:
    """The set with its classes numbered as the model numbers them, where the model knows them all by name."""
    names = classifier.class_names
    if names is None or tuple(names) == data.class_names or not set(data.class_names) <= set(names):
        return data
    numbers = np.array([names.index(name) for name in data.class_names])
    return dataclasses.replace(data, labels=numbers[data.labels], class_names=tuple(names))
