"""Images per second and memory of whole models, inference and training, several side by side in one run; and how both grow with
the number of tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from softbias.bench.measuring import Row, compared, interleaved
from softbias.models import create_model

Builder = Callable[[], nn.Module]
TURN = 0.1  # seconds on a GPU
PATCH = 4  # of a model whose growth is measured


@dataclass(frozen=True)
class Setting:
    mode: str  # "inference" or "training"
    batch: int
    img_size: int
    device: torch.device
    dtype: torch.dtype
    compiled: str | None = None  # a mode of torch.compile

    def precision(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def __str__(self) -> str:
        how = {None: "eager", "default": "compiled", "reduce-overhead": "compiled, CUDA graphs,"}[self.compiled]
        return f"{how} {self.mode}, batch {self.batch}, {self.img_size} px"


def prepare(build: Builder, setting: Setting) -> Callable[[], object]:
    """A step to time: a forward pass, or forward, backward and an AdamW update."""
    torch.manual_seed(0)
    model = build().to(setting.device)
    run = torch.compile(model, mode=setting.compiled) if setting.compiled else model
    images = torch.randn(setting.batch, 3, setting.img_size, setting.img_size, device=setting.device)
    if setting.mode == "inference":
        model.eval()

        def infer() -> object:
            with torch.no_grad(), setting.precision():
                return run(images)

        return infer
    labels = torch.randint(10, (setting.batch,), device=setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model.train()

    def train() -> object:
        with setting.precision():
            loss = cross_entropy(run(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return train


def peak_memory(step: Callable[[], object], before: int) -> int:
    """The most bytes on the GPU during a step, above `before`; weights and optimizer included."""
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def side_by_side(
    builders: Mapping[str, Builder], setting: Setting, rounds: int, *, against: str, targets: Mapping[str, float] | None = None
) -> list[Row]:
    """One row per model: images per second, the ratio to the model `against`, and on a GPU the peak memory and its ratio."""
    steps, memory = {}, {}
    weighed = setting.device.type == "cuda" and setting.compiled != "reduce-overhead"  # graphs keep their memory to themselves
    for name, build in builders.items():
        before = torch.cuda.memory_allocated() if weighed else 0
        steps[name] = prepare(build, setting)
        if weighed:
            memory[name] = peak_memory(steps[name], before)
    timings = interleaved(steps, setting.device, rounds=rounds, least=TURN if setting.device.type == "cuda" else 0.0)
    rows = []
    for name, timing in timings.items():
        beside = name != against
        more: dict[str, Any] = {"target": (targets or {}).get(name), "memory": memory.get(name)}
        more |= {"memory_ratio": memory[name] / memory[against] if beside and memory else None}
        value = setting.batch / timing.median
        rows.append(compared(name, str(setting), value, "images/s", timing, against, timings[against], **more))
    return rows


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of a power law: the slope of log value over log size, by least squares.

    >>> round(exponent([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    logs = [[math.log(each) for each in numbers] for numbers in (sizes, values)]
    return statistics.linear_regression(*logs).slope


def growth(name: str, grids: Sequence[int], batch: int, device: torch.device, dtype: torch.dtype, rounds: int) -> list[Row]:
    """A training step of the same model on finer and finer grids, and the exponents of its time and memory."""
    rows, seconds, memory = [], [], []
    for side in grids:
        setting = Setting("training", batch, side * PATCH, device, dtype)
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        step = prepare(partial(create_model, name, 10, side * PATCH, patch_size=PATCH), setting)
        peak = peak_memory(step, before) if device.type == "cuda" else None
        timing = interleaved({name: step}, device, rounds=rounds)[name]
        rows.append(Row(f"{name}, {side}² tokens", str(setting), timing.median * 1e3, "ms", timing.spread, memory=peak))
        seconds.append(timing.median)
        memory.append(peak)
        del step
    tokens = [side**2 for side in grids]
    how = f"{grids[0]}² to {grids[-1]}² tokens, batch {batch}"
    rows.append(Row(f"{name}: exponent of time", how, exponent(tokens, seconds), "", target=1.1, higher=False))
    if all(memory):
        known = [value for value in memory if value]
        rows.append(Row(f"{name}: exponent of memory", how, exponent(tokens, known), "", target=1.1, higher=False))
    return rows
