from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from softbias.kernels import dispatch, triton_api
from softbias.models import create_model
from softbias.training.plan import should_compile
from softbias.training.recipe import RECIPES

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, Triton may get along")


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    triton_api.works.cache_clear()
    yield
    triton_api.works.cache_clear()


@no_gpu
def test_without_a_compiler_one_warning_says_what_to_install(no_compiler, monkeypatch) -> None:
    with pytest.warns(UserWarning, match=r"without its own kernels.*: Triton needs a C compiler .*apt-get install gcc"):
        assert not triton_api.works()
    monkeypatch.setattr(dispatch, "_recent", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not again
        assert not dispatch.recent(0)


@no_gpu
@pytest.mark.filterwarnings("ignore:softbias runs without its own kernels")
def test_without_a_compiler_compile_auto_is_off_and_compile_on_is_refused(no_compiler) -> None:
    model, recipe = create_model("convit_nano", 10, 32), RECIPES["small"]
    assert not should_compile(model, replace(recipe, compile="auto"), torch.device("cuda"), 10**9, (32, 32))
    with pytest.raises(ValueError, match="compile='on' does not work here: Triton needs a C compiler"):
        should_compile(model, replace(recipe, compile="on"), torch.device("cuda"), 10**9, (32, 32))


def test_a_compiler_needs_python_s_headers(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(triton_api.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    assert not triton_api.compiler_found()
    (tmp_path / "Python.h").touch()
    assert triton_api.compiler_found()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not triton_api.compiler_found()
    (tmp_path / "clang").touch(mode=0o755)
    assert triton_api.compiler_found()
