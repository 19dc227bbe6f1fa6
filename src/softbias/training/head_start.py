"""A head that starts as a regularized logistic regression on the features of the model before its first step.

    logits = W (f − m) / s + b = (W / s) f + (b − (W / s) m)          f: the input of the head; m, s: its mean and deviation

The features are those of the training images without augmentation. The strength of the regularization is chosen by
cross-validation among the training images; validation and test images take no part.

Shapes: n images, C features, K classes.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from softbias.errors import SoftbiasError
from softbias.training.batches import SplitImages
from softbias.training.linear import MOST, MOST_TIMES_CLASSES, features, regression

STRENGTHS = (3e-3, 1e-2, 3e-2, 1e-1)  # C of scikit-learn's regression
FOLDS = 3


def start_head(
    model: Any,
    images: SplitImages,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    classes: int,
    precision: AbstractContextManager[Any],
) -> None:
    """Put the regression into the model's head."""
    head = linear_head(model)
    with precision:
        found = features(model, images, mean, std)
    weight, bias = fit_head(found, images.labels.cpu().numpy(), classes)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)


def linear_head(model: Any) -> nn.Linear:
    """The head of a model, if it is linear in the features that `linear.features` returns."""
    head = model.get_classifier()
    if not isinstance(head, nn.Linear) or head.bias is None or getattr(model, "global_pool", None) == "flatten":
        raise SoftbiasError(
            "head_start='logistic' needs a linear head on one feature vector per image, but this model's is "
            f"{type(head).__name__}; use head_start='random'"
        )
    return head


def fit_head(found: NDArray[np.float32], labels: NDArray[np.int64], classes: int) -> tuple[Tensor, Tensor]:
    """Weights and biases for features as they are.  # (n, C), (n,) -> (K, C), (K,)"""
    most = max(classes, min(MOST, MOST_TIMES_CLASSES // classes))
    if len(found) > most:  # evenly chosen
        chosen = np.linspace(0, len(found) - 1, most).round().astype(int)
        found, labels = found[chosen], labels[chosen]
    center, scale = found.mean(0), found.std(0)
    scale = np.where(scale > 1e-6, scale, 1)
    inputs = (found - center) / scale
    if len(np.unique(labels)) < 2:
        return torch.zeros(classes, found.shape[1]), torch.zeros(classes)
    fitted = regression(inputs, labels, choose_strength(inputs, labels))
    coefficients, intercepts = fitted.coef_, fitted.intercept_
    if len(fitted.classes_) == 2:  # scikit-learn has one row for two classes
        coefficients, intercepts = (np.stack([-each[0] / 2, each[0] / 2]) for each in (coefficients, intercepts))
    weight, bias = np.zeros((classes, found.shape[1])), np.full(classes, float(intercepts.min()))
    weight[fitted.classes_], bias[fitted.classes_] = coefficients / scale, intercepts - (coefficients / scale) @ center
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def choose_strength(inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The strength with the most right answers in cross-validation; of equal ones, the more regular."""
    from sklearn.model_selection import StratifiedKFold

    if np.bincount(labels).max() < FOLDS:
        return STRENGTHS[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of one or two images is in one or two folds
        folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(inputs, labels))
    folds = [(kept, held) for kept, held in folds if len(np.unique(labels[kept])) > 1]

    def right(strength: float) -> int:
        fitted = ((regression(inputs[kept], labels[kept], strength), held) for kept, held in folds)
        return sum(int((model.predict(inputs[held]) == labels[held]).sum()) for model, held in fitted)

    return max(STRENGTHS, key=right)
