"""The automatic choices for a model that starts from pretrained weights: what is trained, at which size, and for how long.

On a CPU time decides, so a third of the blocks is frozen, the images are smaller than those of the pretraining, and bf16 is
used where the CPU has instructions for it. More steps at 160 pixels gain more than finer images (results/finetuning.md). On a
GPU all weights are trained at the model's own size.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from softbias.notes import Note
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.data.sources import Source
    from softbias.runs.partial import PartialRunSpec
    from softbias.runs.spec import RunSpec

RECIPE = "finetune"
CPU_MINUTES = 5.5  # of training on a CPU, where the user gives neither a time nor a length
CPU_SIDE, PRETRAINED_SIDE = 160, 224  # pixels: what a model of the second side is trained at on a CPU
FROZEN = 3  # on a CPU one block in three is frozen
WHOLE = 1.4  # whole pictures, from which crops are cut, are kept at this many times the side
WHOLE_BYTES = 4 * 2**30  # that whole pictures may take, on disk and in memory
GPU_RECIPE = {"layer_decay": 0.75, "lr": 5e-4, "drop_path": 0.1, "mixup": 0.2, "cutmix": 1.0, "mix_probability": 0.5}
GPU_IMAGES, GPU_EPOCHS = 200_000, (15.0, 80.0)  # seen in one training on a GPU, and the limits of its epochs
PROCESS_BYTES = 1.5e9  # of Python, torch and evaluation in large batches; measured, see results/finetuning.md
BYTES_PER_VALUE = 34  # that training keeps for a token, a block and a channel, in bf16 (Korthikanti et al., 2022)


def recipe_for(model: str, device: str, n_train: int) -> Recipe:
    """The recipe `finetune` as it suits the device."""
    preset = find_recipe(RECIPE)
    if device != "cpu":
        epochs = float(round(min(max(GPU_IMAGES / n_train, GPU_EPOCHS[0]), GPU_EPOCHS[1])))
        decay = {} if shape_of(model).depth else {"layer_decay": 1.0}  # which needs blocks
        return preset.with_overrides({"epochs": epochs, **GPU_RECIPE, **decay})
    from softbias.kernels.torch_api import cpu_has_bf16

    return replace(preset, frozen_blocks=shape_of(model).depth // FROZEN, precision="bf16" if cpu_has_bf16() else "fp32")


@dataclass(frozen=True)
class Shape:
    """Blocks, channels and side of the patches of a model; all 0 for one without blocks and learned positions."""

    depth: int = 0
    width: int = 0
    patch: int = 0


@functools.cache
def shape_of(model: str) -> Shape:
    """The shape of a model by name; its weights are not made."""
    from softbias.errors import SoftbiasError
    from softbias.models import create_model

    try:
        built: Any = create_model(model, device="meta")
    except (SoftbiasError, NotImplementedError, RuntimeError):  # some of timm's need values while they are built
        return Shape()
    blocks, embedding = getattr(built, "blocks", None), getattr(built, "patch_embed", None)
    patch = getattr(embedding, "patch_size", None)
    if blocks is None or patch is None or getattr(built, "pos_embed", None) is None:
        return Shape()
    return Shape(len(blocks), int(built.num_features), int(patch if isinstance(patch, int) else max(patch)))


def side_for(model: str, side: int, device: str) -> int:
    """The side of the training images for a model that was pretrained at `side`: smaller on a CPU, if its positions can be
    interpolated."""
    patch = shape_of(model).patch if device == "cpu" and side == PRETRAINED_SIDE else 0
    return CPU_SIDE // patch * patch if patch else side


def whole_side(side: int, source: Source, resize_mode: str | None) -> int | None:
    """The side at which whole pictures are kept for crops; None where that is of no use, or takes too much memory."""
    larger = round(WHOLE * side)
    fits = source.count is not None and source.count * larger**2 * 3 <= WHOLE_BYTES
    return larger if fits and resize_mode in (None, "crop") else None


def data_options(partial: PartialRunSpec, device: str, source: Source | None) -> dict[str, Any]:
    """The options of the data, with the size that suits pretrained weights and the device; what the user named stays.

    source   the pictures, where they are not in memory yet
    """
    options, start = dict(partial.data_options), partial.settled_start
    if start is None or start.kind != "pretrained":
        return options
    if "img_size" not in options and start.img_size is not None:
        height, width = start.img_size
        options["img_size"] = side_for(partial.model or "", height, device) if height == width else start.img_size
    side = options.get("img_size")
    crops = {partial.overrides.get(name, "resized") for name in ("crop", "augmentation.crop")} == {"resized"}
    if crops and partial.recipe in (None, RECIPE) and source is not None and isinstance(side, int):
        larger = whole_side(side, source, options.get("resize_mode"))
        options |= {} if larger is None or "crop_from" in options else {"crop_from": larger}
    return options


def cost_note(spec: RunSpec, n_train: int, data: Dataset, minutes: float | None) -> Note:
    """What will be trained, and what it takes; without minutes the time is not known."""
    recipe, side, whole = spec.recipe, max(data.img_size), 0 if data.whole is None else data.whole.images.shape[1]
    shape = shape_of(spec.model)
    trained = max(0, shape.depth - recipe.frozen_blocks)
    values: dict[str, Any] = {
        "img_size": side,
        "frozen": recipe.frozen_blocks,
        "trained": trained,
        "precision": recipe.precision,
    }
    values |= {"memory": memory_of(recipe, n_train, max(side, whole), values_of(shape, side) * trained)}
    return Note("finetuning-cost", values if minutes is None else {**values, "minutes": minutes})


def values_of(shape: Shape, side: int) -> int:
    """Of an image in one block."""
    return (side // shape.patch) ** 2 * shape.width if shape.patch else 0


def memory_of(recipe: Recipe, n_train: int, side: int, values: int) -> float:
    """Bytes: the images once as they are read and once as they are trained on, and what a batch keeps for its gradients.

    side     at which images are kept
    values   of an image, in all trained blocks together
    """
    images = 2 * n_train * 3 * side**2
    kept = min(recipe.batch_size, n_train) * values * BYTES_PER_VALUE * (1 if recipe.precision == "bf16" else 2)
    return PROCESS_BYTES + images + kept
