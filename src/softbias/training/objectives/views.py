"""Two augmented views of an image belong together, those of different images do not (Chen et al., 2020, with Yeh et al., 2022).

    z = g(f(x)) / ‖g(f(x))‖                                                   f: the model, g: a projection of two layers
    loss of a view i = − zᵢ · zᵢ' / T + log Σⱼ exp(zᵢ · zⱼ / T)                i': the other view; j: views of other images

The image's own view is not in the sum, as Yeh et al. proposed: with it a batch of 64 has a weak gradient as soon as the pair is
near. So batches of 64 are enough on a CPU. There is neither a second network nor a queue, and all that is learned is in the
model and its head. Two views of an image cost as much as two images of a supervised step.

The accuracy is the share of views whose nearest view in the batch is one of the same image.

Shapes: B views of a batch, K numbers of a projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from softbias.data.augment.rng import epoch_of_view
from softbias.errors import SoftbiasError
from softbias.training.balance import ClassBalance
from softbias.training.batches import Batch, Batches
from softbias.training.objectives.features import PROJECTED, FeatureObjective, cosines, projection
from softbias.training.recipe import Recipe

TEMPERATURE = 0.2
OTHER_VIEW = 2048  # added to the number of a view for the second one; repeated augmentation uses numbers below 1000


class Views(FeatureObjective):
    task = "recognizing two views of the same picture"
    compares_images: ClassVar[bool] = True

    def count_outputs(self, class_names: Sequence[str], n_train: int) -> int:
        if n_train < 2:
            raise SoftbiasError(f"--objective views compares pictures with each other, but there are {n_train} to train on")
        return PROJECTED

    def make_head(self, linear: nn.Linear) -> nn.Module:
        return projection(linear.in_features)

    def views(self, recipe: Recipe) -> int:
        return 2

    def batch(self, batches: Batches, index: Tensor, epoch: Tensor) -> Batch:
        both = index.repeat(2)
        views = torch.cat([epoch, epoch_of_view(epoch, torch.full_like(epoch, OTHER_VIEW))])
        return Batch(batches.augmented(both, views), both)

    def loss(self, logits: Tensor, targets: Tensor, balance: ClassBalance | None, smoothing: float) -> Tensor:
        """# (B, K), (B,) -> ()"""
        similar, same, own = similarities(logits, targets)
        similar = similar / TEMPERATURE
        pair = same & ~own
        together = (similar * pair).sum(1) / pair.sum(1)
        return (similar.masked_fill(same, -torch.inf).logsumexp(1) - together).mean()

    def accuracy(self, logits: Tensor, targets: Tensor) -> Tensor:
        similar, _, own = similarities(logits, targets)
        nearest = similar.masked_fill(own, -torch.inf).argmax(1)
        return (targets[nearest] == targets).float().mean()


def similarities(projected: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines, which views are of the same image, and which are the view itself.  # (B, K), (B,) -> 3 × (B, B)"""
    similar = cosines(projected, projected)
    return similar, index[:, None] == index, torch.eye(len(index), dtype=torch.bool, device=index.device)
