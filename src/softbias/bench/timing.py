"""Timing that can be trusted on a noisy machine: warm-up, interleaved rounds, medians, and ratios within a round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from softbias.errors import SoftbiasError


@dataclass(frozen=True)
class Timing:
    """Seconds that one call of a candidate took, in every round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / self.median


def time_turn(step: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Seconds of one call, when so many are made in a row."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - start) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = 20,
    warmup: int = 3,
    least: float = 0.0,
) -> dict[str, Timing]:
    """Give every candidate a turn per round, starting each round with another one, so that drift hits all alike.

    A turn lasts about `least` seconds or more: a candidate that takes less is called several times. A step of a few
    milliseconds needs that on a GPU, which else waits for its host at the beginning of every turn, as it never does in use.
    """
    if rounds < 2:
        raise SoftbiasError(f"rounds must be at least 2, for their spread, but rounds={rounds}")
    names = list(candidates)
    calls = {}
    for name in names:
        for _ in range(warmup - 1):
            candidates[name]()
        calls[name] = max(1, math.ceil(least / max(time_turn(candidates[name], device), 1e-6)))
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(time_turn(candidates[name], device, calls[name]))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def ratio(candidate: Timing, reference: Timing) -> tuple[float, float, float]:
    """How many times faster the candidate is: median over rounds, and the quartiles around it."""
    ratios = [theirs / ours for ours, theirs in zip(candidate.seconds, reference.seconds, strict=True)]
    first, median, third = statistics.quantiles(ratios, n=4)
    return median, first, third
