"""The score to beat: a logistic regression on raw pixels, in seconds, on the same split."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.data.dataset import Dataset
from softbias.training.scores import wilson

MOST = 20_000  # training pictures; beyond that it takes too long to be worth it
SIDE = 32  # pictures are averaged down to this
AT_ONCE = 64  # pictures as numbers
STRENGTH = 0.03  # C of scikit-learn
KNOWN: dict[tuple[int, bytes, bytes], tuple[weakref.ref[Any], dict[str, Any]]] = {}  # of this process: runs share their splits


def pixel_features(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pixels in [0, 1], averaged down to 32 × 32; one channel where the pictures are gray.  # (n, features)"""
    factor = max(1, -(-max(images.shape[1:3]) // SIDE))
    rows, columns = (min(factor, side) for side in images.shape[1:3])  # of a strip, its short side may be less
    height, width = images.shape[1] // rows, images.shape[2] // columns
    small, gray = np.empty((len(images), height, width, 3), np.float32), True
    for start in range(0, len(images), AT_ONCE):  # as numbers, all at once would take four times their memory, twice
        part = images[start : start + AT_ONCE]
        pixels = part[:, : height * rows, : width * columns].astype(np.float32) / 255
        small[start : start + AT_ONCE] = pixels.reshape(len(part), height, rows, width, columns, 3).mean((2, 4))
        gray = gray and bool((part == part[..., :1]).all())
    return (small[..., :1] if gray else small).reshape(len(images), -1)


def can_be_fitted(data: Dataset, train: NDArray[np.int64]) -> bool:
    """Whether a logistic regression takes a minute at most, and has something to tell apart."""
    few = len(train) <= MOST and len(train) * len(data.class_names) <= 2_000_000
    return few and len(np.unique(data.labels[train])) > 1


def pixel_baseline(data: Dataset, train: NDArray[np.int64], test: NDArray[np.int64]) -> dict[str, Any] | None:
    """Test accuracy of the regression, or None on sets that are too large for it, or of one class."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if not can_be_fitted(data, train):
        return None
    key = id(data.images), train.tobytes(), test.tobytes()
    known = KNOWN.get(key)
    if known is not None and known[0]() is data.images:
        return known[1]
    model = LogisticRegression(C=STRENGTH, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hundred iterations are close enough for a comparison
        model.fit(pixel_features(data.images[train]), data.labels[train])
    right = int((model.predict(pixel_features(data.images[test])) == data.labels[test]).sum())
    found = {
        "name": f"logistic regression on raw pixels (C={STRENGTH})",
        "accuracy": right / len(test),
        "accuracy_interval": list(wilson(right, len(test))),
    }
    KNOWN[key] = weakref.ref(data.images), found
    return found
