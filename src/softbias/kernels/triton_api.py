"""All that we use of Triton, its language and its internals, and whether it can work here.

The internals were checked with Triton 3.6 (which comes with torch 2.11) and 3.9: `arg_names` and `warmup` of a kernel, the
launchers that a compiled kernel gives for a grid, the name of the interpreter's class, and the active driver.

Triton is imported when something here is first needed, because the import takes seconds.
"""

from __future__ import annotations

import shutil
import sysconfig
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from softbias import environment
from softbias.errors import in_one_line

INSTALLED = find_spec("triton") is not None
INTERPRETED = environment.variable("TRITON_INTERPRET") == "1"
ADVICE = "Triton needs a C compiler and Python's headers (on Debian: apt-get install gcc python3-dev)"
tl: Any  # by `__getattr__`
jit: Any


def __getattr__(name: str) -> Any:
    """`tl` and `jit` for the modules with Triton code. Without Triton, such as for a documentation tool, these modules can be
    imported all the same."""
    if name == "tl":
        return import_module("triton.language") if INSTALLED else SimpleNamespace(constexpr=int)
    if name == "jit":
        return import_module("triton").jit if INSTALLED else lambda function: function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def works() -> bool:
    """Whether Triton can launch kernels; if it cannot, a warning says why, once.

    To launch kernels, Triton builds small modules. Slim images of Python have no compiler, and Debian's own Python has no
    headers; there a model runs without our kernels.
    """
    return compiler_found() or driver_answers()


def compiler_found() -> bool:
    scheme = sysconfig.get_default_scheme()
    headers = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]  # as Triton looks for them
    compiler = environment.variable("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and (Path(headers) / "Python.h").is_file()


def driver_answers() -> bool:
    """Whether Triton works without a compiler: its modules may have been built before, or may no longer be needed."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # whatever a driver, a compiler or a linker raises
        warnings.warn(
            f"softbias runs without its own kernels, more slowly: {ADVICE}; Triton reports: {in_one_line(error)}", stacklevel=2
        )
        return False
    return True


def is_interpreted(kernel: Any) -> bool:
    """Whether the kernel runs in Triton's interpreter, which must have been chosen before Triton was imported."""
    return type(kernel).__name__ == "InterpretedFunction"


def compiled_launcher(
    kernel: Any, types: tuple[Any, ...], numbers: tuple[float, ...], grid: tuple[int, ...], options: dict[str, Any]
) -> Callable[..., None]:
    """The kernel, compiled for tensors of these types at addresses divisible by 16, as a function that only launches it. Its
    arguments are the tensors, the numbers and the constants, in the kernel's order."""
    launcher: Callable[..., None] = kernel.warmup(*types, *numbers, grid=grid, **options)[(*grid, 1, 1)[:3]]
    return launcher
