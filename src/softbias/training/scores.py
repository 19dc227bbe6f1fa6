"""Scores of predictions, with the interval that the number of pictures allows.

Shapes: n pictures, K classes.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float32]
Labels = NDArray[np.int64]


def wilson(right: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share: never outside [0, 1], and right also near its ends.

    >>> [round(float(edge), 3) for edge in wilson(90, 100)]
    [0.826, 0.945]

    `right` is a count, or its mean over several runs.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = right / n
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return (float(center - half) if right else 0.0), (float(center + half) if right < n else 1.0)  # exact at the ends


def confusion(labels: Labels, predicted: Labels, classes: int) -> NDArray[np.int64]:
    """Rows: truth, columns: prediction.  # (K, K)"""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def calibration_error(probabilities: Probabilities, labels: Labels, bins: int = 15) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy over bins of equal width."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        abs(right[place == b].mean() - confidence[place == b].mean()) * (place == b).sum()
        for b in range(bins)
        if (place == b).any()
    ]
    return float(sum(gaps) / len(labels))


def score(probabilities: Probabilities, labels: Labels, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy with its interval, top-5, balanced accuracy, macro-F1, calibration, and a row per class."""
    n, classes = probabilities.shape
    predicted = probabilities.argmax(1)
    table = confusion(labels, predicted, classes)
    right, truth, guessed = np.diag(table), table.sum(1), table.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall, precision = right / truth, right / guessed
        f1 = 2 * right / (truth + guessed)
    low, high = wilson(int(right.sum()), n)
    top = np.argsort(-probabilities, axis=1)[:, : min(5, classes)]
    scores: dict[str, Any] = {
        "n": n,
        "accuracy": float(right.sum() / n),
        "accuracy_interval": [float(low), float(high)],
        "top5": float((top == labels[:, None]).any(1).mean()) if classes > 5 else None,
        "balanced_accuracy": float(np.nanmean(recall)),
        "macro_f1": float(np.nanmean(f1[truth > 0])),
        "calibration_error": calibration_error(probabilities, labels),
        "log_loss": float(-np.log(np.maximum(probabilities[np.arange(n), labels], 1e-12)).mean()),
        "confusion": table.tolist(),
    }
    scores["classes"] = [
        {
            "name": name,
            "n": int(truth[index]),
            "recall": None if truth[index] == 0 else float(recall[index]),
            "precision": None if guessed[index] == 0 else float(precision[index]),
            "f1": None if truth[index] + guessed[index] == 0 else float(f1[index]),
        }
        for index, name in enumerate(class_names)
    ]
    return scores
