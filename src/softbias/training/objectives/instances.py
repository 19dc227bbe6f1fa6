"""Every training image is a class of its own: which one is it? (Dosovitskiy et al., 2014; Cao, Yu and Wu, 2022)

    z = g(f(x)) / ‖g(f(x))‖,      loss = − log softmax(W z / T)ᵢ          x: the image i, augmented; f: the model;
                                                                        g: a projection; W: a unit vector for each image

To find an image again whatever was done to it, features must keep what it shows; images that look alike get similar vectors.
Cao, Yu and Wu (arXiv 2201.10728) report it as the best of several methods on sets of a few thousand images. It needs neither a
second network nor pairs of images, so small batches work, and a step costs about what a supervised one does. But a vector of W
moves towards its image once an epoch, so it takes more epochs than `views`. W grows with the set, which limits its size.

We differ: they use a plain linear layer on the features and hundreds of epochs. Unit vectors behind a projection, as in
parametric instance classification (Cao et al., 2020), learn in a tenth of that. There are no crops of several sizes. They mix
images by CutMix, and the target is then shared by two images; a recipe may (`--cutmix 1`), but it makes learning slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from softbias.data.augment.mixing import apply_mix, mix_targets, plan_mix
from softbias.errors import SoftbiasError
from softbias.training.batches import Batch, Batches
from softbias.training.objectives.features import PROJECTED, FeatureObjective, cosines, projection

MOST_IMAGES = 200_000  # W then has 26 million numbers
TEMPERATURE = 0.1


class InstanceHead(nn.Module):
    """W z / T.  # (B, C) -> (B, n)"""

    def __init__(self, features: int, images: int) -> None:
        super().__init__()
        self.projection = projection(features)
        self.weight = nn.Parameter(torch.randn(images, PROJECTED))

    def forward(self, x: Tensor) -> Tensor:
        return cosines(self.projection(x), self.weight) / TEMPERATURE


class Instances(FeatureObjective):
    task = "telling every training picture from all others"

    def count_outputs(self, class_names: Sequence[str], n_train: int) -> int:
        if not 2 <= n_train <= MOST_IMAGES:
            raise SoftbiasError(
                f"--objective instances has an output for every training picture, from 2 to {MOST_IMAGES:,}, but there are "
                f"{n_train:,}; take --objective views, or --fraction"
            )
        return n_train

    def make_head(self, linear: nn.Linear) -> nn.Module:
        return InstanceHead(linear.in_features, linear.out_features)

    def batch(self, batches: Batches, index: Tensor, epoch: Tensor) -> Batch:
        settings, count = batches.recipe.augmentation, len(batches.images)
        if not settings.mixes:
            return Batch(batches.augmented(index, epoch), one_hot(index, count).float())
        plan = plan_mix(index, epoch, batches.seed, count, settings, batches.images.size)
        images, partners = batches.augmented(torch.cat([index, plan.partner]), epoch.repeat(2)).chunk(2)
        return Batch(apply_mix(images, partners, plan), mix_targets(index, plan.partner, plan, count))
