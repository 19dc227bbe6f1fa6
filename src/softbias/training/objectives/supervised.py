"""Classification: the classes of the data set, with mixing (mixup, CutMix) where the recipe has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from softbias.data.augment.mixing import apply_mix, mix_targets, plan_mix
from softbias.training.batches import Batch, Batches
from softbias.training.objectives.base import Objective


class Supervised(Objective):
    task = "telling the classes apart"
    pretext = False

    def output_names(self, class_names: Sequence[str]) -> tuple[str, ...]:
        return tuple(class_names)

    def batch(self, batches: Batches, index: Tensor, epoch: Tensor) -> Batch:
        settings, labels = batches.recipe.augmentation, batches.images.labels
        if not settings.mixes:
            return Batch(batches.augmented(index, epoch), one_hot(labels[index], batches.classes).float())
        plan = plan_mix(index, epoch, batches.seed, len(batches.images), settings, batches.images.size)
        both = batches.augmented(torch.cat([index, plan.partner]), epoch.repeat(2))  # at once: half of the kernels
        images, partners = both.chunk(2)
        targets = mix_targets(labels[index], labels[plan.partner], plan, batches.classes)
        return Batch(apply_mix(images, partners, plan), targets)

    def held_out(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images, labels
