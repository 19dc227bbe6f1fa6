"""A run with a time ends with it, whatever the machine does meanwhile, and continues with the plan that it had."""

from __future__ import annotations

import itertools
import math
import signal
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from softbias.training import checkpoint, pace
from softbias.training.display import Display
from softbias.training.loop import StoppedError
from softbias.training.pace import CORRECTIONS, Pace, is_due, steps_within
from softbias.training.plan import LoopSettings

MINUTES, MOST = 1.0, 10_000


def simulate(monkeypatch, cost, planned: int) -> tuple[int, float]:
    """Steps and seconds of a run of one minute, if step i takes cost(i) seconds."""
    now = [0.0]
    monkeypatch.setattr(pace, "clock", lambda: now[0])
    accelerator = SimpleNamespace(device=SimpleNamespace(type="cpu"), num_processes=1)
    plan = SimpleNamespace(accelerator=accelerator, batches=SimpleNamespace(total_steps=MOST))
    state = SimpleNamespace(step=0, elapsed=0.0, minutes=MINUTES, total_steps=planned, corrected=(0, 0.0))
    timed = Pace(plan, state, Display())
    while state.step < state.total_steps:
        now[0] += cost(state.step, now[0])
        state.step += 1
        timed.correct()
    return state.step, state.elapsed


@pytest.mark.parametrize("planned", [1, 3, 20, 54, 300, 5000])
def test_a_wrong_plan_is_corrected_so_that_training_takes_its_time(monkeypatch, planned):
    steps, seconds = simulate(monkeypatch, lambda step, now: 1.0, planned)
    assert 54 <= steps <= 61 and 54 <= seconds <= 61


def test_load_at_the_start_does_not_cut_training_to_a_fraction(monkeypatch):
    def cost(step, now):
        return 8.0 if now < 15 else 0.5

    planned = int(0.9 * 60 / 8)  # as it is measured before the first step
    steps, seconds = simulate(monkeypatch, cost, planned)
    assert steps > 0.6 * 120 and 50 <= seconds <= 66


@pytest.mark.parametrize("begins", [3, 20, 40])
def test_load_that_begins_later_shortens_training_in_time(monkeypatch, begins):
    steps, seconds = simulate(monkeypatch, lambda step, now: 0.5 if now < begins else 2.0, 108)
    assert seconds <= 1.2 * 60 and steps >= 0.9 * (2 * begins + (60 - begins) / 2)


def test_the_plan_never_exceeds_the_epochs_of_the_recipe(monkeypatch):
    assert simulate(monkeypatch, lambda step, now: 1e-4, 5000)[0] == MOST


def test_a_plan_is_corrected_a_few_times():
    assert sum(is_due(step, 60) for step in range(60)) == len(CORRECTIONS) and is_due(1, 1)
    assert sum(is_due(step, 5000) for step in range(5000)) == len(CORRECTIONS) + 6


def test_measuring_takes_a_small_share_of_the_time(monkeypatch):
    now = itertools.count(0, 2.0)
    monkeypatch.setattr(pace, "measure_steps", lambda plan, steps, most: [2.0] * math.ceil(most / 2.0))
    monkeypatch.setattr(pace, "clock", lambda: next(now))
    plan = SimpleNamespace(batches=SimpleNamespace(total_steps=MOST))
    assert steps_within(plan, 10.0) == 270


class Stopping(Display):
    """Raises the signal of Ctrl-C after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, step, row):
        if step == self.after:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("after", [3, 23])
def test_a_stopped_run_continues_with_the_plan_that_it_had(train, monkeypatch, after):
    now, correct = [0.0], Pace.correct

    def half_a_second_later(self):
        now[0] += 0.5
        return correct(self)

    monkeypatch.setattr(pace, "clock", lambda: now[0])
    monkeypatch.setattr(Pace, "correct", half_a_second_later)
    monkeypatch.setattr("softbias.training.plan.steps_within", lambda plan, minutes: 20)
    options = {"epochs": 40, "settings": LoopSettings(look_every=1), "baseline": False, "trackers": ()}
    whole = train(out="whole", minutes=0.25, **options)
    assert whole.summary["steps"] == 30, "a quarter of a minute is longer than twenty steps of half a second"
    with pytest.raises(StoppedError):
        train(out="cut", minutes=0.25, display=Stopping(after), **options)
    last = checkpoint.listed(whole.path.parent / "cut" / "checkpoints")[-1]
    about = checkpoint.read(last, checkpoint.TrainingMeta)[1]
    assert about["minutes"] == 0.25 and about["elapsed"] == 0.5 * after and about["step"] == after
    resumed = train(out="cut", resume=True, **options)
    assert resumed.summary["steps"] == 30
    first, second = (load_file(each.path / "model" / "model.safetensors") for each in (whole, resumed))
    assert all((first[name] == second[name]).all() for name in first)
