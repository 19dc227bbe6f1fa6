"""Nearest neighbors in the space of a model's features: do they have the same class?

    similarity = f · g / (‖f‖ ‖g‖)                         f, g: features of two images, minus the mean of the training images
    votes of a class = Σ exp(similarity / 0.07)            over the 20 nearest training images that have this class

It measures features without training anything (Wu et al., 2018), so it suits a model that learned without labels. The same
architecture with random weights stands beside it: its features are not bad, either.

Shapes: n images, m training images, C features, k neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import normalize

from softbias.data.dataset import Dataset
from softbias.training.batches import SplitImages
from softbias.training.linear import accuracy_of, features

NEIGHBORS = 20
TEMPERATURE = 0.07
MOST = 50_000  # training images that are compared with
AT_ONCE = 1024  # rows of similarities in memory


class Nearest(NamedTuple):
    """For every image the nearest training images, the nearest first."""

    rows: NDArray[np.int64]  # (n, k), of the training features
    similarity: NDArray[np.float32]  # (n, k)


@dataclass(frozen=True)
class FeatureSpace:
    """The features of training images and of images whose neighbors are asked for; both are indices into a data set.

    The asked images are the test images; without any, the training images, each without itself.
    """

    train: NDArray[np.int64]  # (m,)
    asked: NDArray[np.int64]  # (n,)
    train_features: NDArray[np.float32]  # (m, C)
    asked_features: NDArray[np.float32]  # (n, C)

    @property
    def is_own(self) -> bool:
        """Whether the asked images are the training images."""
        return self.asked is self.train

    def nearest(self, count: int = NEIGHBORS, rows: slice | NDArray[np.int64] = slice(None)) -> Nearest:
        """The nearest training images of the asked images in these rows."""
        center = torch.from_numpy(self.train_features.mean(0))
        numbers = torch.arange(len(self.asked))[rows]
        asked, train = (
            normalize(torch.from_numpy(each) - center, dim=1) for each in (self.asked_features, self.train_features)
        )
        indices, values = [], []
        for part in numbers.split(AT_ONCE):
            similar = asked[part] @ train.T
            if self.is_own:
                similar[torch.arange(len(part)), part] = -torch.inf
            best = similar.topk(min(count, len(train) - self.is_own), dim=1)
            indices.append(best.indices)
            values.append(best.values)
        return Nearest(torch.cat(indices).numpy(), torch.cat(values).numpy())


def feature_space(
    model: nn.Module,
    data: Dataset,
    train: NDArray[np.int64],
    test: NDArray[np.int64] | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> FeatureSpace:
    """The features of at most 50,000 training images, evenly chosen, and of the test images."""
    device = next(model.parameters()).device
    train = train[np.linspace(0, len(train) - 1, min(MOST, len(train))).round().astype(int)]
    known = features(model, SplitImages(data, train, device), mean, std)
    if test is None:
        return FeatureSpace(train, train, known, known)
    return FeatureSpace(train, test, known, features(model, SplitImages(data, test, device), mean, std))


def vote(found: Nearest, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """The class that the neighbors of each image choose; labels: of the training images.  # (n, k), (m,) -> (n,)"""
    votes = np.zeros((len(found.rows), classes))
    np.add.at(votes, (np.arange(len(votes))[:, None], labels[found.rows]), np.exp(found.similarity / TEMPERATURE))
    chosen: NDArray[np.int64] = votes.argmax(1)
    return chosen


def neighbor_scores(space: FeatureSpace, data: Dataset, random: FeatureSpace | None = None) -> dict[str, Any] | None:
    """The accuracy of the vote, with its interval; None where the images have no classes.

    random   the same images with the features of random weights
    """
    if len(data.class_names) < 2 or len(space.train) < 2:
        return None
    truth, known = data.labels[space.asked], data.labels[space.train]

    def count_right(each: FeatureSpace) -> int:
        return int((vote(each.nearest(), known, len(data.class_names)) == truth).sum())

    return {
        "n": len(truth),
        "split": "train" if space.is_own else "test",
        "neighbors": NEIGHBORS,
        **accuracy_of(count_right(space), len(truth)),
        "random_weights": None if random is None else count_right(random) / len(truth),
        "most_frequent": float(np.bincount(truth).max() / len(truth)),
    }
