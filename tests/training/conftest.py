"""A set that is small enough for any test, and a training on it that takes a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softbias.data.dataset import Dataset
from softbias.runs.fit import Result, fit


def little_set(n: int = 60, classes: int = 3) -> Dataset:
    """Pictures of 32 px whose class is their brightness, two thirds of them for training."""
    generator = np.random.default_rng(0)
    labels = np.arange(n) % classes
    images = (labels[:, None, None, None] * (200 // classes) + generator.integers(0, 56, (n, 32, 32, 3))).astype(np.uint8)
    order = generator.permutation(n)
    splits = {"train": np.sort(order[: n * 2 // 3]), "test": np.sort(order[n * 2 // 3 :])}
    return Dataset("little", images, labels.astype(np.int64), tuple("abcdefg"[:classes]), splits)


@pytest.fixture(scope="session")
def little() -> Callable[..., Dataset]:
    return little_set


@pytest.fixture
def train(tmp_path) -> Callable[..., Result]:
    """`train(model, recipe, data=…, out=…, …)`: one epoch of `fit` into tmp_path / out, unless told otherwise."""

    def run(
        model: str | None = "deit_nano", recipe: str = "quick", *, data: Dataset | None = None, out: str = "run", **options: Any
    ):
        usual: dict[str, Any] = {"epochs": 1, "batch_size": 16, "device": "cpu", "page": False}
        if model is not None and ":" not in model:
            usual["model_options"] = {"patch_size": 8}
        return fit(little_set() if data is None else data, model, recipe, out=tmp_path / out, **{**usual, **options})

    return run
