"""The automatic choices for a model that starts from pretrained weights: what is trained, at which size, and for how long.

On a CPU time decides, so a third of the blocks is frozen, the images are smaller than those of the pretraining, and bf16 is
used where the CPU has instructions for it. More steps at 160 pixels gain more than finer images. On a GPU all weights are
trained at the size of the pretraining.

Training sees crops, which show things larger than whole images do. So the model is used on images that are larger than those of
training by about 8/7, which gains some points (Touvron et al., 2019). All of this was measured: results/finetuning.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softbias.notes import Note
from softbias.training.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.data.sources import Source
    from softbias.runs.partial import PartialRunSpec
    from softbias.runs.spec import RunSpec

RECIPE = "finetune"
ALL_MINUTES, LEAST_MINUTES = 7.3, 3.0  # that a fine-tuning on a CPU takes in all, and its training at least
SECONDS_AFTER, SECONDS_PER_TEST = 35.0, 0.01  # after the training: baseline, page and files, and for every test image
PRETRAINED_SIDE = 224  # pixels; a model of this side gets another one, as the device and the pictures suggest
GPU_SIDE, CPU_SIDE, CPU_SMALL_SIDE = 256, 192, 112  # of the model in use; the last one for small pictures, see SMALL
SMALL = 64  # pixels: pictures below this side gain nothing from CPU_SIDE
TRAINED = 7 / 8  # of the model's side: that of the images in training
FROZEN = 3  # on a CPU one block in three is frozen
WHOLE = 1.4  # whole pictures, from which crops are cut, are kept at this many times the side
WHOLE_BYTES = 4 * 2**30  # that whole pictures may take, on disk and in memory
GPU_RECIPE = {"layer_decay": 0.75, "randaugment": "rand-m9-mstd0.5-inc1", "erasing": 0.25}
NO_BLOCKS = {"layer_decay": 1.0, "drop_path": 0.0}  # what a model without blocks cannot have
GPU_IMAGES, GPU_EPOCHS = 600_000, (30.0, 300.0)  # seen in one training on a GPU, and the limits of its epochs
LEAST_STEPS = 300  # of a training, however few images there are
PROCESS_BYTES = 1.5e9  # of Python, torch and evaluation in large batches; measured, see results/finetuning.md
BYTES_PER_VALUE = 34  # that training keeps for a token, a block and a channel, in bf16 (Korthikanti et al., 2022)


def recipe_for(model: str, device: str, n_train: int) -> Recipe:
    """The recipe `finetune` as it suits the device; `train_side` adds the size of the images in training."""
    preset, shape = find_recipe(RECIPE), shape_of(model)
    suiting: dict[str, Any]
    epochs = preset.epochs
    if device == "cpu":
        from softbias.kernels.torch_api import cpu_has_bf16

        suiting = {"frozen_blocks": shape.depth // FROZEN, "precision": "bf16" if cpu_has_bf16() else "fp32"}
    else:
        epochs, suiting = min(max(GPU_IMAGES / n_train, GPU_EPOCHS[0]), GPU_EPOCHS[1]), dict(GPU_RECIPE)
    least = LEAST_STEPS / max(1, n_train // preset.batch_size)
    suiting |= {"epochs": float(math.ceil(max(epochs, least)))}
    return preset.with_overrides(suiting if shape.depth else suiting | NO_BLOCKS)


def suited(recipe: Recipe, model: str, options: Mapping[str, Any], start: str, img_size: tuple[int, int]) -> Recipe:
    """The recipe for a model with these options, which is used at `img_size`: the size of training for pretrained weights, and
    the share of frozen blocks where the options change the depth."""
    depth, changes = options.get("depth"), dict[str, Any]()
    if start == "pretrained":
        changes["train_size"] = train_side(model, img_size, patch_in(options))
    if isinstance(depth, int) and recipe.frozen_blocks:
        changes["frozen_blocks"] = depth // FROZEN
    return recipe.with_overrides(changes)


def cpu_minutes(seconds_before: float, n_test: int) -> float:
    """Of training on a CPU, where the user gives neither a time nor a length: what is left of ALL_MINUTES.

    >>> cpu_minutes(10, 500), cpu_minutes(10, 2500), cpu_minutes(3600, 0)
    (6.5, 6.1, 3.0)
    """
    after = SECONDS_AFTER + SECONDS_PER_TEST * n_test
    return round(max(LEAST_MINUTES, ALL_MINUTES - (seconds_before + after) / 60), 1)


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


def side_for(model: str, side: int, device: str, own_side: int | None) -> int:
    """The side of a model that was pretrained at `side`, if its positions can be interpolated.

    own_side   of the images, where it is known
    """
    patch = shape_of(model).patch if side == PRETRAINED_SIDE else 0
    small = own_side is not None and own_side < SMALL
    suiting = (CPU_SMALL_SIDE if small else CPU_SIDE) if device == "cpu" else GPU_SIDE
    suiting = suiting if is_ours(model) else int(TRAINED * suiting)
    return suiting // patch * patch if patch else side


def train_side(model: str, img_size: tuple[int, int], patch: int | None = None) -> int | None:
    """The side of the images in training for a model that is used at `img_size`; None where it is the same.

    patch   of the model, where it is not that of its preset

    >>> [train_side("deit_tiny", (side, side)) for side in (112, 192, 224, 256)]
    [96, 160, 192, 224]
    """
    patch = (patch or shape_of(model).patch) if is_ours(model) and img_size[0] == img_size[1] else 0
    side = round(TRAINED * img_size[0] / patch) * patch if patch else 0
    return side if 0 < side < img_size[0] else None


def is_ours(model: str) -> bool:
    """Whether a model can be resized after its training: one of ours, by its name."""
    return ":" not in model


def whole_side(side: int, source: Source, resize_mode: str | None) -> int | None:
    """The side at which whole pictures are kept for crops; None where that is of no use, or takes too much memory."""
    larger = round(WHOLE * side)
    fits = source.count is not None and source.count * larger**2 * 3 <= WHOLE_BYTES
    return larger if fits and resize_mode in (None, "crop") else None


def data_options(partial: PartialRunSpec, device: str, source: Source | None, own_side: int | None = None) -> dict[str, Any]:
    """The options of the data, with the size that suits pretrained weights and the device; what the user named stays.

    source     the images, where they are not in memory yet
    own_side   of the images, where it is known
    """
    options, start = dict(partial.data_options), partial.settled_start
    if start is None or start.kind != "pretrained":
        return options
    if "img_size" not in options and start.img_size is not None:
        height, width = start.img_size
        options["img_size"] = side_for(partial.model or "", height, device, own_side) if height == width else start.img_size
    side = options.get("img_size")
    crops = {partial.overrides.get(name, "resized") for name in ("crop", "augmentation.crop")} == {"resized"}
    if crops and partial.recipe in (RECIPE, None) and source is not None and isinstance(side, int):
        trained = (
            partial.overrides.get("train_size")
            or train_side(partial.model or "", (side, side), patch_in(partial.model_options))
            or side
        )
        larger = whole_side(trained, source, options.get("resize_mode"))
        options |= {} if larger is None or "crop_from" in options else {"crop_from": larger}
    return options


def patch_in(options: Mapping[str, Any]) -> int | None:
    """The side of the patches, where the user or the weights name it."""
    patch = options.get("patch_size")
    return patch if isinstance(patch, int) else None


def cost_note(spec: RunSpec, n_train: int, data: Dataset, minutes: float | None, *, named: bool = False) -> Note:
    """What will be trained, and what it takes; without minutes the time is not known. named: whether the user named them."""
    recipe, side, whole = (
        spec.recipe,
        spec.recipe.train_size or max(data.img_size),
        0 if data.whole is None else data.whole.images.shape[1],
    )
    shape = shape_of(spec.model)
    trained = max(0, int(spec.model_options.get("depth", shape.depth)) - recipe.frozen_blocks)
    values: dict[str, Any] = {
        "img_size": side,
        "frozen": recipe.frozen_blocks,
        "trained": trained,
        "precision": recipe.precision,
    }
    values |= {"used_at": max(data.img_size)} if recipe.train_size else {}
    values |= {"memory": memory_of(recipe, n_train, max(side, whole), values_of(shape, side) * trained)}
    return Note("finetuning-cost", values if minutes is None else {**values, "minutes": minutes, "named": named})


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
