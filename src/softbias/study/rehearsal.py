"""How long a run will take: a few steps on throw-away weights, and what comes beside the steps.

    seconds = steps · pace + pictures to evaluate · pace / (3 · batch size) + baseline + 1

The pace is the mean over steps, in as many processes at once as the study will have: they share cores, caches and memory with
each other and with whatever else runs there (two of them beside a third one on two cores took 1.5 to 2 times as long a step as
one did). Where the machine becomes busier or quieter later, `progress` corrects what is left.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.study.worker import forget_earlier_runs, load_once

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from softbias.data.dataset import Dataset

STEPS, WARM_UP, LONGEST = 20, 3, 15.0  # steps that are made, those of them that only warm up, and the seconds they may take
FORWARD = 1 / 3  # of a training step is the forward pass
EACH = 1.0  # seconds of every run for building, scores and files, measured with nano models
REGRESSION = 4e-8  # seconds per picture, pixel and class of the baseline: 3.2 to 4.5e-8 measured on one core


def rehearse(spec: RunSpec, device: str, threads: int | None) -> float:
    """Seconds per step, in this process."""
    import torch

    from softbias.runs.prepare import accelerate_for, make_plan, split_up
    from softbias.training.checkpoint import Keep
    from softbias.training.loop import rehearsed

    spec = replace(spec, source=None)  # the run it starts from may not be there yet, and its speed is the same
    pictures = load_once(spec.data, spec.data_options)
    forget_earlier_runs()
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            accelerator, directory = accelerate_for(spec.recipe, device), Run(Path(folder))
            plan = make_plan(spec, pictures, split_up(pictures, spec), accelerator, directory, Keep())
            seconds = rehearsed(plan, STEPS, LONGEST)
            kept = seconds[WARM_UP:] or seconds[-1:]
            return sum(kept) / len(kept)
    finally:
        torch.set_num_threads(before)


def seconds_of(spec: RunSpec, pictures: Dataset, pace: float, *, baseline: bool) -> float:
    """A whole run, from the seconds that its steps take."""
    from softbias.runs.prepare import split_up
    from softbias.training.loop import EVALUATIONS
    from softbias.training.objectives import find_objective

    split = split_up(pictures, spec)
    count = len(split.train)
    batch = min(spec.recipe.batch_size, count)
    per_epoch = max(1, count // batch)
    steps = spec.recipe.steps or max(1, round(spec.recipe.epochs * per_epoch))
    evaluated = 0 if split.test is None else len(split.test)
    if split.val is not None:
        evaluated += len(split.val) * min(math.ceil(steps / per_epoch), EVALUATIONS)
    seconds = steps * pace + evaluated * FORWARD * pace / batch + EACH
    if baseline and split.test is not None and not find_objective(spec.recipe.objective).pretext:
        seconds += regression_seconds(pictures, split.train)
    return seconds


def regression_seconds(pictures: Dataset, train: NDArray[np.int64]) -> float:
    """The baseline's, which leaves large sets out."""
    from softbias.training.linear import can_be_fitted, pixel_features

    if not can_be_fitted(pictures, train):
        return 0.0
    return REGRESSION * len(train) * pixel_features(pictures.images[:8]).shape[1] * len(pictures.class_names)
