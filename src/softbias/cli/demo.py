"""`softbias demo`."""

from __future__ import annotations

from pathlib import Path


def demo(out: Path = Path("demo")) -> None:
    """Show a nano model at work: it learns a small set in a minute, and a picture shows where its heads look.

    Args:
        out: Folder for the picture and the saved model.
    """
    from softbias.demo import run

    run(out)
