"""The automatic choices for objectives that learn features from images alone (`training.objectives.features`).

The model is the one that `fit` would train from scratch on these images, so that `fit --start RUN` continues with it. The
recipe is named as the objective. Pretraining is given about the time that training from scratch gets.

Nothing here imports torch before an objective is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from softbias.notes import Note
from softbias.runs import automatic
from softbias.runs.automatic import Choice
from softbias.training.objectives import find_objective
from softbias.training.recipe import RECIPES

RECIPE = "views"  # for an objective that has no recipe of its name
CPU_BATCH = 64
GPU_BATCH = 128  # at least: the more images are compared, the more there is to learn from a batch


def choose(n_train: int, img_size: tuple[int, int], device_type: str, cores: int, *, objective: str) -> Choice:
    """Model, recipe and epochs for `n_train` training images of (height, width).

    >>> choice = choose(5000, (32, 32), "cpu", 2, objective="views")
    >>> choice.recipe_name, choice.recipe.batch_size
    ('views', 64)
    """
    scratch = automatic.choose(n_train, img_size, device_type, cores)
    name = objective if objective in RECIPES else RECIPE
    preset = replace(RECIPES[name], objective=objective)
    views = find_objective(objective).views(preset)
    if device_type == "cpu":
        assert scratch.images_per_second is not None  # it is known on a CPU
        epochs, limits = automatic.CPU_SECONDS * scratch.images_per_second / (views * n_train), automatic.EPOCHS_ON_CPU
        batch = CPU_BATCH
        values: dict[str, Any] = {"why": "time"}
    else:
        epochs, limits = scratch.recipe.epochs / views, automatic.EPOCHS_ON_GPU
        batch = max(GPU_BATCH, scratch.recipe.batch_size)
        values = {"why": "images", "batch_size": batch}
    epochs = automatic.rounded(automatic.within(epochs, limits))
    values |= {"recipe": name, "epochs": epochs} | ({} if device_type == "cpu" else {"images": round(epochs * n_train)})
    recipe = automatic.in_batches_of(replace(preset, epochs=epochs), batch)
    reasons = (scratch.reasons[0], Note("recipe-chosen", values))
    return replace(scratch, recipe=recipe, recipe_name=name, reasons=reasons, strength=None)
