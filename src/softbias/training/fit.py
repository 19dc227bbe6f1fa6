"""From a run's spec to a finished run directory."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.listing import Listing
from softbias.data.splits import nested_fraction, stratified_split, write_manifest
from softbias.inspection import unwrap
from softbias.models import create_model
from softbias.models.resize import resize
from softbias.models.storage import load, save
from softbias.models.weights import load_weights
from softbias.training import checkpoint
from softbias.training.batches import Batches, Pixels, channel_statistics
from softbias.training.display import Display, Quiet
from softbias.training.evaluate import predict_probabilities
from softbias.training.loop import Plan, rotation_scores, train
from softbias.training.recipe import Recipe
from softbias.training.run import RunDirectory, RunSpec, environment, write_text
from softbias.training.scores import score
from softbias.training.state import State

UNEVEN = 3.0  # classes that differ by more get weights
CROP_MODES = {"crop": "center", "pad": "border", "stretch": "squash"}  # timm's words for our `fit`


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its scores, its model."""

    path: Path
    summary: dict[str, Any]
    model: nn.Module


def run_fit(
    spec: RunSpec,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data: Dataset | None = None,
    display: Display | None = None,
    keep: str = "last,best",
    minutes: float | None = None,
    device: str = "auto",
    trackers: tuple[str, ...] = ("tensorboard",),
    baseline: bool = True,
) -> Result:
    """Train the run that the spec defines, into a directory; `data` spares reading the set again."""
    display = display or Quiet()
    accelerator = accelerate_for(spec.recipe, device)
    directory = RunDirectory(Path(out) if out else Path("runs") / spec.title)
    if resume and directory.finished:
        different = directory.spec().to_dict() != spec.to_dict()
        if not different:
            display.message(f"{directory.path} is finished already")
            return Result(directory.path, directory.read_summary(), load(directory.model))
    fresh = not directory.config.is_file()
    if accelerator.is_main_process:
        directory.open(spec, resume=resume)
    accelerator.wait_for_everyone()
    try:
        data = data or load_dataset(spec.data, **spec.data_options)
        split = split_up(data, spec)
        for note in (*data.notes, *split.notes):
            display.message(note)
        plan = make_plan(spec, data, split, accelerator, directory, checkpoint.Keep.parse(keep))
        if data.files is not None and accelerator.is_main_process:
            write_split(directory.path / "split.csv", data, split)
        if accelerator.is_main_process:
            directory.begin(spec)
        on_epoch = start_trackers(accelerator, directory, trackers)
        started = time.perf_counter()
        state = train(plan, display, minutes=minutes, on_epoch=on_epoch)
        accelerator.wait_for_everyone()
        accelerator.end_training()
        load_selected(plan, state)
        summary = finish(spec, data, split, plan, state, directory, started, baseline)
        return Result(directory.path, summary, unwrap(plan.model).eval())
    except ValueError:  # settings that cannot be trained do not occupy the folder
        if fresh and accelerator.is_main_process and not directory.metrics.exists() and not directory.checkpoints.exists():
            directory.config.unlink(missing_ok=True)
        raise
    finally:
        directory.close()


def accelerate_for(recipe: Recipe, device: str) -> Accelerator:
    cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available() and not torch.backends.mps.is_available())
    bf16 = not cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    precision = {"auto": "bf16" if bf16 else "no", "fp32": "no"}.get(recipe.precision, recipe.precision)
    return Accelerator(mixed_precision=precision, cpu=cpu)


@dataclass(frozen=True)
class Split:
    train: NDArray[np.int64]
    val: NDArray[np.int64] | None
    test: NDArray[np.int64] | None
    notes: tuple[str, ...] = ()


def split_up(data: Dataset, spec: RunSpec) -> Split:
    """Training, validation and test pictures; the test pictures take part in no choice."""
    train, notes = data.splits["train"], []
    if spec.fraction < 100:
        train = nested_fraction(data.labels, train, spec.fraction, seed=0)
        notes.append(f"{len(train):,} training pictures, {spec.fraction:g} % of each class")
    val = data.splits.get("val")
    if val is None and spec.recipe.val_fraction and len(train) >= 20:
        parts = stratified_split(data.labels[train], {"val": spec.recipe.val_fraction}, seed=spec.seed)
        val, train = train[parts["val"]], train[parts["train"]]
        notes.append(f"{len(val):,} of the training pictures are kept for choosing the best epoch")
    return Split(train, val if val is not None and len(val) else None, data.splits.get("test"), tuple(notes))


def make_plan(
    spec: RunSpec, data: Dataset, split: Split, accelerator: Accelerator, directory: RunDirectory, keep: checkpoint.Keep
) -> Plan:
    device = accelerator.device
    rotation = spec.recipe.objective == "rotation"
    classes = 4 if rotation else len(data.class_names)
    torch.manual_seed(spec.seed)
    model = build_model(spec, classes, data.img_size)
    frozen = spec.finetune == "probe"
    if frozen:
        freeze_backbone(model)
    mean, std = channel_statistics(data, split.train)
    batches = Batches(
        Pixels(data, split.train, device), spec.recipe, spec.seed, classes, mean, std,
        accelerator.process_index, accelerator.num_processes,
    )  # fmt: skip
    validation = None if split.val is None else Pixels(data, split.val, device)
    weights = None if rotation else class_weights(data.labels[split.train], classes, spec.recipe)
    return Plan(
        accelerator, model.to(device), batches, validation, None if weights is None else weights.to(device),
        directory.checkpoints, directory.metrics, keep, frozen,
    )  # fmt: skip


def build_model(spec: RunSpec, classes: int, img_size: tuple[int, int]) -> nn.Module:
    """A fresh model, one with given weights, or the model of another run with a new head."""
    if spec.source:
        model: Any = load(Path(spec.source) / "model" if (Path(spec.source) / "model").is_dir() else spec.source)
        if getattr(model, "spec", None) is not None and model.spec.img_size != img_size:
            model = resize(model, img_size)
        model.reset_classifier(classes)
        model.class_names = None
        return model.train()
    options = dict(spec.model_options)
    if spec.model.startswith("timm:"):
        options |= {"pretrained": True} if spec.pretrained else {}
        options.setdefault("drop_path_rate", spec.recipe.drop_path)
    elif not spec.model.startswith("hf:"):
        options.setdefault("drop_path", spec.recipe.drop_path)
    model = create_model(spec.model, num_classes=classes, img_size=img_size, **options)
    if spec.weights:
        if hasattr(model, "spec"):
            load_weights(model, spec.weights, keep_head=True)
        else:
            from softbias.models.weights import head_names, read_state_dict

            state = read_state_dict(spec.weights)
            model.load_state_dict({**state, **{n: t for n, t in model.state_dict().items() if n in head_names(model)}})
    return model


def freeze_backbone(model: Any) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in model.get_classifier().parameters():
        parameter.requires_grad_(True)


def class_weights(labels: NDArray[np.int64], classes: int, recipe: Recipe) -> torch.Tensor | None:
    """Inverse frequencies with mean one over the training pictures, where the recipe asks for them."""
    counts = np.bincount(labels, minlength=classes)
    uneven = counts.max() > UNEVEN * max(1, counts[counts > 0].min())
    if recipe.class_weights == "none" or (recipe.class_weights == "auto" and not uneven):
        return None
    inverse = np.where(counts > 0, len(labels) / (classes * np.maximum(counts, 1)), 0.0)
    return torch.tensor(inverse, dtype=torch.float32)


def start_trackers(accelerator: Accelerator, directory: RunDirectory, trackers: tuple[str, ...]) -> Any:
    """TensorBoard, W&B or MLflow through accelerate; returns what to call with every epoch's row."""
    if not trackers:
        return None
    accelerator.project_configuration.set_directories(str(directory.path))
    accelerator.log_with, accelerator.project_configuration.logging_dir = [], str(directory.path)
    from accelerate.tracking import filter_trackers

    try:
        accelerator.log_with = filter_trackers(list(trackers), str(directory.path))
        accelerator.init_trackers("tensorboard")
    except Exception as error:
        warnings.warn(f"no tracker could be started: {error}", stacklevel=2)
        return None

    def log(row: dict[str, Any]) -> None:
        accelerator.log({name: value for name, value in row.items() if isinstance(value, int | float)}, step=row["step"])

    return log


def load_selected(plan: Plan, state: State) -> None:
    """Put the chosen weights into the model: those of the best epoch, or the last (averaged, if the recipe averages)."""
    best = plan.folder / "best" if plan.folder else None
    if plan.recipe.select == "best" and plan.validation is not None and best is not None and best.is_dir():
        tensors, _ = checkpoint.read(best)
        plan.model.load_state_dict(tensors)
    else:
        plan.model.load_state_dict(state.weights())


def finish(
    spec: RunSpec,
    data: Dataset,
    split: Split,
    plan: Plan,
    state: State,
    directory: RunDirectory,
    started: float,
    baseline: bool,
) -> dict[str, Any]:
    """Score the test pictures, and write the model, the predictions and the summary, which comes last."""
    model, batches = unwrap(plan.model), plan.batches
    accelerator = plan.accelerator
    rotation = spec.recipe.objective == "rotation"
    names = ("0°", "90°", "180°", "270°") if rotation else data.class_names
    summary: dict[str, Any] = {
        "status": "finished",
        "id": spec.id,
        "data": spec.data,
        "model": spec.model,
        "seed": spec.seed,
        "fraction": spec.fraction,
        "objective": spec.recipe.objective,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "pictures": {"train": len(split.train), "val": 0 if split.val is None else len(split.val)},
        "img_size": list(data.img_size),
        "steps": state.step,
        "epochs": state.step / batches.steps_per_epoch,
        "seconds": state.seconds,
        "images_per_second": state.step * batches.batch_size / max(state.seconds, 1e-9),
        "selected": spec.recipe.select if plan.validation is not None else "last",
        "best_epoch": state.best.epoch or None,
        "validation_accuracy": state.best.accuracy if state.best.epoch else None,
        "class_weights": plan.class_weights is not None,
        "notes": [*data.notes, *split.notes],
    }
    if accelerator.device.type == "cuda":
        summary["peak_memory"] = torch.cuda.max_memory_allocated()
    test = None if split.test is None else Pixels(data, split.test, accelerator.device)
    if test is not None and rotation:
        accuracy, loss = rotation_scores(plan, test)
        summary["test"] = {"n": 4 * len(test), "accuracy": accuracy, "log_loss": loss}
    elif test is not None:
        probabilities, labels = predict_probabilities(model, test, batches.mean, batches.std, precision=accelerator.autocast())
        summary["test"] = score(probabilities, labels, data.class_names)
    if not accelerator.is_main_process:
        return summary
    if test is not None and not rotation:
        assert split.test is not None
        write_predictions(directory.path / "predictions.parquet", data, split.test, probabilities, labels)
        if baseline:
            from softbias.training.baseline import pixel_baseline

            summary["baseline"] = pixel_baseline(data, split.train, split.test)
    preprocessing = {
        "mean": batches.mean,
        "std": batches.std,
        "crop_mode": CROP_MODES[spec.data_options.get("fit") or "crop"],
    }
    summary["preprocessing"] = preprocessing
    save(model, directory.model, class_names=names, preprocessing=preprocessing)
    write_text(directory.path / "environment.json", json.dumps(environment(accelerator.device.type), indent=2) + "\n")
    summary["total_seconds"] = time.perf_counter() - started
    write_text(directory.summary, json.dumps(summary, indent=2) + "\n")
    return summary


def write_split(path: Path, data: Dataset, split: Split) -> None:
    """Which file was in which split, as a CSV file that can be trained on and says it again."""
    assert data.files is not None
    root = Path(data.files[0]).parent
    listing = Listing(data.name, tuple(map(Path, data.files)), data.labels, data.class_names, root)
    parts = {"train": split.train, "val": split.val, "test": split.test}
    write_manifest(path, listing, {name: indices for name, indices in parts.items() if indices is not None})


def write_predictions(
    path: Path, data: Dataset, indices: NDArray[np.int64], probabilities: NDArray[np.float32], labels: NDArray[np.int64]
) -> None:
    import pandas

    table: dict[str, Any] = {"index": indices, "label": labels, "predicted": probabilities.argmax(1)}
    if data.files is not None:
        table["file"] = [data.files[index] for index in indices]
    table |= {f"p{number}": probabilities[:, number] for number in range(probabilities.shape[1])}
    aside = path.with_name(path.name + ".tmp")
    pandas.DataFrame(table).to_parquet(aside)
    aside.replace(path)


def fit(
    data: str | Path | Dataset,
    model: str = "convit_nano",
    recipe: str | Recipe = "quick",
    *,
    seed: int = 0,
    fraction: float = 100.0,
    out: str | Path | None = None,
    resume: bool = False,
    data_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    source: str | Path | None = None,
    finetune: str | None = None,
    device: str = "auto",
    display: Display | None = None,
    **overrides: Any,
) -> Result:
    """Train a model on a set and return the finished run.

    overrides   fields of the recipe and of its augmentation: `softbias.fit("fashion", lr=1e-3, flip=0)`
    """
    from softbias.training.recipe import find_recipe

    base = find_recipe(recipe) if isinstance(recipe, str) else recipe
    spec = RunSpec(
        data=data.name if isinstance(data, Dataset) else str(data),
        model=model,
        recipe=base.with_overrides(overrides),
        seed=seed,
        fraction=fraction,
        data_options=dict(data_options or {}),
        model_options=dict(model_options or {}),
        source=None if source is None else str(source),
        finetune=finetune or ("full" if source else None),
    )
    given = data if isinstance(data, Dataset) else None
    return run_fit(spec, out, resume=resume, data=given, display=display, device=device)
