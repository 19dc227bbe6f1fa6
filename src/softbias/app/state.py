"""The state of the page: models with their checkpoints, pictures, and explanations that were computed already.

Models and pictures have numbers or short ids that the server gave out; a path never comes from the page. Weights are read from
safetensors alone: a model's own, or those of a checkpoint.
"""

from __future__ import annotations

import copy
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from softbias.attention import NoAttentionMapError
from softbias.classifier import Classifier
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.decode import FORMATS, BrokenImageError, load
from softbias.errors import SoftbiasError
from softbias.explanations.explanation import Explanation, explain_array
from softbias.models.inspect import attention_sites
from softbias.notes import Note
from softbias.probes.rows import plain_row
from softbias.runs.opening import averaged, find_run, open_classifier, unique
from softbias.runs.run import Checkpoint, Run
from softbias.study.frame import run_folders
from softbias.training.checkpoint import CheckpointError, read_some

LARGEST_UPLOAD = 40_000_000  # pixels: larger ones are refused before they are decoded
KEPT_SIDE = 1024  # an upload is kept no larger than this
UPLOADS, COPIES = 24, 3  # pictures that are kept, and checkpoints of a model that stay loaded
MEMORY = 512 * 2**20  # bytes of maps that are kept
PICTURE = re.compile(r"([du])(0|[1-9]\d{0,8})")
Images = NDArray[np.uint8]


class RequestError(SoftbiasError):
    """A request that makes no sense."""


class NotFoundError(SoftbiasError):
    """A request for a model, a checkpoint, a picture or a patch that is not there."""


@dataclass
class AppModel:
    """A model on the page, and its run with checkpoints where it has one."""

    classifier: Classifier
    run: Run | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    damage: list[str] = field(default_factory=list)  # why scores or curves of the run are not shown
    loaded: OrderedDict[int, Classifier] = field(default_factory=OrderedDict)

    @staticmethod
    def open(source: str | Path, device: str) -> AppModel:
        run = find_run(source)
        if run is None:
            return AppModel(open_classifier(source, device=device))
        model = AppModel(run.classifier(device=device), run, run.checkpoints, device=device)
        model.classifier.output_names  # noqa: B018  # refuses a model without classes
        for read in (model.read_summary, model.read_epochs):
            try:
                read(run)
            except (SoftbiasError, OSError) as error:  # the model can be shown without its scores
                model.damage.append(str(error))
        return model

    def read_summary(self, run: Run) -> None:
        self.summary = run.summary() if run.finished else {}

    def read_epochs(self, run: Run) -> None:
        self.epochs = [plain_row(row) for row in run.metrics()]

    def at(self, number: int | None) -> Classifier:
        """The model at a checkpoint; None: as it is now."""
        if number is None:
            return self.classifier
        if not 0 <= number < len(self.checkpoints):
            raise NotFoundError(f"there is no checkpoint {number}")
        if number not in self.loaded:
            assert self.run is not None
            try:
                self.loaded[number] = self.run.classifier(self.checkpoints[number], self.device)
            except SoftbiasError as error:  # the page names files as the run does
                raise SoftbiasError(str(error).replace(f"{self.run.path}{os.sep}", "")) from error
            while len(self.loaded) > COPIES:
                self.loaded.popitem(last=False)
        self.loaded.move_to_end(number)
        return self.loaded[number]

    def steps(self) -> list[dict[str, Any]]:
        """Step and epoch of every checkpoint; an epoch that is not known is None."""
        epochs = {row["step"]: row["epoch"] for row in self.epochs}
        steps = [checkpoint.step for checkpoint in self.checkpoints]
        return [{"step": step, "epoch": epochs.get(step, None if step else 0)} for step in steps]

    def gates(self) -> tuple[list[dict[str, Any]], int]:
        """The gates of every head at every saved checkpoint, and how many checkpoints cannot be read."""
        found, damaged = [], 0
        for step, checkpoint in zip(self.steps(), self.checkpoints, strict=True):
            if checkpoint.path is None:
                continue
            try:
                gates = gates_at(self.classifier.model, checkpoint.path)
            except CheckpointError:  # damaged, or removed by a run that still trains; `at` gives the reason
                damaged += 1
                continue
            if gates:
                found.append({**step, "layers": gates})
        return found, damaged

    @property
    def report(self) -> Path | None:
        path = self.run.page_path if self.run else None
        return path if path is not None and path.is_file() else None


def gates_at(model: nn.Module, path: Path) -> dict[int, list[float]]:
    """The gates of every layer that has some, at a checkpoint. Only the parameters beside linear layers are read."""
    try:
        sites = attention_sites(model)
    except NoAttentionMapError:
        return {}
    gated = [layer for layer, site in enumerate(sites) if "gate" in site.attention.bias_measures]
    if not gated:
        return {}
    model = copy.deepcopy(model)
    sites = attention_sites(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    own = {names[parameter]: parameter for layer in gated for parameter in sites[layer].module.parameters(recurse=False)}
    saved = averaged(read_some(path, [f"{part}/{name}" for part in ("model", "ema") for name in own]))
    with torch.no_grad():
        for name, parameter in own.items():
            if name not in saved or saved[name].shape != parameter.shape or not saved[name].isfinite().all():
                raise CheckpointError(f"{path} is damaged: {name} is missing, has another shape, or is not finite")
            parameter.copy_(saved[name])
    return {layer: [row["value"] for row in sites[layer].attention.bias_rows() if row["measure"] == "gate"] for layer in gated}


def runs_in(source: str | Path) -> list[str | Path]:
    """The finished runs of a study's folder; anything else is itself."""
    if not (Path(source) / "study.yaml").is_file():
        return [source]
    found: list[str | Path] = [folder for folder in run_folders(Path(source)) if Run(folder).finished]
    if not found:
        raise SoftbiasError(f"the study {source} has no finished run yet; softbias study {source} continues it")
    return found


class AppState:
    def __init__(self, sources: Sequence[str | Path], data: str | None = None, *, device: str = "cpu") -> None:
        if not sources:
            raise SoftbiasError("which models? softbias app RUNS_OR_MODELS…")
        self.notes: list[Note] = []
        self.models = self.open_models([each for source in sources for each in runs_in(source)], device)
        self.names = unique([model.classifier.name for model in self.models])
        self.data = self.find_data(data)
        indices = self.data.splits.get("test")
        chosen = indices if indices is not None and len(indices) else np.arange(len(self.data))
        self.order = np.random.default_rng(0).permutation(chosen)  # mixed: files of one class follow each other
        self.uploads: OrderedDict[int, Images] = OrderedDict()
        self.uploaded = 0
        self.explained: OrderedDict[tuple[int, int | None, str, int | None], Explanation] = OrderedDict()
        self.lock = threading.Lock()  # one computation at a time: two would only compete for the same cores

    def open_models(self, sources: Sequence[str | Path], device: str) -> list[AppModel]:
        """All models that can be opened; of several sources, one that cannot be opened leaves a note."""
        models = []
        for source in sources:
            name = Path(source).name
            try:
                models.append(AppModel.open(source, device))
            except (SoftbiasError, OSError) as error:
                if len(sources) == 1:
                    raise
                self.notes.append(Note("model-not-opened", {"model": name, "reason": str(error)}))
            else:
                self.notes += [Note("part-not-read", {"model": name, "reason": reason}) for reason in models[-1].damage]
        if not models:
            raise SoftbiasError(f"none of the models can be opened: {self.notes[0].values['reason']}")
        return models

    def find_data(self, data: str | None) -> Dataset:
        """The set that was asked for, or that of the first run whose set can be read, or the embedded set."""
        largest = max((model.classifier.img_size or (0, 0) for model in self.models), key=max)
        if data is not None:
            return load_dataset(data, img_size=largest)
        for name, model in zip(self.names, self.models, strict=True):
            if model.run is not None:
                try:
                    return model.run.data()
                except (SoftbiasError, OSError) as error:
                    self.notes.append(Note("pictures-not-read", {"run": name, "reason": str(error)}))
        return load_dataset("fashion")

    # Pictures

    def picture(self, name: str) -> Images:
        match = PICTURE.fullmatch(name)
        if match is None:
            raise RequestError("a picture is named d and a number, or u and a number")
        number = int(match[2])
        if match[1] == "d":
            if number >= len(self.order):
                raise NotFoundError(f"there is no picture {number}: the set has {len(self.order)}")
            return np.ascontiguousarray(self.data.images[self.order[number]])
        if number not in self.uploads:
            raise NotFoundError(f"there is no upload {number} (any more)")
        return self.uploads[number]

    def label(self, name: str) -> str | None:
        """The class of a picture of the set; None for an upload."""
        return self.data.class_names[int(self.data.labels[self.order[int(name[1:])]])] if name.startswith("d") else None

    def upload(self, content: bytes) -> str:
        """Keep a picture and return its id; a file that is no picture, or too large, raises BrokenImageError."""
        try:
            with Image.open(io.BytesIO(content), formats=[kind for kind in FORMATS if kind in Image.OPEN]) as head:
                width, height = head.size
        except Image.DecompressionBombError as error:
            raise BrokenImageError("the upload", "has too many pixels", "oversized") from error
        except Exception:  # Pillow raises a dozen kinds; the decoder below has a sentence for them
            width, height = 0, 0
        if width * height > LARGEST_UPLOAD:
            raise BrokenImageError("the upload", f"has {width} × {height} pixels, more than {LARGEST_UPLOAD:,}", "oversized")
        value_range = self.models[0].classifier.value_range
        image = load(io.BytesIO(content), (KEPT_SIDE, KEPT_SIDE), "the upload", value_range).image
        image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
        with self.lock:
            number, self.uploaded = self.uploaded, self.uploaded + 1
            self.uploads[number] = np.array(image)
            while len(self.uploads) > UPLOADS:
                dropped, _ = self.uploads.popitem(last=False)
                self.explained = OrderedDict((key, value) for key, value in self.explained.items() if key[2] != f"u{dropped}")
        return f"u{number}"

    def png(self, name: str, model: int | None = None) -> bytes:
        """A picture as it is kept, or as the input of a model."""
        image = self.picture(name)
        if model is not None:
            image = self.model(model).classifier.read(image)
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        return stream.getvalue()

    # Explanations

    def model(self, number: int) -> AppModel:
        if not 0 <= number < len(self.models):
            raise NotFoundError(f"there is no model {number}: there are {len(self.models)}")
        return self.models[number]

    def explain(self, model: int, checkpoint: int | None, picture: str, target: int | None = None) -> Explanation:
        """An explanation, from memory if it was computed lately."""
        chosen, image = self.model(model), self.picture(picture)
        if target is not None and not 0 <= target < len(chosen.classifier.output_names):
            raise NotFoundError(f"there is no class {target}")
        with self.lock:
            key = (model, checkpoint, picture, target)
            if key not in self.explained:
                classifier = chosen.at(checkpoint)
                self.explained[key] = explain_array(classifier, classifier.read(image), target=target)
                while len(self.explained) > 1 and sum(map(map_bytes, self.explained.values())) > MEMORY:
                    self.explained.popitem(last=False)
            self.explained.move_to_end(key)
            return self.explained[key]


def map_bytes(explanation: Explanation) -> int:
    return sum(found.nbytes for found in (*explanation.maps.values(), *explanation.bias.values()))
