"""Whole training loops: ours beside timm's parts, put together as in its training script, and beside a plain compiled loop; and
the seconds from the start of a process to its first step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy

from softbias.bench.measuring import Row, interleaved, ratio
from softbias.bench.step import CLASSES, images_per_second, random_images, small_recipe, worker
from softbias.data.dataset import Dataset
from softbias.environment import variables_with
from softbias.models import create_model


class PillowImages(torch.utils.data.Dataset[tuple[Any, int]]):
    """Images in memory, handed out as Pillow's, because timm's transforms take these."""

    def __init__(self, data: Dataset, transform: Any = None) -> None:
        self.images, self.labels, self.transform = data.images, data.labels, transform

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


PROGRAM = """
import json, time
started = time.time()
import softbias.runs.fit as fit
import torch
torch.compiler.reset()  # imports the compiler, as every optimizer does when it is made
from softbias.training.recipe import RECIPES
from softbias.runs.spec import RunSpec
from softbias.training.display import Display
imported = time.time()
class Stop(Exception): pass
class First(Display):
    def step(self, step, row): self.at = time.time(); raise Stop
from softbias.training.plan import LoopSettings
recipe = RECIPES["small"].with_overrides(dict(batch_size=512, compile={compiled!r}, val_fraction=0.0, select="last"))
first = First()
import tempfile
with tempfile.TemporaryDirectory() as folder:
    try: fit.run_fit(RunSpec("fashion", {model!r}, recipe), folder + "/run", display=first, trackers=(), baseline=False,
                     settings=LoopSettings(look_every=1))
    except Stop: pass
print(json.dumps(dict(imports=imported - started, step=first.at - imported)))
"""


STARTS = (  # model, how, compile, seconds to reach
    ("deit_tiny", "eager", "off", 5.0),
    ("convit_tiny", "eager, its kernels for the first time", "off", 5.0),
    ("convit_tiny", "eager", "off", 5.0),
    ("convit_tiny", "compiled, for the first time", "on", None),
    ("convit_tiny", "compiled, second run of the same shape", "on", 10.0),
)


def start_up(measured: Sequence[tuple[str, str, str, float | None]] = STARTS) -> Iterator[Row]:
    """Seconds from the imports to the first step, in this order, in fresh processes; the first starts with empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        for model, how, compiled, target in measured:
            program = PROGRAM.format(compiled=compiled, model=model)
            done = subprocess.run([sys.executable, "-c", program], env=variables_with(caches), capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the measured process failed: {done.stderr[-2000:]}")
            seen = json.loads(done.stdout.strip().splitlines()[-1])
            note = f"{seen['imports']:.1f} s of imports before"
            yield Row(f"{model}: first step", how, seen["step"], "s", target=target, higher=False, note=note)
