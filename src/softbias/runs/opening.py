"""What a user names, opened: a run, a saved model, a name, or a module in memory, ready for pictures.

    opened = open_model("runs/flowers-convit_nano-1a2b3c4d5e")      # or "hf:FOLDER", "timm:NAME", "convit_nano", a module
    pixels = opened.read("cat.jpg")                                 # as the model sees it, (height, width, 3)
    early = opened.at(opened.moments()[0])                          # a run as it was before

A model by name has fresh weights, and is called untrained wherever it is shown. A run that is not finished is its last
checkpoint, and is named with its step wherever it is shown. Weights come from safetensors alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from softbias.classifier import Classifier, weights_of
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.decode import load, resized
from softbias.errors import SoftbiasError
from softbias.models import PRESETS, create_model
from softbias.models.export import input_size
from softbias.runs.predictor import Predictor
from softbias.runs.run import Run, RunSpec
from softbias.training import checkpoint

Picture = str | Path | IO[bytes] | Image.Image | NDArray[np.uint8]
HEAD_ONLY = "untrained but for its head"


@dataclass(frozen=True)
class Opened:
    """A classifier with the size its pictures must have, what becomes of their aspect ratio, and its run where it has one."""

    classifier: Classifier
    img_size: tuple[int, int]
    resize_mode: str = "crop"
    run: Run | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        model: Any = self.classifier.model
        return self.classifier.class_names or tuple(f"class {number}" for number in range(model.num_classes))

    def read(self, picture: Picture) -> NDArray[np.uint8]:
        """A picture as the model sees it; a file that is none raises BrokenPicture.  # (height, width, 3)"""
        if isinstance(picture, np.ndarray):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
                raise SoftbiasError(f"an array must be (height, width, 3) of uint8, but is {picture.shape} of {picture.dtype}")
            picture = Image.fromarray(picture)
        if not isinstance(picture, Image.Image):
            picture = load(picture, wanted=self.img_size).image
        return np.array(resized(picture.convert("RGB"), self.img_size, self.resize_mode))

    def tensor(self, pixels: NDArray[np.uint8]) -> Tensor:
        """# (height, width, 3) uint8 -> (1, 3, height, width), normalized"""
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.classifier.device).permute(2, 0, 1)[None]
        return self.classifier.normalized(images.float() / 255)

    def moments(self) -> list[Path | None]:
        """The checkpoints of its run, in order; before them None, its start, where nothing but the seed made that."""
        if self.run is None:
            return []
        saved, spec = checkpoint.listed(self.run.checkpoints), self.run.spec()
        seeded = spec.source is None and not spec.pretrained and spec.weights is None
        return [None, *saved] if saved and seeded else [*saved]

    def at(self, moment: Path | None) -> Opened:
        """The same as it was at a checkpoint; None: before its first step, built again from its seed."""
        assert self.run is not None
        spec, model = self.run.spec(), self.classifier.model
        if moment is None:
            classes: Any = model.num_classes
            model, step = untrained(self.run, spec, classes, self.img_size), 0
            weights = weights_of(model)
        else:
            tensors, meta = checkpoint.read(moment)
            model, step = copy.deepcopy(model), meta["step"]
            model.load_state_dict(averaged(tensors))
            weights = weights_in_run(model, spec)
        classifier = self.classifier.with_model(model.to(self.classifier.device))
        return replace(self, classifier=replace(classifier, weights=weights, when={"step": step}))


def open_model(
    source: str | Path | nn.Module | Opened,
    *,
    device: str = "cpu",
    read_data: Callable[..., Dataset] = load_dataset,
    **options: Any,
) -> Opened:
    """See above.

    read_data   reads the pictures of a run that is not finished: only they know its classes and how they are normalized
    options     of a model by name, as `create_model` takes them
    """
    if isinstance(source, Opened):
        return source
    if isinstance(source, nn.Module):
        return in_memory(Classifier.of(source))
    if is_built(source):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            classifier = Classifier.of(create_model(str(source), **options, device=device), str(source))
        known = classifier if options.get("pretrained") else replace(classifier, weights="untrained")  # and not to be guessed
        return in_memory(known)
    if options:
        raise SoftbiasError(f"options of a model are for one that is built here, but {source} is read from files")
    text = str(source)
    folder = Path(text.removeprefix("hf:"))
    if not folder.exists() and "/" not in text and ":" not in text:
        raise SoftbiasError(
            f"{text} does not exist: it is neither a folder nor a model's name; give a run, a saved model, hf:FOLDER, "
            "timm:NAME, or a name that `softbias models` lists"
        )
    run = Run(folder)
    if not run.config.is_file():
        return open_folder(folder, device)
    if not (run.model / "config.json").is_file():
        return open_last_checkpoint(run, device, read_data)
    opened = open_folder(folder, device)
    weights = weights_in_run(opened.classifier.model, run.spec())
    return replace(opened, classifier=replace(opened.classifier, weights=weights), run=run)


def is_built(source: str | Path) -> bool:
    """Whether the name is of a model that is built here, with fresh weights, and not of files."""
    text = str(source)
    return text.startswith("timm:") or (text in PRESETS and not Path(text).exists())


def in_memory(classifier: Classifier) -> Opened:
    return Opened(classifier, input_size(classifier.model, None)[1:])


def open_folder(folder: Path, device: str) -> Opened:
    """A saved model's folder, a Hugging Face folder, or the model of a finished run."""
    predictor = Predictor(folder, device=device)
    names = predictor.model.class_names
    if names and all(name.startswith("LABEL_") for name in names):  # what Hugging Face writes where nobody named them
        names = None
    known = {"mean": predictor.mean, "std": predictor.std, "class_names": names}
    return Opened(Classifier.of(predictor.model, folder.resolve().name, **known), predictor.img_size, predictor.resize_mode)


def open_last_checkpoint(run: Run, device: str, read_data: Callable[..., Dataset]) -> Opened:
    """A run without a model of its own: it was stopped, or is being trained."""
    from softbias.runs.prepare import output_names, split_up
    from softbias.training.batches import channel_statistics

    found = checkpoint.read_last(run.checkpoints)
    if found is None:
        raise SoftbiasError(
            f"there is no model in {run.path}: its training is not finished, and it has no checkpoint yet; "
            "continue it by the command that began it, with --resume"
        )
    tensors, meta, _ = found
    spec = run.spec()
    data = read_data(spec.data, **spec.data_options)
    names = output_names(spec, data)
    given = replace(spec, pretrained=False, weights=None)  # what it began with is overwritten here, and need not be fetched
    model: Any = untrained(run, given, len(names), data.img_size)
    model.load_state_dict(averaged(tensors))
    mean, std = channel_statistics(data, split_up(data, spec).train)
    title = f"{run.path.resolve().name} (step {meta['step']:,} of {meta['total_steps']:,})"
    classifier = Classifier.of(model.to(device), title, mean=mean, std=std, class_names=names)
    classifier = replace(classifier, weights=weights_in_run(model, spec))
    return Opened(classifier, data.img_size, spec.data_options.get("resize_mode") or "crop", run)


def untrained(run: Run, spec: RunSpec, classes: int, img_size: tuple[int, int]) -> nn.Module:
    """The model before its first step, built again from its seed as training built it."""
    from softbias.runs.prepare import build_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return build_model(spec, classes, img_size, run.source(spec))


def averaged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a checkpoint the weights that would be the model's: averaged, where the recipe averages."""
    return checkpoint.part("average", tensors) or checkpoint.part("model", tensors)


def weights_in_run(model: nn.Module, spec: RunSpec) -> str:
    """A head on a frozen backbone can be trained without a trace in the norms; its run knows."""
    weights = weights_of(model)
    return HEAD_ONLY if spec.finetune == "probe" and weights == "untrained" else weights


def unique(names: list[str]) -> list[str]:
    """Models of the same name are told apart by a number.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    found: list[str] = []
    for place, name in enumerate(names):
        before = names[:place].count(name)
        found.append(f"{name} ({before + 1})" if before else name)
    return found
