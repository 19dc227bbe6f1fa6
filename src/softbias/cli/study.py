"""`softbias study`: a study from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from softbias.cli.parsing import flag
from softbias.cli.study_options import ExecutionOptions, run
from softbias.errors import SoftbiasError


@dataclass(frozen=True)
class StudyOptions(ExecutionOptions):
    file: Annotated[Path | None, Positional, flag("FILE.yaml", "A study, or the folder of one.")] = None


def study(options: Annotated[StudyOptions, arg(name="")]) -> int:
    """Run a study that a file describes (docs/studies.md), or continue one by its folder.

    What is finished is reused; the file may be edited and run again.

      softbias study mine.yaml --jobs 2
      softbias study studies/fashion
    """
    from dataclasses import replace

    from softbias.study.spec import read_study

    if options.file is None:
        raise SoftbiasError("which study? softbias study FILE.yaml, or the folder of a study")
    spec = read_study(options.file)
    if options.file.is_dir() and options.out is None:
        options = replace(options, out=options.file)
    return run(spec, options)
