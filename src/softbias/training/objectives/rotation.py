"""ARViT's pretext task: in which of four rotations does an image stand? It needs no labels.

A training image comes in all four rotations, or in one at random (`Recipe.rotations`); a held-out image in all four.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from softbias.data.augment.apply import rotate_quarter
from softbias.data.augment.rng import hash_integers, to_integers
from softbias.training.batches import Batch, Batches
from softbias.training.objectives.base import Objective
from softbias.training.recipe import Recipe


class Rotation(Objective):
    task = "telling four rotations apart"

    def output_names(self, class_names: Sequence[str]) -> tuple[str, ...]:
        return "0°", "90°", "180°", "270°"

    def views(self, recipe: Recipe) -> int:
        return 4 if recipe.rotations == "all" else 1

    def batch(self, batches: Batches, index: Tensor, epoch: Tensor) -> Batch:
        images = batches.augmented(index, epoch)
        if batches.recipe.rotations == "all":
            images, quarters = self.held_out(images, index)
        else:
            quarters = to_integers(hash_integers(batches.seed, epoch, index, "rotation"), 0, 4)
            images = rotate_quarter(images, quarters)
        return Batch(images, one_hot(quarters, 4).float())

    def held_out(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        quarters = torch.arange(4, device=images.device).repeat_interleave(len(images))
        return rotate_quarter(images.repeat(4, 1, 1, 1), quarters), quarters
