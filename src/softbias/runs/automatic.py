"""Settings for somebody who names none: chosen from the number and size of the pictures and from the device.

On a CPU time decides. A nano model at 32 × 32 pixels trains about 1,200 pictures a second and core with 16 patches and 300
with 64, and the finer patches do not pay for that: on Fashion (5,000 pictures; convit_nano, `quick`, one core, n = 1)

    16 patches    8 epochs  72.6 %    20  80.1 %    30  82.3 %    60  85.3 %    120  85.7 % in 8 minutes
    64 patches    8 epochs  70.7 %                                               30  82.4 % in 8 minutes

and of 250 pictures 30, 100 and 300 epochs learn 51, 69 and 75 % (n = 2). So patches are coarse, and the time goes into
epochs. On a GPU the number of pictures decides: what a small transformer learns from scratch keeps growing for some ten
million pictures seen.

Nothing here imports torch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from softbias import environment
from softbias.training.objectives import find_objective
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.sources import Source

CPU_SECONDS = 150.0  # for training on a CPU, when nobody said how long
LONGER, MOST_EPOCHS = 6, 1000  # the longer alternative takes so many times as many epochs, but never more than that
TOKENS_PER_SECOND = 20_000.0  # that one core trains, with a nano model
SECONDS_PER_PIXEL = 3.5e-8  # on one core, for augmenting and embedding a picture
GPU_PICTURES = 10_000_000  # to see in a training: 200 epochs of CIFAR-10
MPS_PICTURES = 2_000_000  # the same on a laptop's GPU
EPOCHS_ON_CPU, EPOCHS_ON_GPU = (1, 300), (30, 1000)
FEW_TOKENS, MANY_TOKENS = 16, 64
QUICK_ROTATION_LR = 1e-3
GPU_PATCHES = ((16, 7), (8, 7), (4, 7), (2, 4))  # a patch, and how many a side must have: what the models choose from
FEW_PICTURES = 20_000  # below that pretrained weights usually help
LARGE_SET_SIDE = 64  # pixels on a CPU from FEW_PICTURES on: 300,000 decoded pictures are then 3.7 GB, and not 45
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Choice:
    """What was chosen, and sentences that say why.

    recipe_name          the preset that `recipe` is made from
    images_per_second    training speed to expect, None where it cannot be known
    """

    model: str
    recipe: Recipe
    recipe_name: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    images_per_second: float | None = None
    reasons: tuple[str, ...] = ()

    def seconds(self, n_train: int, recipe: Recipe | None = None) -> float | None:
        """How long training will take; validation and the test come on top."""
        if self.images_per_second is None:
            return None
        recipe = recipe or self.recipe
        batch = min(recipe.batch_size, n_train)
        seen = recipe.steps * batch if recipe.steps else recipe.epochs * n_train
        return find_objective(recipe.objective).views(recipe) * seen / self.images_per_second


def choose(n_train: int, img_size: tuple[int, int], device_type: str, cores: int, *, objective: str = "supervised") -> Choice:
    """Model, recipe and epochs for so many training pictures of (height, width).

    >>> choose(5000, (32, 32), "cpu", 2).model_options
    {'patch_size': 8}
    >>> choose(50_000, (32, 32), "cuda", 16).recipe.epochs
    200.0
    """
    if device_type == "cpu":
        return on_cpu(n_train, img_size, cores, objective)
    return on_gpu(n_train, img_size, device_type, objective)


def on_cpu(n_train: int, img_size: tuple[int, int], cores: int, objective: str) -> Choice:
    pretext = find_objective(objective).pretext
    name = "arvit-pretrain" if pretext else "quick"
    patch = coarse_patch(img_size)
    if patch is None:
        model, options, tokens = "resnet_nano", {}, MANY_TOKENS
        what = f"resnet_nano: no patch divides pictures of {img_size[0]} × {img_size[1]}, and a convolution needs none"
    else:
        model, options = "arvit_nano" if pretext else "convit_nano", {"patch_size": patch}
        tokens = img_size[0] // patch * (img_size[1] // patch)
        what = f"{model} with patches of {patch} ({tokens} tokens): on a CPU larger models take hours"
    speed = cpu_speed(tokens, img_size, cores)
    preset = replace(find_recipe(name), objective=objective)
    views = find_objective(objective).views(preset)
    epochs = rounded(within(CPU_SECONDS * speed / (views * n_train), EPOCHS_ON_CPU))
    recipe = replace(preset, epochs=epochs, batch_size=min(preset.batch_size, 32 if n_train < 2000 else 64))
    why = f"recipe {name} with {count(epochs, 'epoch')}: what a few minutes allow"
    if pretext:  # a rate for weeks of training learns nothing in minutes, and crops make the task hard for a nano model
        recipe = replace(recipe, lr=QUICK_ROTATION_LR, augmentation=replace(recipe.augmentation, crop="none"))
        why += f", with lr {QUICK_ROTATION_LR:g} and whole pictures instead of crops"
    return Choice(model, recipe, name, options, speed, (what, why))


def on_gpu(n_train: int, img_size: tuple[int, int], device_type: str, objective: str) -> Choice:
    pretext = find_objective(objective).pretext
    name = "arvit-pretrain" if pretext else "small"
    model = "arvit_base" if pretext else "convit_tiny"
    what = f"{model}: on a GPU it trains in minutes, and its locality helps where pictures are few"
    if not any(all(side % patch == 0 and least <= side // patch <= 64 for side in img_size) for patch, least in GPU_PATCHES):
        model = "resnet50"
        what = f"resnet50: no patch divides pictures of {img_size[0]} × {img_size[1]}, and a convolution needs none"
    if pretext:
        return Choice(
            model, replace(find_recipe(name), objective=objective), name, reasons=(what, f"recipe {name}, as its paper has it")
        )
    seen = MPS_PICTURES if device_type == "mps" else GPU_PICTURES
    epochs = rounded(within(seen / n_train, EPOCHS_ON_GPU))
    preset = find_recipe(name)
    batch = next((size for size, most in ((64, 2000), (128, 10_000), (256, 30_000)) if n_train < most), preset.batch_size)
    lr = round(preset.lr * (batch / preset.batch_size) ** 0.5, 6)  # Adam's noise scale follows the root of the batch
    how_much = f"{epochs * n_train / 1e6:.1f} million pictures seen"
    why = f"recipe {name} with {count(epochs, 'epoch')} in batches of {batch}: {how_much}"
    return Choice(model, replace(preset, epochs=epochs, batch_size=batch, lr=lr), name, reasons=(what, why))


def coarse_patch(img_size: tuple[int, int]) -> int | None:
    """The largest patch that divides the picture and leaves from 16 to 64 tokens.

    >>> [coarse_patch((side, side)) for side in (28, 32, 64, 96, 128, 224, 97)]
    [7, 8, 16, 24, 32, 56, None]
    """
    height, width = img_size
    fitting = [patch for patch in range(1, min(img_size) + 1) if height % patch == 0 and width % patch == 0]
    good = [patch for patch in fitting if FEW_TOKENS <= height // patch * (width // patch) <= MANY_TOKENS]
    return max(good, default=None)


def cpu_speed(tokens: int, img_size: tuple[int, int], cores: int) -> float:
    """Pictures a second with a nano model; measured within 20 % from 32 to 224 pixels and 16 to 64 tokens on one core."""
    one = 1 / (tokens / TOKENS_PER_SECOND + img_size[0] * img_size[1] * SECONDS_PER_PIXEL)
    return one * min(cores, 8) ** 0.7  # small tensors keep more cores busy only in part


def within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def rounded(epochs: float) -> float:
    """
    >>> rounded(1.04), rounded(33.93)
    (1.0, 33.0)
    """
    return float(math.floor(epochs)) if epochs >= 2 else round(epochs, 1)


def count(number: float, what: str) -> str:
    """
    >>> count(1, "epoch"), count(2.5, "epoch")
    ('1 epoch', '2.5 epochs')
    """
    return f"{number:g} {what}" if number == 1 else f"{number:g} {what}s"


def image_size(source: Source, device_type: str) -> tuple[int, str] | None:
    """A side other than the source's own choice, with the reason: on a CPU for large sets of files."""
    if device_type != "cpu" or source.count is None or source.count < FEW_PICTURES:
        return None
    side = source.size
    if side is None or side <= LARGE_SET_SIDE:
        return None
    return (
        LARGE_SET_SIDE,
        f"img_size {LARGE_SET_SIDE}: on a CPU {source.count:,} pictures of {side} pixels would take too long",
    )


def hub_reachable(seconds: float = 2.0) -> bool:
    """Whether pretrained weights can be fetched now; asked for at most that long, whatever the network does."""
    import urllib.error
    import urllib.request

    if environment.is_offline():
        return False
    found: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(HUB, method="HEAD"), timeout=seconds)
            found.append(True)
        except urllib.error.HTTPError:  # it answered
            found.append(True)
        except Exception:
            found.append(False)

    thread = threading.Thread(target=ask, daemon=True)  # a name server that never answers would outlast the timeout
    thread.start()
    thread.join(seconds)
    return bool(found and found[0])


def about_pretrained(n_train: int, reachable: bool) -> str | None:
    """One line about pretrained weights where the pictures are few."""
    if n_train >= FEW_PICTURES:
        return None
    gain = "on a few thousand photographs that is usually the largest gain to be had, less so on pictures unlike photographs"
    if reachable:
        return f"pretrained weights can be had (--model timm:deit_tiny_patch16_224 --pretrained --img-size 224): {gain}"
    return f"pretrained weights cannot be fetched now (no network); a file of them can be given with --weights: {gain}"
