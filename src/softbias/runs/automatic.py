"""The automatic choices: model, recipe and image size that suit the number of images, their size and the device.

On a CPU time decides. A model that sees few tokens and few pixels trains on more images a second, and it gains more from the
additional epochs than from more tokens or pixels. So images are small, patches are coarse, and the time goes into epochs
(measured in results/training.md and results/nano.md). Images that are seen often are mixed with others.

On a GPU the size of the images decides about the model, and the number of images about the epochs: a training has a fixed
number of patches to see, about as many as an H200 takes in five minutes, or as many as it takes in the minutes that the user
gives. How strongly images are changed follows from the epochs (`strength`).

Nothing here imports torch before a choice is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from softbias.errors import SoftbiasError
from softbias.notes import Note
from softbias.runs import finetuning
from softbias.runs.strength import level_for, with_strength
from softbias.training.objectives import find_objective
from softbias.training.recipe import Recipe, find_recipe

CPU_MODEL = "soft_nano"
CPU_SECONDS = 150.0  # of training on a CPU, where the user gives no time
SPARE = 1.5  # where time ends a training, its epochs are more than expected: the speed is known within a third
LONGER, MOST_EPOCHS = 6, 1000  # the longer alternative: six times the epochs, up to this number
SECONDS_PER_IMAGE = {  # of one core in training: for each image, each of its tokens, and each of its pixels
    "soft_nano": (3.8e-4, 2e-5, 1.05e-7),
    "arvit_nano": (0.0, 5e-5, 3.5e-8),
    "resnet_nano": (0.0, 5e-5, 3.5e-8),
}
MIXED_FROM = 15  # epochs: what a model on a CPU sees more often than this, it learns by heart unless it is mixed
MIXED = {"mixup": 0.8, "cutmix": 1.0}  # for every image
GPU_PATCHES = {
    "soft_tiny": 640e6,
    "soft_small": 300e6,
}  # seen in one training: 200 epochs of CIFAR-10, 220 of Imagenette at 96 px
GPU_MINUTES = 5.0  # that an H200 needs for them
MPS_PATCHES = 128e6  # the same on a laptop's GPU, with soft_tiny
SMALL_SIDE, LARGE_SET = 64, 100_000  # pixels and images: beyond these a GPU trains the larger model
GPU_BATCHES = ((64, 2000), (128, 10_000), (256, 30_000))  # images in a batch, for sets of fewer images than the second number
LEAST_PATCHES, MOST_PATCHES = 16, 1024  # of an image on a GPU
MOST_IN_BATCH = 65_536  # patches: more images in a batch need the memory of a large GPU
EPOCHS_ON_CPU, EPOCHS_ON_GPU = (1, 300), (30, 1000)
FEW_TOKENS, MANY_TOKENS = 16, 64
QUICK_ROTATION_LR = 1e-3
CPU_SIDE = 64  # pixels, for a model from scratch on a CPU
FEW_IMAGES = 20_000  # from here on also for a pretext task: 300,000 decoded images take 3.7 GB instead of 45 GB


@dataclass(frozen=True)
class Choice:
    """A model and a recipe, and why.

    recipe_name          the preset that `recipe` is made from
    images_per_second    the expected training speed; None where it is not known
    reasons              one about the model, one about the recipe
    strength             why images are changed as strongly as they are; None where the recipe alone says it
    """

    model: str
    recipe: Recipe
    recipe_name: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    images_per_second: float | None = None
    reasons: tuple[Note, ...] = ()
    strength: Note | None = None

    def seconds(self, n_train: int, recipe: Recipe | None = None) -> float | None:
        """The expected time of training, without validation and test."""
        if self.images_per_second is None:
            return None
        recipe = recipe or self.recipe
        batch = min(recipe.batch_size, n_train)
        seen = recipe.steps * batch if recipe.steps else recipe.epochs * n_train
        return find_objective(recipe.objective).views(recipe) * seen / self.images_per_second


def choose(
    n_train: int,
    img_size: tuple[int, int],
    device_type: str,
    cores: int,
    *,
    objective: str = "supervised",
    pretrained: str | None = None,
    named: Mapping[str, Any] | None = None,
    minutes: float | None = None,
) -> Choice:
    """Model, recipe and epochs for `n_train` training images of (height, width).

    pretrained   the model whose pretrained weights are fine-tuned
    named        fields of the recipe that the user named; the augmentation has to suit a length among them
    minutes      the time that the user gave for training; from scratch the epochs fill it

    >>> choose(5000, (32, 32), "cpu", 2).model_options
    {'patch_size': 8}
    >>> choose(50_000, (32, 32), "cuda", 16).recipe.epochs
    200.0
    """
    if pretrained is not None and not find_objective(objective).pretext:
        recipe = replace(finetuning.recipe_for(pretrained, device_type, n_train), objective=objective)
        values = {"recipe": finetuning.RECIPE, "epochs": recipe.epochs}
        values |= {"why": "limit"} if device_type == "cpu" else {}  # time ends it before
        return Choice(pretrained, recipe, finetuning.RECIPE, reasons=(Note("recipe-chosen", values),))
    if device_type == "cpu":
        return on_cpu(n_train, img_size, cores, objective, named or {}, minutes)
    return on_gpu(n_train, img_size, device_type, objective, named or {}, minutes)


def on_cpu(
    n_train: int,
    img_size: tuple[int, int],
    cores: int,
    objective: str,
    named: Mapping[str, Any],
    minutes: float | None = None,
) -> Choice:
    pretext = find_objective(objective).pretext
    name = "arvit-pretrain" if pretext else "quick"
    patch = coarse_patch(img_size) if pretext else soft_patch(img_size)
    if patch is None:
        model, options, tokens = "resnet_nano", {}, MANY_TOKENS
    else:
        model, options = "arvit_nano" if pretext else CPU_MODEL, {"patch_size": patch}
        tokens = img_size[0] // patch * (img_size[1] // patch)
    speed = cpu_speed(model, tokens, img_size, cores)
    preset = replace(find_recipe(name), objective=objective)
    views = find_objective(objective).views(preset)
    seconds, spare, most = (CPU_SECONDS, 1.0, EPOCHS_ON_CPU[1]) if minutes is None else (60 * minutes, SPARE, MOST_EPOCHS)
    expected = rounded(within(seconds * speed / (views * n_train), (EPOCHS_ON_CPU[0], most)))
    epochs = rounded(within(spare * expected, (EPOCHS_ON_CPU[0], most)))
    recipe = replace(preset, epochs=epochs, batch_size=min(preset.batch_size, 32 if n_train < 2000 else 64))
    values: dict[str, Any] = {"recipe": name, "epochs": epochs, "why": "time"}
    strength = None
    if pretext:  # a rate for weeks of training learns nothing in minutes, and crops make the task hard for a nano model
        recipe = replace(recipe, lr=QUICK_ROTATION_LR, augmentation=replace(recipe.augmentation, crop="none"))
        values |= {"lr": QUICK_ROTATION_LR, "crop": "none"}
    seen = times_seen(replace(recipe, epochs=expected), n_train, named)
    if not pretext and seen >= MIXED_FROM:
        recipe = recipe.with_overrides(MIXED)
        strength = Note("strength-chosen", {"level": "mixed", "epochs": round(seen, 1)})
    reasons = model_note(model, "cpu", img_size, patch is not None, patch, tokens), Note("recipe-chosen", values)
    return Choice(model, recipe, name, options, speed, reasons, strength)


def mixed_by_views(recipe: Recipe, n_train: int) -> Recipe:
    """The recipe with mixup and CutMix for every image if it shows each image often, and for none otherwise."""
    often = times_seen(recipe, n_train, {}) >= MIXED_FROM
    return recipe.with_overrides(MIXED if often else dict.fromkeys(MIXED, 0.0))


def times_seen(recipe: Recipe, n_train: int, named: Mapping[str, Any]) -> float:
    """How often each image is seen, if the user named a length or a batch."""
    asked = recipe.with_overrides({name: named[name] for name in ("epochs", "steps", "batch_size") if name in named})
    return asked.steps * min(asked.batch_size, n_train) / n_train if asked.steps else asked.epochs


def on_gpu(
    n_train: int,
    img_size: tuple[int, int],
    device_type: str,
    objective: str,
    named: Mapping[str, Any],
    minutes: float | None = None,
) -> Choice:
    pretext = find_objective(objective).pretext
    reasons = {"side": max(img_size) > SMALL_SIDE, "count": n_train >= LARGE_SET}  # for the larger model
    larger = next((why for why, holds in reasons.items() if holds and device_type != "mps"), None)
    wanted = "arvit_base" if pretext else "soft_small" if larger else "soft_tiny"
    patches = count_patches(wanted, img_size)
    model = "resnet50" if patches is None else wanted
    about = model_note(model, device_type, img_size, patches is not None, larger=larger if model == "soft_small" else None)
    if pretext:
        paper = find_recipe("arvit-pretrain")
        values: dict[str, Any] = {"recipe": "arvit-pretrain", "epochs": paper.epochs, "why": "paper"}
        recipe = replace(paper, objective=objective)
        return Choice(model, recipe, "arvit-pretrain", reasons=(about, Note("recipe-chosen", values)))
    preset = find_recipe("soft")
    seen = (MPS_PATCHES if device_type == "mps" else GPU_PATCHES[wanted]) / (patches or MANY_TOKENS)
    epochs = expected = rounded(within(seen / n_train, EPOCHS_ON_GPU))
    if minutes is not None:  # time ends it before
        expected = seen / n_train * minutes / GPU_MINUTES
        epochs = rounded(within(SPARE * expected, (1, MOST_EPOCHS)))
    batch = next((size for size, most in GPU_BATCHES if n_train < most), preset.batch_size)
    while batch * (patches or MANY_TOKENS) > MOST_IN_BATCH:
        batch //= 2
    asked = replace(preset, epochs=epochs, batch_size=batch).with_overrides(
        {name: named[name] for name in ("epochs", "steps", "batch_size") if name in named}
    )
    batch = asked.batch_size
    views = times_seen(asked, n_train, {}) if {"epochs", "steps"} & set(named) else min(expected, epochs)
    recipe = with_strength(in_batches_of(replace(preset, epochs=epochs), batch), views, n_train)
    values = {"recipe": "soft", "epochs": epochs, "why": "images", "batch_size": batch, "images": round(epochs * n_train)}
    strength = Note("strength-chosen", {"level": level_for(views, n_train), "epochs": round(views, 1)})
    return Choice(model, recipe, "soft", reasons=(about, Note("recipe-chosen", values)), strength=strength)


def in_batches_of(recipe: Recipe, batch: int) -> Recipe:
    """The recipe with other batches: the learning rate follows their root, as the noise of a gradient does.

    >>> recipe = in_batches_of(find_recipe("small"), 64)
    >>> find_recipe("small").peak_lr(), recipe.peak_lr()
    (0.0005, 0.00025)
    """
    peak = recipe.peak_lr() * (batch / recipe.batch_size) ** 0.5
    return replace(recipe, batch_size=batch, lr=round(peak, 6), lr_per=None)  # `lr_per` would scale it once more


def count_patches(model: str, img_size: tuple[int, int]) -> int | None:
    """Patches of an image in a preset; None where no patch divides the image, or leaves a sensible number of them.

    >>> [count_patches("soft_tiny", (side, side)) for side in (28, 32, 64, 97)]
    [49, 64, 64, None]
    """
    from softbias.models.presets import find_preset  # and with it torch

    try:
        side = find_preset(model).patch(img_size)
    except SoftbiasError:
        return None
    patches = img_size[0] // side * (img_size[1] // side)
    return patches if side > 1 and LEAST_PATCHES <= patches <= MOST_PATCHES else None


def model_note(
    model: str,
    device: str,
    img_size: tuple[int, int],
    divides: bool,
    patch: int | None = None,
    tokens: int | None = None,
    larger: str | None = None,
) -> Note:
    """larger: what the larger of two models is chosen for, "side" or "count" of the images."""
    values: dict[str, Any] = {"model": model, "device": device, "img_size": list(img_size), "divides": divides}
    values |= {} if patch is None else {"patch": patch, "tokens": tokens}
    return Note("model-chosen", values if larger is None else {**values, "larger": larger})


def coarse_patch(img_size: tuple[int, int]) -> int | None:
    """The largest patch that divides the image and leaves from 16 to 64 tokens.

    >>> [coarse_patch((side, side)) for side in (28, 32, 64, 96, 128, 224, 97)]
    [7, 8, 16, 24, 32, 56, None]
    """
    height, width = img_size
    fitting = [patch for patch in range(1, min(img_size) + 1) if height % patch == 0 and width % patch == 0]
    good = [patch for patch in fitting if FEW_TOKENS <= height // patch * (width // patch) <= MANY_TOKENS]
    return max(good, default=None)


def soft_patch(img_size: tuple[int, int]) -> int | None:
    """The patch of soft_nano; None where no patch leaves from 16 to 64 tokens.

    >>> [soft_patch((side, side)) for side in (28, 32, 64, 96, 128, 224, 97)]
    [4, 8, 8, 16, 16, 32, None]
    """
    tokens = count_patches(CPU_MODEL, img_size)
    if tokens is None or not FEW_TOKENS <= tokens <= MANY_TOKENS:
        return None
    return math.isqrt(img_size[0] * img_size[1] // tokens)


def cpu_speed(model: str, tokens: int, img_size: tuple[int, int], cores: int) -> float:
    """Images a second in training; right within a third from 32 to 224 pixels and from 16 to 64 tokens."""
    each, per_token, per_pixel = SECONDS_PER_IMAGE[model]
    one = 1 / (each + tokens * per_token + img_size[0] * img_size[1] * per_pixel)
    return float(one * min(cores, 8) ** 0.7)  # small tensors do not keep many cores busy


def within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def rounded(epochs: float) -> float:
    """
    >>> rounded(1.04), rounded(33.93)
    (1.0, 33.0)
    """
    return float(math.floor(epochs)) if epochs >= 2 else round(epochs, 1)


def image_size(size: tuple[int, int], count: int, device_type: str, pretext: bool) -> tuple[int, Note] | None:
    """A smaller side than that of the images, and why, for a model from scratch on a CPU. None: the images keep their size.

    In the same time a small model learns more from images of 64 pixels in patches of 8 than from larger ones in larger patches
    (results/nano.md). For a pretext task nobody has measured it; there a large set is made smaller to save time and memory.

    size      (height, width) of `count` images
    pretext   whether the model is one for a pretext task, and not the one that `fit` would train

    >>> image_size((128, 128), 500, "cpu", pretext=False)[0], image_size((32, 32), 500, "cpu", pretext=False)
    (64, None)
    """
    if device_type != "cpu" or size[0] != size[1] or size[0] <= CPU_SIDE or (pretext and count < FEW_IMAGES):
        return None
    why = "time" if pretext else "learning"
    return CPU_SIDE, Note("img-size-chosen", {"img_size": CPU_SIDE, "images": count, "side": size[0], "why": why})
