"""How much time is left, as it is learned while a study runs."""

import pytest

from softbias.study import progress
from softbias.study.plan import study_runs
from softbias.study.progress import StudyDisplay
from softbias.study.task import RunResult


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def step(display, run, step):
    display.event(run, {"event": "step", "step": step, "total": 100})


def test_the_time_left_follows_what_the_runs_really_take(little_study, clock):
    runs = study_runs(little_study("deit_nano,convit_nano", fractions=1))
    display = StudyDisplay()
    display.begin(runs, runs, dict.fromkeys((run.id for run in runs), 10.0))
    display.at_once = 2
    assert display.left() is None
    step(display, runs[0], 0)
    step(display, runs[1], 0)
    clock[0] += 10.0
    step(display, runs[0], 50)
    step(display, runs[1], 50)
    assert display.left() == pytest.approx(10 + 20)  # twice as long as was said, two at a time
    clock[0] += 10.0
    for run in runs[:2]:
        display.done(run, RunResult(run.id, "finished", seconds=20.0))
    assert display.left() == pytest.approx(20)
    step(display, runs[2], 0)
    clock[0] += 10.0
    step(display, runs[2], 100)
    assert display.left() == pytest.approx(10)  # of the other arm we know by now that it is as quick as was said
    clock[0] += 5.0
    assert display.left() == pytest.approx(10)  # silence is no news about the pace


def test_a_run_that_continues_is_counted_from_where_it_was_and_a_failed_one_not_at_all(little_study, clock):
    runs = study_runs(little_study("deit_nano", seeds=3, fractions=1))
    display = StudyDisplay()
    display.begin(runs, runs, dict.fromkeys((run.id for run in runs), 10.0))
    step(display, runs[0], 90)
    clock[0] += 1.0
    step(display, runs[0], 100)
    display.done(runs[0], RunResult(runs[0].id, "finished"))
    assert display.left() == pytest.approx(20)
    step(display, runs[1], 0)
    clock[0] += 500.0
    display.done(runs[1], RunResult(runs[1].id, "failed", "no"))
    assert display.left() == pytest.approx(10)
