"""What the page can show: models with their checkpoints, pictures, and explanations that were computed already.

Everything is named by a number or by a short id that this side gave out; a path never comes from the page. Weights are read
from safetensors alone: a model's own, or those of a checkpoint.
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.classifier import Classifier
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.decode import FORMATS, BrokenImageError, load
from softbias.errors import SoftbiasError
from softbias.explanations.explanation import Explanation, explain_pixels
from softbias.runs.opening import find_run, open_classifier, unique
from softbias.runs.run import Checkpoint, Run
from softbias.study.frame import run_folders

MAX_PIXELS = 40_000_000  # of an upload: larger ones are refused before they are unpacked
KEPT_SIDE = 1024  # an upload is kept no larger than this
UPLOADS, COPIES = 24, 3  # pictures kept, and checkpoints of a model that stay loaded
MEMORY = 512 * 2**20  # bytes of maps that are kept
PICTURE = re.compile(r"([du])(0|[1-9]\d{0,8})")
Pixels = NDArray[np.uint8]


class Absent(SoftbiasError):  # noqa: N818  it says what it is
    """Something that was asked for is not here."""


@dataclass
class Shown:
    """A model on the shelf: itself, and what it was before: at its checkpoints, and at its start (None)."""

    classifier: Classifier
    run: Run | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    epochs: dict[int, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    copies: OrderedDict[int, Classifier] = field(default_factory=OrderedDict)

    def at(self, number: int | None) -> Classifier:
        """The model as it was at a checkpoint; None: as it is."""
        if number is None:
            return self.classifier
        if not 0 <= number < len(self.checkpoints):
            raise Absent(f"there is no checkpoint {number}")
        if number not in self.copies:
            assert self.run is not None
            self.copies[number] = self.run.classifier(self.checkpoints[number], self.device)
            while len(self.copies) > COPIES:
                self.copies.popitem(last=False)
        self.copies.move_to_end(number)
        return self.copies[number]

    def steps(self) -> list[dict[str, Any]]:
        steps = [checkpoint.step for checkpoint in self.checkpoints]
        return [{"step": step, "epoch": self.epochs.get(step, None if step else 0)} for step in steps]

    def gates(self) -> list[dict[str, Any]]:
        """σ(λ) of every gated head at every checkpoint, from the gates alone: nothing else is read."""
        found = []
        for place, checkpoint in zip(self.steps(), self.checkpoints, strict=True):
            path = checkpoint.path
            gates = {} if path is None or not path.is_dir() else gates_in(path)  # a run under training drops old ones
            if gates:
                found.append({**place, "layers": gates})
        return found

    @property
    def report(self) -> Path | None:
        path = self.run.page_path if self.run else None
        return path if path is not None and path.is_file() else None


def gates_in(path: Path) -> dict[int, list[float]]:
    """σ(λ) of the gated layers of a checkpoint."""
    from safetensors import safe_open

    with safe_open(path / "state.safetensors", "pt") as file:
        names = set(file.keys())
        part = "ema" if any(name.startswith("ema/") for name in names) else "model"
        gates = {
            int(match[1]): file.get_tensor(name).sigmoid().flatten().tolist()
            for name in names
            if (match := re.fullmatch(rf"{part}/blocks\.(\d+)\.attn\.(?:gate|gating_param)", name))
        }
    return dict(sorted(gates.items()))


def unfolded(source: str | Path) -> list[str | Path]:
    """The finished runs of a study's folder; anything else is itself."""
    if not (Path(source) / "study.yaml").is_file():
        return [source]
    found: list[str | Path] = [folder for folder in run_folders(Path(source)) if Run(folder).finished]
    if not found:
        raise SoftbiasError(f"the study {source} has no finished run yet; softbias study {source} continues it")
    return found


class Shelf:
    def __init__(self, sources: Sequence[str | Path], data: str | None = None, *, device: str = "cpu") -> None:
        if not sources:
            raise SoftbiasError("which models? softbias app RUNS_OR_MODELS…")
        self.models = [take(each, device) for source in sources for each in unfolded(source)]
        self.names = unique([shown.classifier.name for shown in self.models])
        self.data = self.find_data(data)
        indices = self.data.splits.get("test")
        chosen = indices if indices is not None and len(indices) else np.arange(len(self.data))
        self.order = np.random.default_rng(0).permutation(chosen)  # mixed, or all first pictures would be of one class
        self.uploads: OrderedDict[int, Pixels] = OrderedDict()
        self.uploaded = 0
        self.seen: OrderedDict[tuple[int, int | None, str, int | None], Explanation] = OrderedDict()
        self.lock = threading.Lock()  # one computation at a time: two would only wait for the same cores

    def find_data(self, data: str | None) -> Dataset:
        """What was asked for, or the pictures of the first run that can be read, or the embedded set."""
        largest = max((shown.classifier.img_size or (0, 0) for shown in self.models), key=max)
        if data is not None:
            return load_dataset(data, img_size=largest)
        for shown in self.models:
            if shown.run is not None:
                try:
                    return shown.run.data()
                except (ValueError, OSError):
                    continue
        return load_dataset("fashion")

    # Pictures

    def picture(self, name: str) -> Pixels:
        match = PICTURE.fullmatch(name)
        if match is None:
            raise SoftbiasError("a picture is named d and a number, or u and a number")
        number = int(match[2])
        if match[1] == "d":
            if number >= len(self.order):
                raise Absent(f"there is no picture {number}: the set has {len(self.order)}")
            return np.ascontiguousarray(self.data.images[self.order[number]])
        if number not in self.uploads:
            raise Absent(f"there is no upload {number} (any more)")
        return self.uploads[number]

    def label(self, name: str) -> str | None:
        """What the set says the picture is."""
        return self.data.class_names[int(self.data.labels[self.order[int(name[1:])]])] if name.startswith("d") else None

    def upload(self, content: bytes) -> str:
        """Keep a picture and return its id; what is no picture, or too large a one, raises BrokenImageError."""
        try:
            with Image.open(io.BytesIO(content), formats=[kind for kind in FORMATS if kind in Image.OPEN]) as head:
                width, height = head.size
        except Exception as error:  # Pillow raises a dozen kinds; the decoder has a sentence for them
            if isinstance(error, Image.DecompressionBombError):
                raise BrokenImageError("the upload", "has too many pixels", "oversized") from error
            width, height = 0, 0
        if width * height > MAX_PIXELS:
            raise BrokenImageError("the upload", f"has {width} × {height} pixels, more than {MAX_PIXELS:,}", "oversized")
        image = load(io.BytesIO(content), wanted=(KEPT_SIDE, KEPT_SIDE), name="the upload").image
        image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
        with self.lock:
            number, self.uploaded = self.uploaded, self.uploaded + 1
            self.uploads[number] = np.array(image)
            while len(self.uploads) > UPLOADS:
                gone, _ = self.uploads.popitem(last=False)
                self.seen = OrderedDict((key, value) for key, value in self.seen.items() if key[2] != f"u{gone}")
        return f"u{number}"

    def png(self, name: str, model: int | None = None) -> bytes:
        """A picture as it is kept, or as a model sees it."""
        pixels = self.picture(name)
        if model is not None:
            pixels = self.fitted(self.model(model).classifier, pixels)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        return stream.getvalue()

    def fitted(self, classifier: Classifier, pixels: Pixels) -> Pixels:
        return classifier.read(pixels)

    # Explanations

    def model(self, number: int) -> Shown:
        if not 0 <= number < len(self.models):
            raise Absent(f"there is no model {number}: there are {len(self.models)}")
        return self.models[number]

    def look(self, model: int, at: int | None, picture: str, target: int | None = None) -> Explanation:
        """An explanation, from memory if it was computed lately."""
        shown, pixels = self.model(model), self.picture(picture)
        if target is not None and not 0 <= target < len(shown.classifier.output_names):
            raise Absent(f"there is no class {target}")
        with self.lock:
            key = (model, at, picture, target)
            if key not in self.seen:
                classifier = shown.at(at)
                self.seen[key] = explain_pixels(classifier, self.fitted(classifier, pixels), target=target)
                while len(self.seen) > 1 and sum(map(size, self.seen.values())) > MEMORY:
                    self.seen.popitem(last=False)
            self.seen.move_to_end(key)
            return self.seen[key]

    def rows(self, seen: Explanation, query: tuple[int, int] | None) -> list[NDArray[np.float32]]:
        """The maps of a patch in every layer, then what was learned about place; None: those of the class token."""
        if query is None:
            return list(seen.looks_of_class_token().values())
        return [*seen.looks(query).values(), *seen.biases(query).values()]


def take(source: str | Path, device: str) -> Shown:
    run = find_run(source)
    if run is None:
        return Shown(open_classifier(source, device=device))
    rows = [finite(row) for row in run.metrics()]
    summary = run.summary() if run.finished else {}
    epochs = {row["step"]: row["epoch"] for row in rows}
    return Shown(run.classifier(device=device), run, run.checkpoints, epochs, rows, summary, device)


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON may say it: numbers that are not finite become null."""
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}


def size(seen: Explanation) -> int:
    return sum(found.nbytes for found in (*seen.maps.values(), *seen.bias.values()))
