"""Whether Triton can work here: to start kernels it builds small modules, with a C compiler and Python's headers.

Slim images of Python have no compiler, and Debian's own Python has no headers. There a model runs without our kernels.
"""

from __future__ import annotations

import shutil
import sysconfig
import warnings
from functools import cache
from pathlib import Path

from softbias import environment
from softbias.errors import in_one_line

ADVICE = "Triton needs a C compiler and Python's headers (on Debian: apt-get install gcc python3-dev)"


@cache
def works() -> bool:
    """Whether there is a compiler with headers, or Triton gets along without; else a warning, once."""
    return compiler_found() or triton_gets_along()


def compiler_found() -> bool:
    scheme = sysconfig.get_default_scheme()
    headers = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]  # as Triton looks for them
    compiler = environment.variable("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and (Path(headers) / "Python.h").is_file()


def triton_gets_along() -> bool:
    """Its modules may have been built before, or be no longer needed."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:
        said = f"softbias runs without its own kernels, more slowly: {ADVICE}; it says: {in_one_line(error)}"
        warnings.warn(said, stacklevel=2)
        return False
    return True
