"""Objectives that learn features from images alone. Their outputs mean nothing after training.

The model learns with a head of the objective's own, in the position of its classifier. So weights, averaged weights, optimizer
and checkpoints hold that head as they hold every other part, and a run that was stopped continues exactly. The finished model
has no head: its output are its features, and `fit --start RUN` gives it a new head for the classes.

There is nothing to validate: no output is right for an image that was not trained on. `training.neighbors` measures instead
whether the nearest images in the space of features have the same class.

Shapes: B images of a batch, K outputs, C features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softbias.errors import SoftbiasError
from softbias.training.objectives.base import Objective

PROJECTED, HIDDEN = 128, 512


def projection(features: int) -> nn.Sequential:
    """Two layers between the features and the loss: what the loss makes the same, the features may still tell apart (Chen et
    al., 2020).  # (B, C) -> (B, 128)"""
    return nn.Sequential(nn.Linear(features, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PROJECTED))


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """In float32: in bf16 the differences that matter would be rounded away.  # (n, K), (m, K) -> (n, m)"""
    with torch.autocast(a.device.type, enabled=False):
        return normalize(a.float(), dim=1) @ normalize(b.float(), dim=1).T


class FeatureObjective(Objective):
    learns_features: ClassVar[bool] = True

    def output_names(self, class_names: Sequence[str]) -> tuple[str, ...]:
        return ()

    def held_out(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("there is no right output for a held-out image")


def install_head(model: Any, objective: Objective) -> None:
    """Put the objective's own head into the position of the model's linear one."""
    linear = model.get_classifier()
    if not isinstance(linear, nn.Linear) or not hasattr(model, "forward_features"):
        raise SoftbiasError(
            "features are learned by models of softbias and timm with one linear head, but this is "
            f"{type(model).__name__}; take another --model, or --objective rotation"
        )
    name = next(name for name, module in model.named_modules() if module is linear)
    head = objective.make_head(linear)
    if head is not linear:
        model.set_submodule(name, head.to(linear.weight.device))


def drop_head(model: Any) -> None:
    """Leave the model without a head, so that its outputs are its features."""
    model.reset_classifier(0)
    model.class_names = None
