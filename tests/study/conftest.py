"""What the tests of studies share: a set of a few hundred tiny pictures, and studies of runs that take a moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softbias.study.arms import arms_from
from softbias.study.settings import study_for
from softbias.study.spec import StudySpec

from .small_studies import SHORT


@pytest.fixture(scope="session")
def image_file(tmp_path_factory) -> str:
    """120 + 60 pictures of 8 × 8 pixels; brightness tells the class."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 120), ("test", 60)):
        labels = np.arange(count) % 3
        noise = rng.integers(0, 90, (count, 8, 8, 3))
        arrays |= {f"{split}_images": (labels[:, None, None, None] * 60 + noise).astype(np.uint8), f"{split}_labels": labels}
    file = tmp_path_factory.mktemp("images") / "bright.npz"
    np.savez(file, **arrays)
    return str(file)


@pytest.fixture
def little_study(image_file):
    """A function that makes the spec of a small study."""

    def make(models: str = "deit_nano,convit_nano", **options: Any) -> StudySpec:
        given: dict[str, Any] = {"fractions": (0.5, 1), "seeds": 2, "recipe": "quick", "device": "cpu"} | options
        overrides = {**SHORT, **given.pop("overrides", {})}
        return study_for(image_file, arms_from(models), overrides=overrides, **given)

    return make
