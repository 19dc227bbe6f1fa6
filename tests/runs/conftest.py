"""The small set and the short training of tests/training, for tests of runs."""

from ..training.conftest import little, train

__all__ = ["little", "train"]
