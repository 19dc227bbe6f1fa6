"""`softbias report`: the page about a study, or about any finished runs, made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, flag("RUNS…", "A study's folder, or folders of runs.")],
    /,
    out: Annotated[
        Path | None, flag("FOLDER", "Where to write; a study's own folder if not given, and `report` for loose runs.")
    ] = None,
) -> None:
    """Write report.html about finished runs, with its charts as CSV and PNG and its tables as LaTeX under figures/."""
    if not runs:
        raise SoftbiasError("softbias report needs a study's folder or folders of runs, but none was given")
    from softbias.study.report import write_report

    page = write_report(runs, out)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens offline; {page.parent / 'figures'} has its charts and tables")
