"""`softbias report` writes the page about a run, or about many."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from softbias.bounds import FilePath
from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError
from softbias.terminal import echo


def report(
    runs: Annotated[
        tuple[FilePath, ...], Positional, flag("RUNS…", "A run, a study's folder or packed file, or folders of runs.")
    ],
    /,
    out: Annotated[
        FilePath | None,
        flag("FOLDER", "Where to write; the run's or study's own folder if not given, and `report` for other runs."),
    ] = None,
) -> None:
    """Write report.html: the scores, classes and mistakes of one run, or a comparison of many runs or of a study.

    A comparison also writes its charts (CSV, PNG) and its tables (LaTeX) to figures/.
    """
    if not runs:
        raise SoftbiasError("softbias report needs a run, a study's folder or folders of runs, but none was given")
    from softbias.runs.run import Run

    if len(runs) == 1 and out is None and Run(runs[0]).begun:
        page = Run(runs[0]).page()
        echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens offline")
        return
    from softbias.study.archive import study_folder
    from softbias.study.report import write_report

    with ExitStack() as stack:
        folders = [stack.enter_context(study_folder(path)) for path in runs]
        out = Path("report") if out is None and folders != [*runs] else out
        page = write_report(folders, out, message=lambda text: echo(f"softbias: {text}", file=sys.stderr))
    echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens offline; {page.parent / 'figures'} has its charts and tables")
