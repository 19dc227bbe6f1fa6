"""`softbias demo`."""

from __future__ import annotations

import os
from pathlib import Path


def demo(out: Path = Path("demo"), picture: bool = False) -> int:
    """Compare three nano models on a small embedded set, in a few minutes on two cores, and write a report.

    Stop at any time; the same command continues.

    Args:
        out: Folder of the study; its page is report.html in there.
        picture: Instead, train one model and draw where its heads look, before and after.
    """
    from softbias.demo import JOBS, demo_study, run_picture

    if picture:
        print(f"where its heads look, before and after: {run_picture(out)}")
        return 0
    from softbias.cli.study_options import ExecutionOptions, run

    return run(demo_study(), ExecutionOptions(out=out, jobs=min(JOBS, os.cpu_count() or 1), device="cpu"))
