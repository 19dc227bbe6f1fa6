"""Triton's language, or, where it is not installed, enough for the modules with Triton code to be imported all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

tl: Any
jit: Any
try:
    import triton.language as tl  # type: ignore[no-redef]
    from triton import jit  # type: ignore[no-redef]
except ImportError:  # such as a documentation tool on a machine without a GPU
    tl = SimpleNamespace(constexpr=int)

    def jit(function: Any) -> Any:
        return function


__all__ = ["jit", "tl"]
