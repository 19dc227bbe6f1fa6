"""A named study from start to end: its runs, the measurements on them, and the report with both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from softbias import environment
from softbias.study.compare import Comparison, make_report, run_study
from softbias.study.papers.measuring import write_list
from softbias.study.papers.named import Measured, NamedStudy, Scale
from softbias.study.progress import StudyDisplay
from softbias.study.spec import StudySpec


def reproducer(named: NamedStudy, scale: Scale) -> Callable[..., Comparison]:
    """`run_study` for a named study: what it measures on the finished runs comes before the report is written."""

    def perform(
        spec: StudySpec, out: str | Path | None = None, *, report: bool = True, dry_run: bool = False, device: str = "auto",
        display: StudyDisplay | None = None, **settings: Any,
    ) -> Comparison:  # fmt: skip
        display = display or StudyDisplay()
        for note in (*spec.warnings, *spec.notes):
            display.message(note)
        done = run_study(spec, out, report=False, dry_run=dry_run, device=device, display=display, **settings)
        if dry_run or not len(done.runs):
            return done
        if named.after is not None and done.failed:
            display.message("some runs failed, so nothing is measured on the others; the same command tries them again")
        elif named.after is not None:
            measure(named, scale, done.path, device, display)
        return replace(done, report=make_report(done.path, display) if report else None)

    return perform


def measure(named: NamedStudy, scale: Scale, folder: Path, device: str, display: StudyDisplay) -> list[Measured]:
    """What the study measures on its finished runs; the runs are what took long, so an error here must not hide them."""
    from softbias.environment import find_device

    assert named.after is not None
    try:
        measured = named.after(folder, scale, find_device(device))
    except Exception as error:
        if environment.variable("SOFTBIAS_DEBUG"):
            raise
        display.message(
            f"nothing could be measured on the runs ({type(error).__name__}: {error}); the same command tries it again"
        )
        return []
    write_list(measured, folder)
    for one in measured:
        display.message(f"{one.title}: {', '.join(str(path) for path in (*one.figures, *one.tables))}")
    return measured
