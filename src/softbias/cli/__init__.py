"""The command line. One module per command; each imports what it needs when it runs, so that `--help` is quick.

A mistake of the user's is a ValueError and becomes one clear line with exit status 2; SOFTBIAS_DEBUG=1 shows the traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from softbias._version import __version__

DESCRIPTION = """Vision transformers that learn from small image sets.

softbias COMMAND --help explains a command; softbias --version prints the version."""


def commands() -> dict[str, Callable[..., Any]]:
    from softbias.cli.bench import bench
    from softbias.cli.demo import demo
    from softbias.cli.models import models

    return {"demo": demo, "models": models, "bench": bench}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in (["--version"], ["-V"]):
        print(f"softbias {__version__}")
        return 0
    from tyro.extras import subcommand_cli_from_dict

    try:
        subcommand_cli_from_dict(commands(), prog="softbias", description=DESCRIPTION, args=arguments or ["--help"])
    except (ValueError, FileNotFoundError) as error:
        if os.environ.get("SOFTBIAS_DEBUG"):
            raise
        print(f"softbias: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("softbias: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away, as in `softbias models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0

