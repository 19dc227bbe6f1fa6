"""Predictions on held-out images, and their scores with the interval that the number of images allows.

Shapes: n images, K outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from softbias.classifier import finite
from softbias.data.dataset import Dataset
from softbias.stats import wilson
from softbias.training.batches import SplitImages, plain_batches
from softbias.training.optim import ModelEma

if TYPE_CHECKING:
    from softbias.training.objectives.base import Objective
    from softbias.training.plan import TrainingPlan

Probabilities = NDArray[np.float32]
Labels = NDArray[np.int64]
SMALLEST = 1e-12  # probability in a logarithm


@torch.no_grad()
def predict_probabilities(
    model: nn.Module,
    images: SplitImages,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    objective: Objective | None = None,
    precision: AbstractContextManager[Any] | None = None,
    batch: int = 512,
) -> tuple[Probabilities, Labels]:
    """Softmax of the logits, and the right outputs, in the order of the split.  # (n, K), (n,)

    objective   what the images become (four rotations, say) and which outputs are right; without one, images and labels
    """
    training = model.training
    model.eval()
    rows, labels = [], []
    with precision or nullcontext():
        for inputs, truth in plain_batches(images, mean, std, batch):
            if objective is not None:
                inputs, truth = objective.held_out(inputs, truth)
            rows.append(model(inputs).float().softmax(-1))
            labels.append(truth)
    model.train(training)
    return torch.cat(rows).cpu().numpy(), np.asarray(torch.cat(labels).cpu())


def evaluate_split(
    model: nn.Module,
    data: Dataset,
    indices: NDArray[np.int64],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    objective: Objective,
    device: torch.device,
    precision: AbstractContextManager[Any] | None = None,
) -> tuple[Probabilities, Labels, dict[str, Any]]:
    """The predictions on the images at these indices, as from `predict_probabilities`, and their `score`.

    Outputs that are not finite are an error here, at the end; in the middle of a training they are not.
    """
    images = SplitImages(data, indices, device)
    probabilities, labels = predict_probabilities(model, images, mean, std, objective=objective, precision=precision)
    finite(torch.from_numpy(probabilities))
    return probabilities, labels, score(probabilities, labels, objective.output_names(data.class_names))


def validate(plan: TrainingPlan, images: SplitImages, ema: ModelEma | None) -> tuple[float, float]:
    """Accuracy and loss on held-out images, with the averaged weights where there are any."""
    batches = plan.batches
    with averaged_weights(plan.model, ema):
        probabilities, labels = predict_probabilities(
            plan.in_use(), images, batches.mean, batches.std,
            objective=batches.objective, precision=plan.accelerator.autocast(),
        )  # fmt: skip
    chosen = probabilities[range(len(labels)), labels].clip(SMALLEST)
    return float((probabilities.argmax(1) == labels).mean()), float(-torch.from_numpy(chosen).log().mean())


@contextmanager
def averaged_weights(model: nn.Module, ema: ModelEma | None) -> Iterator[None]:
    """Put the averaged weights into the model for a while."""
    if ema is None:
        yield
        return
    own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(ema.tensors)
    try:
        yield
    finally:
        model.load_state_dict(own)


def calibration_error(probabilities: Probabilities, labels: Labels, bins: int = 15) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy over bins of equal width."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    inside = [number == each for each in range(bins)]
    gaps = [abs(right[these].mean() - confidence[these].mean()) * these.sum() for these in inside if these.any()]
    return float(sum(gaps) / len(labels))


def score(probabilities: Probabilities, labels: Labels, class_names: Sequence[str]) -> dict[str, Any]:
    """Accuracy with its interval, top-5, balanced accuracy, macro-F1, calibration, and a row per class.

    Averages over classes leave out those without images; a share of nothing is None.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support, top_k_accuracy_score

    n, classes = probabilities.shape
    numbers, predicted = np.arange(classes), probabilities.argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a single class is fine
        table = confusion_matrix(labels, predicted, labels=numbers)  # rows: truth, columns: prediction
    precision, recall, f1, truth = precision_recall_fscore_support(labels, predicted, labels=numbers, zero_division=np.nan)
    right = int(np.trace(table))
    chosen = probabilities[np.arange(n), labels]
    shares = {"recall": recall, "precision": precision, "f1": f1}
    return {
        "n": n,
        "accuracy": right / n,
        "accuracy_interval": list(wilson(right, n)),
        "top5": float(top_k_accuracy_score(labels, probabilities, k=5, labels=numbers)) if classes > 5 else None,
        "balanced_accuracy": float(np.nanmean(recall)),
        "macro_f1": float(np.nanmean(f1[truth > 0])),
        "calibration_error": calibration_error(probabilities, labels),
        "log_loss": float(-np.log(np.maximum(chosen, SMALLEST)).mean()),  # scikit-learn's stops at 1e-7 in float32
        "confusion": table.tolist(),
        "classes": [
            {"name": name, "n": int(truth[index])}
            | {share: None if np.isnan(values[index]) else float(values[index]) for share, values in shares.items()}
            for index, name in enumerate(class_names)
        ],
    }
