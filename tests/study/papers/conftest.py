"""Sets that are not there, and sets that are pretended: what the tests of the named studies share."""

import pytest

from softbias.study import plan

from .pretended_sets import pretended


@pytest.fixture(autouse=True)
def no_sets_here(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTBIAS_DATA", str(tmp_path / "nothing"))
    monkeypatch.delenv("SOFTBIAS_DEBUG", raising=False)


@pytest.fixture
def pretend(monkeypatch):
    monkeypatch.setattr(plan, "load_once", pretended)
    monkeypatch.setattr(plan, "arm_macs", lambda *_: 1)  # models are built once, by their own test
