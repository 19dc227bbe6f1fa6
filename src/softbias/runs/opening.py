"""From the name of a model to a classifier: a run, a saved model, a preset, or a module in memory.

    classifier = open_classifier("runs/flowers-convit_nano-1a2b3c4d5e")     # or "hf:FOLDER", "timm:NAME", "convit_nano"
    classifier.read("cat.jpg")                                              # as the model sees it, (height, width, 3)

A model that is given by its name gets fresh weights, and is called untrained in every output. A run that is not finished is
opened at its last checkpoint, and its name then includes the step. Weights are read from safetensors files only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbias.checksums import DamagedError
from softbias.classifier import Classifier, weights_of
from softbias.data.dataset import Dataset
from softbias.data.listing import some
from softbias.errors import SoftbiasError
from softbias.models import create_model, list_models
from softbias.models.convert import resize
from softbias.models.spec import Spec
from softbias.models.storage import is_whole
from softbias.models.weights import load_state
from softbias.runs.prepare import build_model, load_head, normalization, output_names, train_size
from softbias.runs.run import Checkpoint, Run
from softbias.runs.spec import RunSpec
from softbias.runs.start import Start
from softbias.training import checkpoint as stored
from softbias.training.batches import channel_statistics
from softbias.training.objectives import find_objective

Source = str | Path | nn.Module | Classifier | Run
HEAD_ONLY = "untrained but for its head"


def open_classifier(
    source: Source, *, device: str = "cpu", read: Callable[..., Dataset] | None = None, **options: Any
) -> Classifier:
    """The classifier that a user names.

    read      the function that reads the data set of a run that is not finished, see `Run.classifier`
    options   for `create_model`, where the source is the name of a model
    """
    if isinstance(source, Classifier):
        return source
    if isinstance(source, nn.Module):
        return Classifier.of(source)
    if not isinstance(source, Run) and is_built(source):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            classifier = Classifier.of(create_model(str(source), **options, device=device), str(source))
        return classifier if options.get("pretrained") else replace(classifier, weights="untrained")
    if options:
        raise SoftbiasError(f"model options are for models that are built by name, but {source} is read from files")
    run = find_run(source)
    if run is not None:
        return run.classifier(device=device, read=read)
    return Classifier.load(saved_model(str(source)), device)


def find_run(source: Source) -> Run | None:
    """The run that a user names; None for everything else."""
    if isinstance(source, Run):
        return source
    if not isinstance(source, str | Path) or is_built(source):
        return None
    run = Run(source)
    return run if run.begun else None


def runs_in(folder: Path) -> list[Run]:
    """The finished runs with a classifier in a study's folder, or in any folder of runs; none for everything else."""
    if Run(folder).begun or (folder / "config.json").is_file():
        return []
    found = [Run(file.parent) for pattern in ("*/summary.json", "runs/*/summary.json") for file in sorted(folder.glob(pattern))]
    return [run for run in found if run.finished and not run.summary().get("pretext")]


def is_built(source: str | Path) -> bool:
    """Whether the source names a model to build with fresh weights, and not files to read."""
    text = str(source)
    return text.startswith("timm:") or (text in list_models() and not Path(text).exists())


def saved_model(source: str) -> Path:
    """The folder of a saved model; an error describes any other folder."""
    folder = Path(source.removeprefix("hf:"))
    if (folder / "config.json").is_file():
        return folder
    if not folder.exists() and "/" not in source and ":" not in source:
        raise SoftbiasError(
            f"{source} does not exist: it is neither a folder nor a model's name; give a run, a saved model, hf:FOLDER, "
            "timm:NAME, or a name that `softbias models` lists"
        )
    if not folder.exists():
        raise SoftbiasError(f"{folder} does not exist; give the folder of a run or of a saved model")
    inside = sorted(str(each.parent) for each in folder.glob("*/summary.json")) if folder.is_dir() else []
    if inside:
        raise SoftbiasError(f"there is no model in {folder}: it holds runs; give one of them: {some(inside)}")
    raise SoftbiasError(f"there is no model in {folder}: it has no config.json")


def open_run(run: Run, device: str, read: Callable[..., Dataset] | None = None) -> Classifier:
    """The model of a run as it is now; `Run.classifier` calls this."""
    if not run.finished and not (run.model_folder / "config.json").is_file():
        return open_last_checkpoint(run, device, read)
    try:
        classifier = Classifier.load(run.model_folder, device)
    except SoftbiasError as error:
        if not is_whole(run.model_folder):
            raise DamagedError(f"{error}; the command that began the run, with --resume, restores it") from error
        raise
    weights = weights_in_run(classifier.model, run.spec)
    return replace(classifier, name=run.path.resolve().name, weights=weights)


def open_last_checkpoint(run: Run, device: str, read: Callable[..., Dataset] | None) -> Classifier:
    """The classifier of a run that has no final model yet, because it was stopped or is being trained."""
    found = stored.read_last(run.checkpoint_folder, stored.TrainingMeta)
    if found is None:
        raise SoftbiasError(
            f"there is no model in {run.path}: its training is not finished, and it has no checkpoint yet; "
            "continue it by the command that began it, with --resume"
        )
    tensors, meta, damaged = found
    spec, data = run.spec, run.data(read)
    names = output_names(spec, data)
    given = spec
    if spec.start.kind == "pretrained":  # the checkpoint overwrites these weights, so they need not be found
        given = replace(spec, start=Start())
    model = untrained(run, given, len(names), train_size(spec, data.img_size))
    load_state(model, kept_weights(tensors, model, spec), run.checkpoint_folder)
    model = sized(model, data.img_size)
    known = normalization(spec.start, run.source_folder)
    mean, std = known or channel_statistics(data, run.split(data).train)
    step = f"step {meta['step']:,} of {meta['total_steps']:,}"
    lost = f"; later checkpoints are damaged: {some(damaged)}" if damaged else ""
    title = f"{run.path.resolve().name} ({step}{lost})"
    return Classifier.of(
        model.to(device), title, weights=weights_in_run(model, spec), img_size=data.img_size, mean=mean, std=std,
        resize_mode=spec.data_options.get("resize_mode") or "crop", value_range=data.value_range, class_names=names,
    )  # fmt: skip


def at_checkpoint(run: Run, classifier: Classifier, checkpoint: Checkpoint) -> Classifier:
    """The classifier of a run as it was at a checkpoint; `Run.classifier` calls this."""
    model, size = classifier.model, classifier.img_size
    assert size is not None
    trained_at = train_size(run.spec, size)
    if checkpoint.path is None:
        classes = model.num_classes
        assert isinstance(classes, int)
        model = sized(untrained(run, run.spec, classes, trained_at), size)
        weights = weights_of(model)
    else:
        tensors, _ = stored.read(checkpoint.path)
        model = sized(copy.deepcopy(model), trained_at)
        load_state(model, kept_weights(tensors, model, run.spec), checkpoint.path)
        model = sized(model, size)
        weights = weights_in_run(model, run.spec)
    changed = classifier.with_model(model.to(classifier.device))
    return replace(changed, weights=weights, when={"step": checkpoint.step})


def untrained(run: Run, spec: RunSpec, classes: int, img_size: tuple[int, int]) -> nn.Module:
    """The model before its first step, built again from its seed as training built it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = build_model(spec, classes, img_size, run.source_folder)
    if run.head_path.is_file():
        load_head(model, run.head_path)
    return model


def sized(model: nn.Module, img_size: tuple[int, int]) -> nn.Module:
    """The model for a size, where it has another one; a model that is not ours is trained at the size of its use."""
    spec = getattr(model, "spec", None)
    return resize(model, img_size) if isinstance(spec, Spec) and spec.img_size != img_size else model


def averaged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint that the model gets: the averaged ones, if the recipe averages."""
    return stored.part("ema", tensors) or stored.part("model", tensors)


def kept_weights(tensors: Mapping[str, Tensor], model: nn.Module, spec: RunSpec) -> dict[str, Tensor]:
    """The weights of a checkpoint that a finished model has: without the head by which features are learned."""
    found = averaged(tensors)
    if not find_objective(spec.recipe.objective).learns_features:
        return found
    own = model.state_dict()
    return {name: tensor for name, tensor in found.items() if name in own}


def weights_in_run(model: nn.Module, spec: RunSpec) -> str:
    """How far the weights are trained. Only the spec tells whether a head was trained on a frozen backbone."""
    weights = weights_of(model)
    return HEAD_ONLY if spec.finetune == "linear" and weights == "untrained" else weights


def unique(names: list[str]) -> list[str]:
    """The names, with a number after each repeated one.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    found: list[str] = []
    for index, name in enumerate(names):
        before = names[:index].count(name)
        found.append(f"{name} ({before + 1})" if before else name)
    return found
