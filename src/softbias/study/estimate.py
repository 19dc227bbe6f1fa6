"""How long the runs of a study will take: a few steps of every arm are timed on throw-away weights.

    seconds of a run = steps · s + images to evaluate · s / (3 · batch size) + baseline + 1,     s = seconds per step

s is the mean over steps, timed in as many processes at once as the study will have, because they share cores, caches and
memory. While the study runs, `progress` corrects what is left.
"""

from __future__ import annotations

import heapq
import math
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softbias.data.dataset import Dataset
from softbias.pages.format import estimated_duration
from softbias.runs.prepare import make_plan, make_split
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start
from softbias.runs.store import State, Store
from softbias.study.plan import PlannedRun, in_order, load_once
from softbias.training.acceleration import make_accelerator
from softbias.training.checkpoint import Keep
from softbias.training.linear import can_be_fitted, pixel_features
from softbias.training.objectives import find_objective
from softbias.training.pace import measure_steps
from softbias.training.plan import LoopSettings

STEPS, WARM_UP, LONGEST = 20, 3, 15.0  # steps to time, those of them that only warm up, and the seconds that they may take
FORWARD = 1 / 3  # the forward pass, as a share of a training step
EACH = 1.0  # seconds per run for building, scores and files
REGRESSION = 4e-8  # seconds of the baseline per image, pixel and class on one core
SecondsPerStep = Callable[[PlannedRun], float]


@dataclass(frozen=True)
class StudyPlan:
    """What there is to do.

    seconds    expected for each missing run, by id
    """

    runs: tuple[PlannedRun, ...]
    missing: tuple[PlannedRun, ...]
    states: Mapping[str, str]
    seconds: Mapping[str, float]

    def describe(self, jobs: int | None) -> str:
        """One line: how many runs there are, and how long they will take. jobs=None: their number at a time is unknown."""
        count = len(self.runs)
        text = f"{count} run{'s' * (count != 1)}: {count - len(self.missing)} finished, {len(self.missing)} to do"
        stopped = sum(self.states[run.id] == "stopped" for run in self.missing)
        running = sum(self.states[run.id] == "running" for run in self.missing)
        text += f" ({stopped} of them begun)" if stopped else ""
        text += f" ({running} of them under way in another process)" if running else ""
        if self.seconds:
            text += f", about {estimated_duration(makespan(self.missing, self.seconds, jobs or 1))}"
            text += " one after another" if jobs is None else f" with {jobs} at a time" if jobs > 1 else ""
        return text


def plan_study(
    runs: Sequence[PlannedRun],
    store: Store,
    seconds_per_step: Callable[[PlannedRun, int], float] | None,
    *,
    jobs: int = 1,
    baseline: bool = True,
    message: Callable[[str], None] = lambda text: None,
) -> StudyPlan:
    """What is finished, what is missing, and how long that takes.

    seconds_per_step   (run, number at a time) -> the time of a training step; None: the time is not estimated
    message            is called before steps are timed, which may take a while
    """
    states = {run.id: checked_state(run, store, message) for run in runs}
    missing = [run for run in runs if states[run.id] != "finished"]
    finished = [run for run in runs if states[run.id] == "finished"]
    at_once = max(1, min(jobs, len(missing)))
    if seconds_per_step is None:
        return StudyPlan(tuple(runs), tuple(missing), states, {})
    seconds = estimate_time(
        finished, missing, store, lambda run: seconds_per_step(run, at_once), at_once if baseline else 0, message
    )
    return StudyPlan(tuple(runs), tuple(missing), states, seconds)


def checked_state(run: PlannedRun, store: Store, message: Callable[[str], None]) -> State:
    """The state of a run; one whose model or scores are damaged is not finished, and what else is lost is said."""
    state = store.state(run.spec)
    needed, others = store.lost(run.spec) if state == "finished" else ([], [])
    if state == "stopped" and Run(store.folder(run.spec)).finished:
        message(f"{run.label}: config.yaml, summary.json or the model is lost or damaged, so the run is trained again")
    if needed:
        message(f"{run.label}: {', '.join(needed)} is lost or damaged, so the run is trained again")
    elif others:
        again = shlex.join(["softbias", "fit", "--resume", "--out", str(store.folder(run.spec))])
        message(f"{run.label}: {', '.join(others)} is lost or damaged; {again} makes it again")
    return "stopped" if needed else state


def estimate_time(
    finished: Sequence[PlannedRun],
    missing: Sequence[PlannedRun],
    store: Store,
    seconds_per_step: SecondsPerStep,
    baselines: int,
    message: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """Seconds of every missing run, at the speed of finished runs of its arm, or else of steps that are timed.

    baselines   how often the regression on pixels is fitted for a split: once in every process
    """
    speed: dict[tuple[str, str], float] = {}  # (arm, data) -> seconds per step
    for run in finished:
        summary = Run(store.folder(run.spec)).summary()
        speed[run.arm, run.spec.data] = summary["seconds"] / summary["steps"]
    if any((run.arm, run.spec.data) not in speed for run in missing):
        message("timing a few steps of every arm")
    for run in sorted(missing, key=lambda run: -run.spec.amount):  # a small part has few steps per epoch
        key = run.arm, run.spec.data
        if key not in speed:
            speed[key] = seconds_per_step(run)
    fitted: Counter[Any] = Counter()
    found = {}
    for run in missing:
        spec = run.spec
        split = spec.data, spec.amount, spec.seed
        fitted[split] += 1
        images = load_once(spec.data, spec.data_options)
        found[run.id] = run_seconds(spec, images, speed[run.arm, spec.data], baseline=fitted[split] <= baselines)
    return found


def makespan(runs: Sequence[PlannedRun], seconds: Mapping[str, float], jobs: int) -> float:
    """The time that the runs take, `jobs` at a time; each begins when a process is free and the run that it needs has ended."""
    free_at, ends = [0.0] * max(1, min(jobs, len(runs))), dict[str, float]()
    for run in in_order(runs):
        free = heapq.heappop(free_at)
        ends[run.id] = max(free, ends.get(run.needs or "", 0.0)) + seconds[run.id]
        heapq.heappush(free_at, ends[run.id])
    return max(ends.values(), default=0.0)


def time_steps(spec: RunSpec, device: str, threads: int | None) -> float:
    """Seconds per training step, timed in this process."""
    spec = replace(spec, start=Start())  # the run that it starts from may not be finished, and the speed is the same
    images = load_once(spec.data, spec.data_options)
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            accelerator, directory = make_accelerator(spec.recipe, device), Run(Path(folder))
            plan = make_plan(spec, images, make_split(images, spec), accelerator, directory, Keep())
            seconds = measure_steps(plan, STEPS, LONGEST)
            kept = seconds[WARM_UP:] or seconds[-1:]
            return sum(kept) / len(kept)
    finally:
        torch.set_num_threads(before)


def run_seconds(spec: RunSpec, images: Dataset, per_step: float, *, baseline: bool) -> float:
    """Seconds of a whole run, from the seconds of a step."""
    split = make_split(images, spec)
    count = len(split.train)
    batch = min(spec.recipe.batch_size, count)
    per_epoch = max(1, count // batch)
    steps = spec.recipe.steps or max(1, round(spec.recipe.epochs * per_epoch))
    evaluated = 0 if split.test is None else len(split.test)
    if split.val is not None:
        evaluated += len(split.val) * min(math.ceil(steps / per_epoch), LoopSettings().evaluations)
    seconds = steps * per_step + evaluated * FORWARD * per_step / batch + EACH
    if baseline and split.test is not None and not find_objective(spec.recipe.objective).pretext:
        seconds += baseline_seconds(images, split.train)
    return seconds


def baseline_seconds(images: Dataset, train: NDArray[np.int64]) -> float:
    """Seconds of the regression on pixels, which is left out for large sets."""
    if not can_be_fitted(images, train):
        return 0.0
    features: int = pixel_features(images.images[:8]).shape[1]
    return REGRESSION * len(train) * features * len(images.class_names)
