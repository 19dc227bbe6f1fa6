"""One page about a study: charts, tables, pictures and how the numbers were made, in one file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_report"]


def write_report(places: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write report.html, and its charts and tables as files under figures/, about a study or any finished runs.

    places   a study's folder, or folders of runs
    out      the folder to write to; a study's own folder if not given, and `report` for loose runs

    Returns the path of the page.
    """
    from softbias.study.report.page import make_report

    given = [places] if isinstance(places, str | Path) else list(places)
    return make_report([Path(place) for place in given], None if out is None else Path(out))
