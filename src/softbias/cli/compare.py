"""`softbias compare`: which model is better, by how much, at how much data."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import arg

from softbias.cli.parsing import NO_LINE, Line
from softbias.cli.study_options import CompareOptions, run
from softbias.errors import SoftbiasError


def compare(options: Annotated[CompareOptions, arg(name="")], *, line: Line = NO_LINE) -> int:
    """Compare models fairly: same data, splits, seeds, recipe and budget for all, and a report with intervals.

    Every combination of model, data, fraction and seed is a run. Finished runs are reused: stop at any time and give the same
    command again; or add a model, a fraction, a seed or a set, and only what is new is run. The exit status is 1 where a run
    failed, which does not stop the others.

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
    from softbias.study.compare import base_recipe, study_for
    from softbias.study.spec import parse_numbers, parse_seeds

    arms, fractions = arms_from(options.models), parse_numbers(options.fractions, "--fractions")
    seeds = parse_seeds(options.seeds)
    asked = {"img_size": options.img_size, "data_dir": None if options.data_dir is None else str(options.data_dir)}
    data_options = {name: value for name, value in asked.items() if value is not None}
    base = base_recipe(options.data, options.recipe, options.name, options.out, data_options, options.device)
    spec = study_for(
        options.data, arms, fractions=fractions, seeds=seeds, recipe=base.with_overrides(line.overrides),
        budget=options.budget, tune=options.tune, name=options.name, out=options.out, store=options.store,
        data_options=data_options, device=options.device,
    )  # fmt: skip
    return run(spec, options)
