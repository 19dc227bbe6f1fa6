"""Images per second and memory of whole models, inference and training, several side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from softbias.bench.rows import Row
from softbias.bench.timing import interleaved, ratio

Builder = Callable[[], nn.Module]
TURN = 0.1  # seconds on a GPU


@dataclass(frozen=True)
class Setting:
    mode: str  # "inference" or "training"
    batch: int
    img_size: int
    device: torch.device
    dtype: torch.dtype
    compiled: str | None = None  # how: a mode of torch.compile

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
    """Bytes on the GPU that a step needs at its highest, over `before`; weights and optimizer included."""
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
        middle, low, high = ratio(timing, timings[against])
        beside = name != against
        rows.append(
            Row(
                what=name,
                how=str(setting),
                value=setting.batch / timing.median,
                unit="images/s",
                spread=timing.spread,
                against=against if beside else None,
                ratio=middle if beside else None,
                quartiles=(low, high) if beside else None,
                target=(targets or {}).get(name),
                memory=memory.get(name),
                memory_ratio=memory[name] / memory[against] if beside and memory else None,
            )
        )
    return rows
