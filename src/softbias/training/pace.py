"""How many steps fit into the time that a user gave: planned before the first step, and corrected on the way.

    total = steps_within(plan, minutes)                      a few steps are measured on a copy of the model
    total = step + time left / seconds per step              at some steps of the run, see CORRECTIONS

A machine may be busy while the first steps are measured and free afterwards, or the other way round. The learning rate is a
function of step and total, so it ends with the time in both cases. The loop writes a correction into a checkpoint at once, so a
run that is killed afterwards continues with it.
"""

from __future__ import annotations

import copy
import math
import time
from typing import TYPE_CHECKING

import torch

from softbias.regularizers.attach import attached
from softbias.terminal import counted
from softbias.training.acceleration import agreed
from softbias.training.optim import build_optimizer
from softbias.training.step import supports_cuda_graph

if TYPE_CHECKING:
    from softbias.training.checkpoint import State
    from softbias.training.display import Display
    from softbias.training.plan import TrainingPlan

CORRECTIONS = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)  # shares of the planned steps after which the plan is corrected
FIRST = 8  # before these shares it is corrected after 8, 16, 32, … steps: the plan itself may be far too long
SLACK = 0.9  # of the time is planned at first: evaluations and checkpoints take the rest
MEASURED = 0.03  # of the time may pass while the first steps are measured
LEAST = 3  # steps before the first correction: the first step warms up
STEPS = 12  # that are measured at most
NOTABLE = 0.2  # a larger change of the number of steps is printed; the end is moved only for more steps than this share
clock = time.perf_counter


def steps_within(plan: TrainingPlan, minutes: float) -> int:
    """How many steps the time allows, as far as it is known before the first one."""
    seconds = measure_steps(plan, STEPS, MEASURED * 60 * minutes)
    typical = sorted(seconds)[len(seconds) // 3]  # the first ones only warm up
    return max(1, min(plan.batches.total_steps, int(SLACK * 60 * minutes / typical)))


def measure_steps(plan: TrainingPlan, steps: int, most: float = math.inf) -> list[float]:
    """The seconds of each of a few steps on a copy of the model; it ends after `most` seconds."""
    batches = plan.batches
    model = copy.deepcopy(plan.model)
    regularized = plan.regularized(model)
    graph = supports_cuda_graph(plan.accelerator, batches, regularized)
    take_step = plan.make_step(regularized, build_optimizer(model, plan.recipe, graph=graph), graph=graph)
    epoch = batches.epoch(0)
    seconds: list[float] = []
    for step in range(min(steps, batches.steps_per_epoch)):
        started = clock()
        with attached(regularized):
            take_step(*batches.at(step, epoch), epoch.number, plan.recipe.warmup_lr)
        if plan.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(clock() - started)
        if sum(seconds) > most:
            break
    return seconds


class Pace:
    """The time of a run, and the steps that are left in it.

    begun   when the run would have begun if it had never been stopped
    """

    def __init__(self, plan: TrainingPlan, state: State, display: Display) -> None:
        self.plan, self.state, self.display = plan, state, display
        self.begun = clock() - state.elapsed

    def correct(self) -> bool:
        """Count the time; whether the number of steps was decided anew."""
        state, accelerator = self.state, self.plan.accelerator
        due = state.minutes is not None and is_due(state.step, state.total_steps)
        if due and accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
        state.elapsed = clock() - self.begun
        if not due or state.minutes is None:
            return False
        step, seconds = state.corrected
        per_step = (state.elapsed - seconds) / (state.step - step)
        more = max(0.0, 60 * state.minutes - state.elapsed) / max(per_step, 1e-9)
        most, before = self.plan.batches.total_steps, state.total_steps
        if state.step == before and more < NOTABLE * before:  # the learning rate has come to its end
            more = 0.0
        state.total_steps = int(agreed(accelerator, max(state.step, min(most, state.step + int(more)))))
        state.corrected = (state.step, state.elapsed)
        if state.total_steps != before:
            self.display.start(state.step, state.total_steps)
        if abs(state.total_steps - before) > NOTABLE * before:
            self.display.message(f"{counted(state.total_steps, 'step')} instead of {before:,}: one takes {per_step:.2g} s now")
        return True


def is_due(step: int, total: int) -> bool:
    """Whether the plan is corrected after this number of steps.

    >>> [step for step in range(200) if is_due(step, 200)]
    [8, 16, 20, 40, 80, 120, 160, 180]
    >>> is_due(200, 200)
    True
    """
    if step == total:  # there may be time for more
        return True
    early = FIRST <= step < CORRECTIONS[0] * total and step.bit_count() == 1  # a power of two
    return early or (step >= LEAST and any(step == math.ceil(share * total) for share in CORRECTIONS))
