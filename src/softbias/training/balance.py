"""Classes of different sizes, and how the loss makes up for them. π_k is the share of class k in the training images.

"adjusted" (Menon et al., 2021): in training, and only there, log π is added to the outputs z of the model:

    loss = −Σ_k t_k log softmax(z + log π)_k

So the outputs themselves need not learn which class is rare, and treat all classes alike. Smoothing by ε mixes the shares into
a target, t = (1 − ε) y + ε π; an even mixture would say that rare classes are frequent.

"balanced": the loss of an image of class k is multiplied by 1 / (K π_k). A class with two images in two thousand then has forty
times the mean weight, and where its images are mixed with others its loss can outweigh all else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from softbias.training.recipe import Recipe

UNEVEN = 3.0  # if the largest class has more than three times the images of the smallest, the loss makes up for it


@dataclass(frozen=True)
class ClassBalance:
    """shares: π, added as log π to outputs; weights: of the losses. One of them is given.  # (K,)"""

    shares: Tensor | None = None
    weights: Tensor | None = None

    def to(self, device: torch.device) -> ClassBalance:
        moved = [None if each is None else each.to(device) for each in (self.shares, self.weights)]
        return ClassBalance(*moved)

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The mean over the batch.  # 2 × (B, K) -> ()"""
        if self.shares is None:
            return cross_entropy(logits, targets, weight=self.weights, label_smoothing=smoothing)
        return cross_entropy(logits + self.shares.log(), torch.lerp(targets, self.shares.expand_as(targets), smoothing))


def class_balance(labels: NDArray[np.int64], classes: int, recipe: Recipe) -> ClassBalance | None:
    """What the recipe asks for, given the labels of the training images; None: every image counts the same.

    >>> class_balance(np.array([0, 0, 0, 1]), 2, Recipe(class_weights="balanced")).weights
    tensor([0.6667, 2.0000])
    """
    counts = np.bincount(labels, minlength=classes)
    uneven = counts.max() > UNEVEN * counts[counts > 0].min()
    if recipe.class_weights == "none" or (recipe.class_weights == "auto" and not uneven):
        return None
    shares = np.maximum(counts, 1) / len(labels)  # a class without images keeps a finite output
    if recipe.class_weights == "balanced":
        weights = np.where(counts > 0, 1 / (classes * shares), 0.0)
        return ClassBalance(weights=torch.tensor(weights, dtype=torch.float32))
    return ClassBalance(shares=torch.tensor(shares, dtype=torch.float32))
