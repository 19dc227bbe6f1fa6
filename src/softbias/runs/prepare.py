"""Before the first step of a run: its split, its model, class weights, and the plan that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import nn

from softbias.checksums import DamagedError
from softbias.data.dataset import Dataset
from softbias.data.partition import split_together
from softbias.data.splits import Split, nested_fraction, nested_part
from softbias.errors import SoftbiasError
from softbias.files import replacing
from softbias.kernels.launching import precompile
from softbias.models import create_model, weight_files
from softbias.models.conversion import converted, parse_conversion
from softbias.models.convert import resize
from softbias.models.spec import Spec
from softbias.models.storage import load
from softbias.models.weights import load_state, load_weights, read_state_dict
from softbias.notes import Note
from softbias.regularizers import RegularizerConfig, parse_regularizers
from softbias.regularizers.attach import find_sites
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start
from softbias.training import checkpoint
from softbias.training.balance import class_balance
from softbias.training.batches import Batches, SplitImages, channel_statistics
from softbias.training.depth import freeze_blocks
from softbias.training.head_start import linear_head, start_head
from softbias.training.objectives import find_objective
from softbias.training.objectives.base import Objective
from softbias.training.objectives.features import install_head
from softbias.training.plan import LoopSettings, TrainingPlan
from softbias.training.recipe import Recipe

FEW = 20  # training images; fewer than that are too few to keep some of them for choosing


def make_split(data: Dataset, spec: RunSpec) -> Split:
    """The split of a run. A share of the training images is the same for every seed. A number of each class depends on the
    seed, because of few images it matters which ones they are. Where the set has no validation images, the recipe's share of
    the training images is kept for choosing."""
    train, notes = data.splits["train"], []
    if spec.per_class is not None:
        number = spec.per_class
        train = nested_part(data.labels, train, lambda members: number, spec.seed)
        fewer = int((np.unique(data.labels[train], return_counts=True)[1] < number).sum())
        notes.append(Note("per-class", {"count": len(train), "per_class": number, "fewer": fewer}))
    if spec.train_fraction < 1:
        train = nested_fraction(data.labels, train, spec.train_fraction, seed=0)
        notes.append(Note("train-fraction", {"count": len(train), "fraction": spec.train_fraction}))
    val = data.splits.get("val")
    if val is None and spec.recipe.val_fraction and len(train) >= FEW:
        together = np.arange(len(train)) if data.groups is None else data.groups[train]
        parts, _ = split_together(data.labels[train], together, {"val": spec.recipe.val_fraction}, spec.seed)
        val, train = train[parts["val"]], train[parts["train"]]
        notes.append(Note("val-from-train", {"count": len(val)}))
    labels, classes = data.labels[train], len(data.class_names)
    if not find_objective(spec.recipe.objective).pretext and class_balance(labels, classes, spec.recipe):
        counts = np.bincount(labels, minlength=classes)
        notes.append(Note("classes-uneven", {"largest": int(counts.max()), "smallest": int(counts.min())}))
    return Split(train, val if val is not None and len(val) else None, data.splits.get("test"), tuple(notes))


def output_names(spec: RunSpec, data: Dataset) -> tuple[str, ...]:
    """The names of the model's outputs."""
    return find_objective(spec.recipe.objective).output_names(data.class_names)


def make_plan(
    spec: RunSpec,
    data: Dataset,
    split: Split,
    accelerator: Accelerator,
    directory: Run,
    keep: checkpoint.Keep,
    settings: LoopSettings | None = None,
) -> TrainingPlan:
    device = accelerator.device
    objective = find_objective(spec.recipe.objective)
    refuse_small_parts(spec.recipe, objective, len(split.train), accelerator.num_processes)
    classes = objective.count_outputs(data.class_names, len(split.train))
    torch.manual_seed(spec.seed)
    source = directory.source_of(spec.start)
    trained_at = train_size(spec, data.img_size)
    model = build_model(spec, classes, trained_at, source)
    if trained_at != data.img_size and (objective.learns_features or not isinstance(getattr(model, "spec", None), Spec)):
        raise SoftbiasError(
            f"train_size={spec.recipe.train_size} is for classifiers of ours, but this is {spec.model} with the objective "
            f"{spec.recipe.objective}; leave it out"
        )
    if objective.learns_features:
        install_head(model, objective)
    frozen = spec.finetune == "linear"
    regularizers = parse_regularizers(spec.recipe.regularize)
    freeze_blocks(model, spec.recipe.frozen_blocks)
    if frozen:
        if regularizers:
            raise SoftbiasError(f"--finetune linear trains the head alone, so {spec.recipe.regularize[0]} would change nothing")
        freeze_backbone(model)
    if regularizers:
        find_sites(model, regularizers, trained_at)  # refuses layers without a map
        refuse_frozen(regularizers, spec.recipe.frozen_blocks)
    model = model.to(device)
    if spec.recipe.compile != "on":  # torch.compile compiles the kernels itself
        together = min(spec.recipe.batch_size, len(split.train)) // (accelerator.num_processes * spec.recipe.accumulate)
        with accelerator.autocast():
            precompile(model, max(1, together) * objective.views(spec.recipe))
    mean, std = normalization(spec.start, source) or channel_statistics(data, split.train)
    images = SplitImages(data, split.train, device, whole=spec.recipe.augmentation.crop == "resized", size=trained_at)
    batches = Batches(
        images, spec.recipe, spec.seed, classes, mean, std,
        accelerator.process_index, accelerator.num_processes,
    )  # fmt: skip
    validation = None if split.val is None or objective.learns_features else SplitImages(data, split.val, device)
    balance = None if objective.pretext else class_balance(data.labels[split.train], classes, spec.recipe)
    plan = TrainingPlan(
        accelerator, model, batches, validation, None if balance is None else balance.to(device),
        directory.checkpoint_folder, directory.metrics_path, keep, frozen,
        None if trained_at == data.img_size else data.img_size, settings or LoopSettings.from_environment(),
    )  # fmt: skip
    if spec.recipe.head_start == "logistic":
        start_head_once(plan, data, split, directory)
    return plan


def train_size(spec: RunSpec, img_size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the images in training, for a model that is used at `img_size`."""
    side = spec.recipe.train_size
    return img_size if side is None else (side, side)


def refuse_small_parts(recipe: Recipe, objective: Objective, n_train: int, processes: int) -> None:
    """Refuse a loss that compares images where a batch has too few of them, or comes in parts."""
    if not objective.compares_images:
        return
    if recipe.accumulate > 1:
        raise SoftbiasError(
            f"--objective {recipe.objective} compares the pictures of a batch with each other, so a batch cannot come in "
            f"parts: leave out --accumulate {recipe.accumulate}, or take a smaller --batch-size"
        )
    together = min(recipe.batch_size, n_train) // processes
    if together < 2:
        raise SoftbiasError(
            f"--objective {recipe.objective} compares the pictures of a batch with each other, but a batch has {together}; "
            f"take --batch-size {2 * processes} or more"
        )


def build_model(spec: RunSpec, classes: int, img_size: tuple[int, int], source: Path | None = None) -> nn.Module:
    """The model that a run trains: the weights of its start, a head for its classes, and the attention that it asks for."""
    model = start_model(spec, classes, img_size, source)
    return model if spec.convert is None else converted(model, parse_conversion(spec.convert), spec.recipe.frozen_blocks)


def start_model(spec: RunSpec, classes: int, img_size: tuple[int, int], source: Path | None = None) -> nn.Module:
    """A fresh model, one with pretrained weights, or the model of another run (`source`, its folder) with a new head."""
    start = spec.start
    if source:
        model: Any = load(model_of_start(start, source))
        if getattr(model, "spec", None) is not None and model.spec.img_size != img_size:
            model = resize(model, img_size)
        model.reset_classifier(classes)
        model.class_names = None
        trained: nn.Module = model.train()
        return trained
    options = dict(spec.model_options)
    if spec.model.startswith("hf:"):
        return hugging_face_model(spec, classes, img_size)
    if spec.model.startswith("timm:"):
        options.setdefault("drop_path_rate", spec.recipe.drop_path)
    else:
        options.setdefault("drop_path", spec.recipe.drop_path)
    model = create_model(spec.model, num_classes=classes, img_size=img_size, **options)
    return load_weights(model, weights_of_start(start), keep_head=True) if start.kind == "pretrained" else model


def hugging_face_model(spec: RunSpec, classes: int, img_size: tuple[int, int]) -> nn.Module:
    """The model in a Hugging Face folder: with the folder's weights, or with others that the user named, or with fresh ones."""
    start, own = spec.start, Path(spec.model.removeprefix("hf:"))
    options = {"num_classes": classes, "img_size": img_size, **spec.model_options}
    if start.kind != "pretrained":
        return create_model(spec.model, pretrained=False, **options)
    found = weights_of_start(start)
    if found == own:
        return create_model(spec.model, **options)
    return load_weights(create_model(spec.model, pretrained=False, **options), found, keep_head=True)


def check_start(start: Start, source: Path | None) -> None:
    """Refuse a start whose weights have changed or are gone; source: the folder of its run, if it is one."""
    if source is not None:
        model_of_start(start, source)
    elif start.kind == "pretrained":
        weights_of_start(start)


def model_of_start(start: Start, source: Path) -> Path:
    """The folder of the model that a run began with, which must not have changed since."""
    folder = source / "model" if (source / "model").is_dir() else source
    if start.sha256 is not None and weight_files.digest(folder) != start.sha256:
        raise SoftbiasError(f"the model of {source} has changed since this run began with it; begin a new run")
    return folder


def weights_of_start(start: Start) -> Path:
    """The pretrained weights that a run began with, which must not have changed since."""
    assert start.path is not None and start.sha256 is not None
    return weight_files.find_by_hash(start.path, start.sha256, () if start.name is None else (start.name,))


def normalization(start: Start, source: Path | None) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation of the channels that the weights were trained with; None where they are not known."""
    mean, std = start.mean, start.std
    if source is not None and mean is None:
        from softbias.runs.named_starts import run_start

        found = run_start(str(source)).start
        mean, std = found.mean, found.std
    return None if mean is None or std is None else (mean, std)


def start_head_once(plan: TrainingPlan, data: Dataset, split: Split, directory: Run) -> None:
    """The head of `head_start`, which the run keeps in a file, so that it is fitted once."""
    model, batches, accelerator = plan.model, plan.batches, plan.accelerator
    if directory.head_path.is_file():
        with suppress(DamagedError):  # then it is fitted again
            load_head(model, directory.head_path)
            return
    if batches.objective.pretext:
        raise SoftbiasError(f"head_start='logistic' needs labels, but the objective {batches.recipe.objective} has none")
    images = SplitImages(data, split.train, accelerator.device)
    in_use = plan.in_use()
    start_head(in_use, images, batches.mean, batches.std, batches.classes, accelerator.autocast())
    linear_head(model).load_state_dict(linear_head(in_use).state_dict())
    if accelerator.is_main_process:
        with replacing(directory.head_path) as temporary:
            save_file({name: tensor.cpu() for name, tensor in linear_head(model).state_dict().items()}, temporary)


def load_head(model: nn.Module, path: Path) -> None:
    load_state(linear_head(model), read_state_dict(path), path)


def refuse_frozen(regularizers: Mapping[str, RegularizerConfig], frozen_blocks: int) -> None:
    """Refuse a regularizer of layers that never change."""
    for config in regularizers.values():
        if config.weight and all(0 <= layer < frozen_blocks for layer in config.layers):
            chosen = "+".join(map(str, config.layers))
            raise SoftbiasError(
                f"{config.name}:layer={chosen} would change nothing: the first {frozen_blocks} blocks are frozen; take a later "
                "layer, or --frozen-blocks 0"
            )


def freeze_backbone(model: Any) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in model.get_classifier().parameters():
        parameter.requires_grad_(True)
