"""Triton chooses between compiler and interpreter when it is imported, for good. So the tests in `interpreted` run in a process
of their own, which `test_kernels.py` starts, and are not collected otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from softbias.kernels.launching import forget_plans

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]


@pytest.fixture
def new_plans() -> Iterator[None]:
    """For a test that changes tiles: launches are planned anew in it, and again after it."""
    forget_plans()
    yield
    forget_plans()
