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


def test_drift_cancels_in_the_ratio():
    drift = [1.0, 1.5, 2.0, 4.0]
    ours, theirs = Timing(tuple(drift)), Timing(tuple(2 * second for second in drift))
    assert ratio(ours, theirs) == pytest.approx((2, 2, 2))
    assert ours.median == 1.75 and ours.spread > 0
