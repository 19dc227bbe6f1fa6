"""The training step as a whole (data, augmentation, schedule, clipping and averaging, as the loop runs it), whole loops beside
timm's parts, put together as in its training script, and beside a plain compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy

from softbias.bench.measuring import Row, Timing, compared, interleaved, ratio
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
        torch.zeros(1, device=index.device)  # one small kernel: torch warns about a CUDA graph of nothing
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


def feed_forwards(batch: int, rounds: int, device: torch.device, *, burst: int = 20, count: int = 50_000) -> Iterator[Row]:
    """The step of soft_tiny, whose feed-forward has a depth-wise convolution, beside its step with a plain one; 32 px."""
    data, recipe = random_images(count, 32), small_recipe(batch)
    names: dict[str, dict[str, Any]] = {"soft_tiny": {}, "soft_tiny, plain feed-forward": {"feed_forward": "gelu"}}
    workers = {
        name: worker("soft_tiny", data, recipe, burst=burst, device=device.type, **options) for name, options in names.items()
    }
    deep, plain = names
    how = f"compiled, {workers[deep].take.name}, batch {batch}, 32 px, recipe small"
    times = interleaved(workers, device, rounds=rounds)
    speeds = {name: images_per_second(workers[name], times[name]) for name in names}
    yield compared(deep, how, speeds[deep], "images/s", times[deep], plain, times[plain], target=0.85)
    yield Row(plain, how, speeds[plain], "images/s", times[plain].spread)


def captured_equals_uncaptured(model: str, batch: int) -> Row:
    """The number of weights that differ between recorded steps and the same compiled steps, not recorded."""
    data = random_images(4 * batch, 32)
    recipe = small_recipe(batch, drop_path=0.0)
    weights = []
    for recorded in (True, False):
        torch.compiler.reset()
        one = worker(model, data, recipe, recorded=recorded, burst=1)
        for _ in range(50):
            one()
        weights.append([value.clone() for value in one.model.state_dict().values()])
    different = sum(int((a != b).sum()) for a, b in zip(*weights, strict=True))
    how = f"50 steps recorded as a CUDA graph and not, compiled, batch {batch}, drop path off"
    return Row(f"{model}: weights that differ", how, float(different), "weights", target=0.0, higher=False)


class PillowImages(torch.utils.data.Dataset[tuple[Any, int]]):
    """Images in memory, handed out as Pillow's, because timm's transforms take these."""

    transform: Any = None  # set by timm's loader

    def __init__(self, data: Dataset) -> None:
        self.images, self.labels = data.images, data.labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = Image.fromarray(np.asarray(self.images[index]))
        return (self.transform(image) if self.transform else image), int(self.labels[index])


def timm_loop(name: str, data: Dataset, batch: int, workers: int, device: torch.device, **options: Any) -> Callable[[], object]:
    """timm's loader with its prefetcher, Mixup with CutMix, AdamW, bf16, compile, clipping and averaged weights."""
    from timm.data import Mixup, create_loader
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    torch.manual_seed(0)
    model = create_model(f"timm:{name}", CLASSES, data.img_size, **options).to(device).train()
    dataset: Any = PillowImages(data)
    loader = create_loader(
        dataset, (3, *data.img_size), batch, is_training=True, use_prefetcher=True, no_aug=False, hflip=0.5,
        color_jitter=0.3, re_prob=0.25, num_workers=workers, mean=(0.5,) * 3, std=(0.25,) * 3, pin_memory=True,
        persistent_workers=workers > 0, device=device,
    )  # fmt: skip
    mixup = Mixup(mixup_alpha=0.0, cutmix_alpha=1.0, prob=0.5, label_smoothing=0.1, num_classes=CLASSES)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.06)
    average = ModelEmaV3(model, decay=0.999)
    loss_of, run = SoftTargetCrossEntropy(), torch.compile(model)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def step() -> object:
        images, labels = next(batches)
        images, targets = mixup(images, labels)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(run(images), targets)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)
        return loss

    return step


def plain_loop(name: str, data: Dataset, batch: int, device: torch.device, **options: Any) -> Callable[[], object]:
    """A model in the loop that most people would write: images on the GPU, flips, fused AdamW, bf16, compile, clipping."""
    torch.manual_seed(0)
    model = create_model(name, CLASSES, data.img_size, **options).to(device).train()
    all_images = torch.from_numpy(data.images).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(data.labels).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.06, fused=device.type == "cuda")
    run = torch.compile(model)

    def step() -> object:
        index = torch.randint(len(all_images), (batch,), device=device)
        images = all_images[index].float().div_(255).sub_(0.5).div_(0.25)
        images = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.5, images.flip(-1), images)
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(run(images), labels[index], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def beside_timm(
    img_size: int, patch: int, batch: int, rounds: int, device: torch.device, *, burst: int = 20, count: int, workers: int
) -> list[Row]:
    """deit_tiny in our loop, in timm's and in a plain one, one after the other in every round."""
    data = random_images(count, img_size)
    ours = worker("deit_tiny", data, small_recipe(batch), burst=burst, device=device.type, patch_size=patch)
    peer = "deit_tiny_patch16_224"
    by_timm = timm_loop(peer, data, batch, workers, device, patch_size=patch)
    plain = plain_loop(f"timm:{peer}", data, batch, device, patch_size=patch)

    def often(step: Callable[[], object]) -> Callable[[], object]:
        return lambda: [step() for _ in range(burst)]

    steps: dict[str, Callable[[], object]] = {
        "ours": ours,
        "timm's loop": often(by_timm),
        "timm's model, plain compiled loop": often(plain),
    }
    timings = interleaved(steps, device, rounds=rounds, warmup=2)
    how = f"deit_tiny, batch {batch}, {img_size} px, patch {patch}"
    speed = images_per_second(ours, timings["ours"])
    rows = [Row("our loop", f"{how}, {ours.take.name}", speed, "images/s", timings["ours"].spread)]
    targets = {"timm's loop": 2.0, "timm's model, plain compiled loop": 1.8} if img_size <= 64 else dict.fromkeys(steps, 1.0)
    for name in list(steps)[1:]:
        middle, low, high = ratio(timings["ours"], timings[name])
        value = batch * burst / timings[name].median
        note = f"{workers} loader workers" if name == "timm's loop" else None
        rows.append(
            Row(f"our loop against {name}", how, value, "images/s (of the peer)", timings[name].spread, against=name,
                ratio=middle, quartiles=(low, high), target=targets[name], note=note)
        )  # fmt: skip
    return rows
