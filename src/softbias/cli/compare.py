"""`softbias compare`, `softbias study` and `softbias demo`: studies from the command line, from a file, and ready-made."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from softbias.cli.parsing import NO_LINE, Line, flag
from softbias.cli.study_options import CompareOptions, ExecutionOptions, run
from softbias.errors import SoftbiasError


def compare(options: Annotated[CompareOptions, arg(name="")], *, line: Line = NO_LINE) -> int:
    """Compare models fairly: same data, splits, seeds, recipe and budget for all, and a report with intervals.

    Every combination of model, data, fraction and seed is a run. Finished runs are reused: stop at any time and give the same
    command again. A model, a fraction, a seed or a set can be added later; then only the new runs are done. A run that fails
    does not stop the others; the exit status is then 1.

      softbias compare my_pictures --models deit_nano,convit_nano,resnet_nano --fractions 0.1,1 --seeds 3
      softbias compare cifar10 --models 'deit_tiny,deit_tiny@regularize=distance:layer=2,weight=0.01' --jobs 2
    """
    if not options.data:
        raise SoftbiasError(
            "which pictures? softbias compare DATA --models A,B, with a folder, a CSV file, arrays or a named set"
        )
    if not options.models:
        raise SoftbiasError("which models? softbias compare DATA --models deit_nano,convit_nano; softbias models lists them")
    from softbias.study.arms import arms_from
    from softbias.study.compare import study_for
    from softbias.study.spec import parse_numbers, parse_seeds

    arms, fractions = arms_from(options.models), parse_numbers(options.fractions, "--fractions")
    seeds = parse_seeds(options.seeds)
    asked = {"img_size": options.img_size, "data_dir": None if options.data_dir is None else str(options.data_dir)}
    data_options = {name: value for name, value in asked.items() if value is not None}
    spec = study_for(
        options.data, arms, fractions=fractions, seeds=seeds, recipe=options.recipe, overrides=line.overrides,
        budget=options.budget, tune=options.tune, name=options.name, out=options.out, store=options.store,
        data_options=data_options, device=options.device,
    )  # fmt: skip
    return run(spec, options)


@dataclass(frozen=True)
class StudyOptions(ExecutionOptions):
    file: Annotated[Path | None, Positional, flag("FILE.yaml", "A study, or the folder of one.")] = None


def study(options: Annotated[StudyOptions, arg(name="")]) -> int:
    """Run a study that a file describes (docs/studies.md), or continue one by its folder.

    Finished runs are reused; the file may be edited and run again.

      softbias study mine.yaml --jobs 2
      softbias study studies/fashion
    """
    from softbias.study.spec import read_study

    if options.file is None:
        raise SoftbiasError("which study? softbias study FILE.yaml, or the folder of a study")
    spec = read_study(options.file)
    if options.file.is_dir() and options.out is None:
        options = replace(options, out=options.file)
    return run(spec, options)


def demo(out: Path = Path("demo"), picture: bool = False) -> int:
    """Compare three nano models on a small embedded set, in a few minutes on two cores, and write a report.

    Stop at any time; the same command continues.

    Args:
        out: Folder of the study; its page is report.html in there.
        picture: Instead, train one model and draw where its heads look, before and after.
    """
    from softbias.demo import JOBS, demo_study, draw_attention

    if picture:
        print(f"where its heads look, before and after training: {draw_attention(out)}")
        return 0
    return run(demo_study(), ExecutionOptions(out=out, jobs=min(JOBS, os.cpu_count() or 1), device="cpu"))
