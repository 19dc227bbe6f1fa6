"""Timing that can be trusted on a noisy machine: warm-up, interleaved rounds, medians, and ratios within a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of every round of one candidate."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / self.median


def time_once(step: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        step()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def interleaved(
    candidates: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int = 20, warmup: int = 3
) -> dict[str, Timing]:
    """Time every candidate once per round, starting each round with another one, so that drift hits all alike."""
    names = list(candidates)
    for name in names:
        for _ in range(warmup):
            candidates[name]()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(time_once(candidates[name], device))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def ratio(candidate: Timing, reference: Timing) -> tuple[float, float, float]:
    """How many times faster the candidate is: median over rounds, and the quartiles around it."""
    ratios = [theirs / ours for ours, theirs in zip(candidate.seconds, reference.seconds, strict=True)]
    first, median, third = statistics.quantiles(ratios, n=4)
    return median, first, third
