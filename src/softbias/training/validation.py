"""How good the model would be now: on validation pictures, with the averaged weights where the recipe averages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from softbias.data.augment.apply import normalize, rotate_quarter
from softbias.training.batches import Pixels
from softbias.training.evaluate import predict_probabilities
from softbias.training.optim import ModelEma

if TYPE_CHECKING:
    from softbias.training.loop import Plan


@torch.no_grad()
def validate(plan: Plan, average: ModelEma | None) -> tuple[float, float]:
    """Accuracy and loss on the validation pictures of what would be the model now."""
    assert plan.validation is not None
    with swapped(plan.model, average):
        if plan.recipe.objective == "rotation":
            return rotation_scores(plan, plan.validation)
        mean, std = plan.batches.mean, plan.batches.std
        probabilities, labels = predict_probabilities(
            plan.model, plan.validation, mean, std, precision=plan.accelerator.autocast()
        )
    chosen = probabilities[range(len(labels)), labels].clip(1e-12)
    return float((probabilities.argmax(1) == labels).mean()), float(-torch.from_numpy(chosen).log().mean())


@torch.no_grad()
def rotation_scores(plan: Plan, pixels: Pixels) -> tuple[float, float]:
    """Accuracy and loss of telling the four rotations of every picture apart."""
    plan.model.eval()
    total = torch.zeros(2, device=pixels.device)
    for start in range(0, len(pixels), 256):
        index = torch.arange(start, min(start + 256, len(pixels)), device=pixels.device)
        images = normalize(pixels.images(index), plan.batches.mean, plan.batches.std)
        quarters = torch.arange(4, device=pixels.device).repeat_interleave(len(index))
        with plan.accelerator.autocast():
            logits = plan.model(rotate_quarter(images.repeat(4, 1, 1, 1), quarters)).float()
        total += torch.stack([(logits.argmax(-1) == quarters).sum(), cross_entropy(logits, quarters, reduction="sum")])
    accuracy, loss = (total / (4 * len(pixels))).tolist()
    return accuracy, loss


@contextmanager
def swapped(model: nn.Module, average: ModelEma | None) -> Iterator[None]:
    """The averaged weights inside the model for a while."""
    if average is None:
        yield
        return
    own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(average.tensors)
    try:
        yield
    finally:
        model.load_state_dict(own)
