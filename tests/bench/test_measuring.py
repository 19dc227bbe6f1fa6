"""Interleaved rounds, ratios that cancel drift, and rows whose targets are met or missed."""

import pytest
import torch

from softbias.bench.measuring import COLUMNS, Row, Timing, cells, interleaved, print_rows, ratio
from softbias.bench.throughput import exponent


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

    monkeypatch.setattr("softbias.bench.measuring.time.perf_counter", lambda: clock[0])
    steps = {"short": lambda: candidate("short", 0.25), "long": lambda: candidate("long", 2.0)}
    timings = interleaved(steps, torch.device("cpu"), rounds=2, warmup=1, least=1.0)
    assert calls == ["short", "long", *["short"] * 4, "long", "long", *["short"] * 4]
    assert timings["short"].seconds == (0.25, 0.25) and timings["long"].seconds == (2.0, 2.0)


def test_a_single_round_has_no_spread_and_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="at least 2, for their spread, but rounds=1"):
        interleaved({"a": lambda: pytest.fail("it ran")}, torch.device("cpu"), rounds=1)


def test_drift_cancels_in_the_ratio():
    drift = [1.0, 1.5, 2.0, 4.0]
    ours, peer = Timing(tuple(drift)), Timing(tuple(2 * second for second in drift))
    assert ratio(ours, peer) == pytest.approx((2, 2, 2))
    assert ours.median == 1.75 and ours.spread > 0


@pytest.mark.parametrize(
    ("ratio", "target", "higher", "met"),
    [
        (0.9, 0.8, True, True),
        (0.7, 0.8, True, False),
        (1.2, 1.15, False, False),
        (1.1, 1.15, False, True),
        (1.0, None, True, None),
    ],
)
def test_a_target_is_a_minimum_or_a_maximum(ratio, target, higher, met):
    row = Row("a", "eager", 100.0, "images/s", against="b", ratio=ratio, target=target, higher=higher)
    assert row.met is met
    assert row.to_dict().get("met") is met


def test_without_a_ratio_the_value_is_what_the_target_asks_for():
    assert Row("first step", "eager", 4.0, "s", target=5.0, higher=False).met
    assert not Row("first step", "eager", 6.0, "s", target=5.0, higher=False).met


def test_a_table_leaves_out_columns_that_are_empty_everywhere(capsys):
    rows = [Row("a", "eager", 1234.5, "images/s"), Row("b", "eager", 2.0, "s", note="seen once")]
    print_rows(rows)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["what", "how", "value"] and len(COLUMNS) == len(cells(rows[0]))
    assert lines[0].split() == ["a", "eager", "1,234", "images/s"] and lines[-1] == "b: seen once"


def test_the_exponent_of_a_power_law_is_found():
    sizes = [16**2, 32**2, 64**2]
    assert exponent(sizes, [3e-6 * size**1.5 for size in sizes]) == pytest.approx(1.5)
