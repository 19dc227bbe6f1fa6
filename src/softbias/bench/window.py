"""How time and memory of window attention grow with the number of tokens: the exponent of a power law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from softbias.bench.rows import Row
from softbias.bench.throughput import Setting, peak_memory, prepare
from softbias.bench.timing import interleaved
from softbias.models import create_model

PATCH = 4


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value over log size, by least squares.

    >>> round(exponent([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def growth(
    name: str, grids: Sequence[int], batch: int, device: torch.device, dtype: torch.dtype, rounds: int, target: float = 1.1
) -> list[Row]:
    """A training step of the same model on finer and finer grids, and the two exponents."""
    rows, seconds, memory = [], [], []
    for side in grids:
        setting = Setting("training", batch, side * PATCH, device, dtype)
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        step = prepare(lambda side=side: create_model(name, 10, side * PATCH, patch_size=PATCH), setting)  # type: ignore[misc]
        peak = peak_memory(step, before) if device.type == "cuda" else None
        timing = interleaved({name: step}, device, rounds=rounds)[name]
        rows.append(Row(f"{name}, {side}² tokens", str(setting), timing.median * 1e3, "ms", timing.spread, memory=peak))
        seconds.append(timing.median)
        memory.append(peak)
        del step
    tokens = [side**2 for side in grids]
    how = f"{grids[0]}² to {grids[-1]}² tokens, batch {batch}"
    rows.append(Row(f"{name}: exponent of time", how, exponent(tokens, seconds), "", target=target, higher=False))
    if all(memory):
        known = [value for value in memory if value]
        rows.append(Row(f"{name}: exponent of memory", how, exponent(tokens, known), "", target=target, higher=False))
    return rows
