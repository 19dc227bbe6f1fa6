"""Tidy rows: one number a row, with what it is, its interval and its n.

    {"model": "convit_nano", "weights": "trained", "probe": "locality", "measure": "distance", "unit": "pixels",
     "layer": 0, "head": 2, "value": 6.1, "low": 6.0, "high": 6.2, "n": 1000}

Intervals are 95 %: Wilson's for shares, the normal one for means over pictures. What is read off the weights has neither
interval nor n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softbias.classifier import Classifier
from softbias.stats import wilson

Row = dict[str, Any]
Rows = list[Row]
Z = 1.959964


def mean_of(values: Tensor) -> Row:
    """value, low, high and n of a mean over pictures."""
    values = values.double().flatten()
    n = len(values)
    mean = float(values.mean())
    half = Z * float(values.std()) / math.sqrt(n) if n > 1 else math.nan
    return {"value": mean, "low": mean - half, "high": mean + half, "n": n}


def share_of(right: Tensor) -> Row:
    """value, low, high and n of a share of pictures."""
    hits, n = int(right.sum()), right.numel()
    low, high = wilson(hits, n)
    value = hits / n  # at 0 and 1 the edges may miss it by a rounding
    return {"value": value, "low": min(low, value), "high": max(high, value), "n": n}


def clustered_share(right: Tensor, source: Tensor) -> Row:
    """A mean over trials that share pictures: its interval is that of the pictures where they vary more than the trials.

    right    (t,) what came of a trial
    source   (t,) which picture it was made from

    The variance of the sum is the sum over pictures of the squared sum of residuals (cluster-robust), and never less than
    that of independent trials.
    """
    right = right.double()
    n, mean = len(right), float(right.mean())
    residual = right - mean
    count = int(source.max()) + 1
    sums = torch.zeros(count, dtype=torch.double).index_add_(0, source.cpu(), residual.cpu())
    variance = max(float(sums.square().sum()), float(residual.square().sum())) / n**2
    half = Z * math.sqrt(variance)
    return {"value": mean, "low": mean - half, "high": mean + half, "n": n, "pictures": int(source.unique().numel())}


def exactly(value: float) -> Row:
    """A number read off the weights."""
    return {"value": float(value), "low": None, "high": None, "n": None}


def stamp(classifier: Classifier, probe: str, rows: Iterable[Row], **more: Any) -> Rows:
    """The rows with what they are about in front."""
    return [{**classifier.about(), "probe": probe, **more, **row} for row in rows]


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become null."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
