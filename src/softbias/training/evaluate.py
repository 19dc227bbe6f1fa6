"""Predictions of a model on pictures.  # K classes"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from softbias.training.batches import Pixels, plain_batches
from softbias.training.scores import Labels, Probabilities


@torch.no_grad()
def predict_probabilities(
    model: nn.Module,
    pixels: Pixels,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    precision: AbstractContextManager[Any] | None = None,
    batch: int = 512,
) -> tuple[Probabilities, Labels]:
    """Softmax of the logits, and the labels, in the order of the split.  # (n, K), (n,)"""
    training = model.training
    model.eval()
    rows, labels = [], []
    with precision or nullcontext():
        for images, truth in plain_batches(pixels, mean, std, batch):
            rows.append(model(images).float().softmax(-1))
            labels.append(truth)
    model.train(training)
    return torch.cat(rows).cpu().numpy(), np.asarray(torch.cat(labels).cpu())
