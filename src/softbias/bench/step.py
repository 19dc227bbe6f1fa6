"""The training step as a whole: data, augmentation, schedule, clipping and averaging, as the loop runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softbias.bench.measuring import Row, Timing, compared, interleaved
from softbias.data.dataset import Dataset
from softbias.models import create_model
from softbias.training.acceleration import make_accelerator
from softbias.training.batches import Batch, Batches, SplitImages
from softbias.training.optim import ModelEma, build_optimizer, learning_rate
from softbias.training.recipe import RECIPES, Recipe
from softbias.training.step import CudaGraphStep, PlainStep, supports_cuda_graph

CLASSES = 10


def random_images(count: int, img_size: int, seed: int = 0) -> Dataset:
    """Noise of the right shape: the content of an image does not change how long a step takes."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, img_size, img_size, 3), np.uint8)
    names = tuple(f"class {k}" for k in range(CLASSES))
    return Dataset("noise", images, np.arange(count) % CLASSES, names, {"train": np.arange(count)})


@dataclass(frozen=True)
class ConstantBatches(Batches):
    """The same batch at every step, made once: so only the model's own work is measured."""

    kept: list[Batch] = field(default_factory=list)

    def load(self, index: Tensor, view: Tensor, epoch: int | Tensor) -> Batch:
        if not self.kept:
            self.kept.append(super().load(index, view, epoch))
        return self.kept[0]


@dataclass
class Worker:
    """A model in training; a call takes `burst` steps exactly as the loop does."""

    model: torch.nn.Module
    take: PlainStep
    batches: Batches
    ema: ModelEma | None
    burst: int
    step: int = 0

    def __call__(self) -> object:
        batches, seen = self.batches, None
        for _ in range(self.burst):
            if self.step % batches.steps_per_epoch == 0:
                self.epoch = batches.epoch(self.step // batches.steps_per_epoch)
            lr = learning_rate(batches.recipe, self.step, 10_000, 100)
            seen = self.take(*batches.at(self.step, self.epoch), self.epoch.number, lr)
            self.step += 1
            if self.ema:
                self.ema.update(self.step)
        return seen


def worker(
    model: str,
    data: Dataset,
    recipe: Recipe,
    *,
    constant: bool = False,
    recorded: bool = True,
    burst: int = 20,
    device: str = "auto",
    **options: Any,
) -> Worker:
    """The parts that `training.loop.train` puts together for this recipe."""
    torch.manual_seed(0)
    accelerator = make_accelerator(recipe, device)
    images = SplitImages(data, data.splits["train"], accelerator.device)
    kind = ConstantBatches if constant else Batches
    batches = kind(images, recipe, 0, CLASSES, (0.5,) * 3, (0.25,) * 3)
    network = create_model(model, CLASSES, data.img_size, drop_path=recipe.drop_path, **options).to(accelerator.device).train()
    recorded = recorded and supports_cuda_graph(accelerator, batches)
    optimizer = build_optimizer(network, recipe, graph=accelerator.device.type == "cuda")
    run: Any = torch.compile(network) if recipe.compile == "on" else network
    take = (CudaGraphStep if recorded else PlainStep)(accelerator, run, optimizer, batches, None)
    ema = ModelEma(network, recipe.ema) if recipe.ema else None
    return Worker(network, take, batches, ema, burst)


def small_recipe(batch: int, **overrides: Any) -> Recipe:
    return RECIPES["small"].with_overrides({"batch_size": batch, "compile": "on", **overrides})


def images_per_second(worked: Worker, timing: Timing) -> float:
    return worked.batches.batch_size * worked.burst / timing.median


def whole_step(batch: int, rounds: int, device: torch.device, *, burst: int = 20, count: int = 50_000) -> Iterator[Row]:
    """The step of deit_tiny beside the same step on a constant batch, and other mechanisms beside it; 32 px, patch 4."""
    data = random_images(count, 32)
    recipe = small_recipe(batch)
    full = worker("deit_tiny", data, recipe, burst=burst, device=device.type)
    how = f"compiled, {full.take.name}, batch {batch}, 32 px, recipe small"
    constant = worker("deit_tiny", data, recipe, constant=True, burst=burst, device=device.type)
    same = "the same step on a constant batch"
    times = interleaved({"full": full, "constant": constant}, device, rounds=rounds)
    speeds = images_per_second(full, times["full"]), images_per_second(constant, times["constant"])
    yield compared("deit_tiny", how, speeds[0], "images/s", times["full"], same, times["constant"], target=0.95)
    yield Row(same, how, speeds[1], "images/s", times["constant"].spread)
    for name, target in (("convit_tiny", 0.88), ("ibit_tiny", 0.92)):
        other = worker(name, data, recipe, burst=burst, device=device.type)
        times = interleaved({"full": full, "other": other}, device, rounds=rounds)
        speed = images_per_second(other, times["other"])
        yield compared(name, how, speed, "images/s", times["other"], "deit_tiny", times["full"], target=target)


def captured_equals_uncaptured(model: str, batch: int, steps: int = 50) -> Row:
    """The number of weights that differ between recorded steps and the same compiled steps, not recorded."""
    data = random_images(4 * batch, 32)
    recipe = small_recipe(batch, drop_path=0.0)
    weights = []
    for recorded in (True, False):
        torch.compiler.reset()
        one = worker(model, data, recipe, recorded=recorded, burst=1)
        for _ in range(steps):
            one()
        weights.append([value.clone() for value in one.model.state_dict().values()])
    different = sum(int((a != b).sum()) for a, b in zip(*weights, strict=True))
    how = f"{steps} steps recorded as a CUDA graph and not, compiled, batch {batch}, drop path off"
    return Row(f"{model}: weights that differ", how, float(different), "weights", target=0.0, higher=False)
