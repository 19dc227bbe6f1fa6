"""Timing: interleaved rounds, and ratios that cancel drift."""

import pytest
import torch

from softbias.bench.timing import Timing, interleaved, ratio


def test_every_candidate_runs_once_per_round_and_starts_in_turn():
    order = []
    steps = {name: (lambda name=name: order.append(name)) for name in "ab"}
    timings = interleaved(steps, torch.device("cpu"), rounds=4, warmup=1)
    assert order == list("ab") + list("ab") + list("ba") + list("ab") + list("ba")
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4]


def test_a_short_candidate_is_called_several_times_in_a_turn_and_its_seconds_are_those_of_one_call(monkeypatch):
    clock, calls = [0.0], []

    def candidate(name, seconds):
        calls.append(name)
        clock[0] += seconds

    monkeypatch.setattr("softbias.bench.timing.time.perf_counter", lambda: clock[0])
    steps = {"short": lambda: candidate("short", 0.25), "long": lambda: candidate("long", 2.0)}
    timings = interleaved(steps, torch.device("cpu"), rounds=2, warmup=1, least=1.0)
    assert calls == ["short", "long", *["short"] * 4, "long", "long", *["short"] * 4]
    assert timings["short"].seconds == (0.25, 0.25) and timings["long"].seconds == (2.0, 2.0)


def test_a_single_round_has_no_spread_and_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="at least 2, for their spread, but rounds=1"):
        interleaved({"a": lambda: pytest.fail("it ran")}, torch.device("cpu"), rounds=1)


def test_drift_cancels_in_the_ratio():
    drift = [1.0, 1.5, 2.0, 4.0]
    ours, theirs = Timing(tuple(drift)), Timing(tuple(2 * second for second in drift))
    assert ratio(ours, theirs) == pytest.approx((2, 2, 2))
    assert ours.median == 1.75 and ours.spread > 0
