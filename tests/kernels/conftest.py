"""Triton chooses between compiler and interpreter when it is imported, for good. So the tests in `interpreted` run in a process
of their own, which `test_kernels.py` starts, and are not collected otherwise."""

from __future__ import annotations

import os

import pytest

from softbias.kernels.launching import PLANS

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]


@pytest.fixture
def new_plans() -> None:
    """Launches are planned anew: nothing is compiled yet."""
    for plan in PLANS:
        plan.cache_clear()
