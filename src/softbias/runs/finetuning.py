"""The automatic choices for a model that starts from pretrained weights: what is trained, at which size, and for how long.

On a CPU time decides, so a third of the blocks is frozen, the images are smaller than those of the pretraining, and bf16 is
used where the CPU has instructions for it. More steps at 160 pixels gain more than finer images (results/finetuning.md). On a
GPU all weights are trained at the model's own size.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from softbias.notes import Note
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.sources import Source

RECIPE = "finetune"
CPU_MINUTES = 5.5  # of training on a CPU, where the user gives neither a time nor a length
CPU_SIDE, PRETRAINED_SIDE = 160, 224  # pixels: what a model of the second side is trained at on a CPU
FROZEN = 3  # on a CPU one block in three is frozen
WHOLE = 1.4  # whole pictures, from which crops are cut, are kept at this many times the side
WHOLE_BYTES = 4 * 2**30  # that whole pictures may take, on disk and in memory
GPU_RECIPE = {"layer_decay": 0.75, "lr": 5e-4, "drop_path": 0.1, "mixup": 0.2, "cutmix": 1.0, "mix_probability": 0.5}
GPU_IMAGES, GPU_EPOCHS = 200_000, (15.0, 80.0)  # seen in one training on a GPU, and the limits of its epochs
PROCESS_BYTES = 0.9e9  # of Python, torch and the rest
BYTES_PER_VALUE = 34  # that training keeps for a token, a block and a channel, in bf16 (Korthikanti et al., 2022)


def recipe_for(model: str, device: str, n_train: int) -> Recipe:
    """The recipe `finetune` as it suits the device."""
    preset = find_recipe(RECIPE)
    if device != "cpu":
        epochs = float(round(min(max(GPU_IMAGES / n_train, GPU_EPOCHS[0]), GPU_EPOCHS[1])))
        decay = {} if shape_of(model)[0] else {"layer_decay": 1.0}  # which needs blocks
        return preset.with_overrides({"epochs": epochs, **GPU_RECIPE, **decay})
    from softbias.kernels.torch_api import cpu_has_bf16

    return replace(preset, frozen_blocks=shape_of(model)[0] // FROZEN, precision="bf16" if cpu_has_bf16() else "fp32")


def shape_of(model: str) -> tuple[int, int]:
    """The number of blocks and the width of a model by name; 0 for one without blocks, or one that cannot be built so."""
    from softbias.errors import SoftbiasError
    from softbias.models import create_model

    try:
        built: Any = create_model(model, device="meta")
    except (SoftbiasError, NotImplementedError, RuntimeError):  # some of timm's need values while they are built
        return 0, 0
    blocks = getattr(built, "blocks", None)
    return (0, 0) if blocks is None else (len(blocks), int(getattr(built, "num_features", 0)))


def side_for(model: str, side: int, device: str) -> int:
    """The side of the training images for a model that was pretrained at `side`.

    >>> side_for("deit_tiny", 224, "cpu"), side_for("deit_tiny", 224, "cuda"), side_for("timm:vit_small_patch14_x", 224, "cpu")
    (160, 224, 154)
    """
    if device != "cpu" or side != PRETRAINED_SIDE:
        return side
    patch = int(found[1]) if (found := re.search(r"patch(\d+)", model)) else 16
    return CPU_SIDE // patch * patch or side


def whole_side(side: int, source: Source, resize_mode: str | None) -> int | None:
    """The side at which whole pictures are kept for crops; None where that is of no use, or takes too much memory."""
    larger = round(WHOLE * side)
    fits = source.count is not None and source.count * larger**2 * 3 <= WHOLE_BYTES
    return larger if fits and resize_mode in (None, "crop") else None


def cost_note(model: str, recipe: Recipe, n_train: int, side: int, whole: int | None, minutes: float | None) -> Note:
    """What will be trained, and what it takes; without minutes the time is not known."""
    depth, width = shape_of(model)
    trained = max(0, depth - recipe.frozen_blocks)
    values: dict[str, Any] = {
        "img_size": side,
        "frozen": recipe.frozen_blocks,
        "trained": trained,
        "precision": recipe.precision,
    }
    values |= {"memory": memory_of(recipe, n_train, max(side, whole or 0), (side // 16) ** 2 * width * trained)}
    return Note("finetuning-cost", values if minutes is None else {**values, "minutes": minutes})


def memory_of(recipe: Recipe, n_train: int, side: int, values: int) -> float:
    """Bytes: the images once as they are read and once as they are trained on, and what a batch keeps for its gradients.

    side     at which images are kept
    values   of an image, in all trained blocks together
    """
    images = 2 * n_train * 3 * side**2
    kept = min(recipe.batch_size, n_train) * values * BYTES_PER_VALUE * (1 if recipe.precision == "bf16" else 2)
    return PROCESS_BYTES + images + kept
