"""What a busy CPU leaves of the speed of fit and predict is measured with real processes."""

import statistics
from pathlib import Path

import pytest

from softbias.bench import load


def running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_busy_processes_use_the_processor_and_end_with_their_block(monkeypatch):
    started = []
    popen = load.subprocess.Popen
    monkeypatch.setattr(load.subprocess, "Popen", lambda *words, **more: started.append(popen(*words, **more)) or started[-1])
    with load.busy_processes(2):
        assert [process.poll() for process in started] == [None, None]
    assert len(started) == 2 and not any(running(process.pid) for process in started)


@pytest.mark.parametrize("what", load.WORK)
def test_a_piece_of_work_says_how_many_images_it_did(what):
    assert load.WORK[what]()() == {"fit": 32, "predict": load.BATCH}[what]


@pytest.mark.slow
def test_every_candidate_has_a_quiet_and_a_loaded_turn_per_round():
    candidates = {name: load.CANDIDATES[name] for name in ("softbias", "one thread")}
    measured = load.measure_load("fit", 2, candidates=candidates, turn=0.1)
    assert list(measured) == list(candidates)
    for quiet, loaded in measured.values():
        assert len(quiet.seconds) == len(loaded.seconds) == 2
        assert 0 < statistics.median(quiet.seconds) < 1


def test_a_process_that_dies_is_an_error_and_no_wait():
    with load.MeasuredProcess("nothing", {}) as process, pytest.raises(RuntimeError, match="exit status 1"):
        process.seconds_per_image(0.1)
