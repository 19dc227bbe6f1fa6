"""Which run is next, and what becomes of a run whose process or node is lost again and again."""

import pytest

from softbias.study.execute import ATTEMPTS, ExecutionSettings, RunQueue
from softbias.study.plan import study_runs
from softbias.study.progress import StudyDisplay
from softbias.study.task import RunResult


@pytest.fixture
def queue(little_study, tmp_path):
    runs = study_runs(little_study("deit_nano", seeds=1, fractions=1))
    display = StudyDisplay()
    display.begin(runs, runs, {run.id: 10.0 for run in runs})
    return RunQueue(runs, ExecutionSettings(tmp_path), display)


def lose(queue: RunQueue, checkpoint: int | None = None) -> None:
    run = queue.next_now()
    assert run is not None
    if checkpoint is not None:
        (queue.settings.store / run.spec.title / "checkpoints" / f"step-{checkpoint:08d}").mkdir(parents=True)
    queue.report(run, RunResult(run.id, "lost", "its node was lost"))


def test_a_run_that_is_lost_too_often_at_the_same_step_has_failed(queue):
    for _ in range(ATTEMPTS):
        assert not queue.results
        lose(queue)
    assert [result.state for result in queue.results.values()] == ["failed"] and not queue.waiting


def test_a_run_that_comes_further_each_time_is_never_given_up(queue):
    for number in range(1, 4 * ATTEMPTS):
        lose(queue, checkpoint=10 * number)
    assert len(queue.waiting) == 1 and not queue.results
    for _ in range(ATTEMPTS - 1):
        lose(queue)
    assert [result.state for result in queue.results.values()] == ["failed"]
