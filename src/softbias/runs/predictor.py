"""A trained model at work on picture files.

    predictor = Predictor("runs/flowers-convit_nano-1a2b3c4d5e")
    for row in predictor.predict(["a.jpg", "b.png"]):
        print(row.file, row.label, row.confidence, row.error)

Pictures go through what the training pictures went through: decoded, brought to the model's size in the same resize mode, and
normalized by the same numbers. A file that cannot be read gives a row with an error and stops nothing.

Shapes: n pictures, K classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softbias.data.augment.apply import normalize
from softbias.data.decode import BrokenPicture, decode
from softbias.data.folders import SUFFIXES
from softbias.data.listing import TABLES, natural, some
from softbias.data.parallel import in_order
from softbias.data.tables import read_table
from softbias.environment import find_device
from softbias.errors import SoftbiasError
from softbias.models.export import input_size
from softbias.models.storage import load

RESIZE_MODES = {"center": "crop", "border": "pad", "squash": "stretch"}  # timm's crop_mode in our words
LOW = 0.5  # a confidence below this is worth a look


@dataclass(frozen=True)
class Prediction:
    """One picture's classes. error: why the file could not be read; then there is nothing else."""

    file: str
    label: str | None = None
    confidence: float | None = None
    low: bool = False
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def to_dict(self, class_names: Sequence[str]) -> dict[str, Any]:
        if self.error is not None:
            return {"file": self.file, "error": self.error}
        named = dict(zip(class_names, self.probabilities, strict=True))
        return {
            "file": self.file,
            "label": self.label,
            "confidence": self.confidence,
            "low_confidence": self.low,
            "probabilities": named,
        }


class Predictor:
    """The model of a run folder or of a saved model's folder, with its classes and its preprocessing.

    class_names   one per output
    img_size      (height, width)
    resize_mode   what happens to the aspect ratio: crop, pad or stretch
    mean, std     of the channels, for pixels in [0, 1]
    """

    def __init__(self, source: str | Path, *, device: str = "auto") -> None:
        folder = model_folder(source)
        self.device = torch.device(find_device(device))
        self.model: Any = load(folder, device=self.device)
        about: Any = self.model
        self.class_names: tuple[str, ...] = tuple(about.class_names or map(str, range(about.num_classes)))
        cfg = preprocessing(self.model, folder)
        self.img_size: tuple[int, int] = tuple(cfg["input_size"][1:])
        self.mean, self.std = tuple(cfg["mean"]), tuple(cfg["std"])
        self.resize_mode: str = RESIZE_MODES.get(cfg.get("crop_mode") or "center", "crop")

    @torch.no_grad()
    def probabilities(self, images: NDArray[np.uint8], batch: int = 64) -> NDArray[np.float32]:
        """# (n, height, width, 3) of the model's size -> (n, K)"""
        rows = []
        for start in range(0, len(images), batch):
            pixels = torch.from_numpy(np.ascontiguousarray(images[start : start + batch])).to(self.device)
            rows.append(self.model(normalize(pixels.permute(0, 3, 1, 2), self.mean, self.std)).float().softmax(-1).cpu())
        return torch.cat(rows).numpy() if rows else np.empty((0, len(self.class_names)), np.float32)

    def predict(self, files: Iterable[str | Path], *, batch: int = 64, threshold: float = LOW) -> list[Prediction]:
        """One row per file, in order."""
        return list(self.stream(files, batch=batch, threshold=threshold))

    def stream(self, files: Iterable[str | Path], *, batch: int = 64, threshold: float = LOW) -> Iterator[Prediction]:
        """The same while it is being computed, for more files than one wants to wait for."""
        if batch < 1 or not 0 <= threshold <= 1:
            raise SoftbiasError(f"batch must be at least 1 and threshold lie in [0, 1], but {batch=}, {threshold=}")
        decoded = in_order(self.read, files)
        while part := list(islice(decoded, batch)):
            good = [image for _, image in part if not isinstance(image, BrokenPicture)]
            rows = iter(self.probabilities(np.stack(good), batch)) if good else iter(())
            for file, image in part:
                if isinstance(image, BrokenPicture):
                    yield Prediction(str(file), error=image.reason)
                else:
                    yield self.row(str(file), next(rows), threshold)

    def read(self, file: str | Path) -> tuple[str | Path, NDArray[np.uint8] | BrokenPicture]:
        try:
            return file, decode(file, self.img_size, self.resize_mode)
        except BrokenPicture as error:
            return file, error

    def row(self, file: str, probabilities: NDArray[np.float32], threshold: float) -> Prediction:
        best = int(probabilities.argmax())
        confidence = float(probabilities[best])
        return Prediction(file, self.class_names[best], confidence, confidence < threshold, tuple(map(float, probabilities)))


def model_folder(source: str | Path) -> Path:
    """The folder of the model in a run, or the folder itself."""
    folder = Path(source)
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if (folder / "config.json").is_file():
        return folder
    if not folder.exists():
        raise SoftbiasError(f"{folder} does not exist; give the folder of a finished run or of a saved model")
    inside = sorted(str(each.parent) for each in folder.glob("*/summary.json")) if folder.is_dir() else []
    if inside:
        raise SoftbiasError(f"there is no model in {folder}: it holds runs; give one of them: {some(inside)}")
    what = "its training is not finished" if (folder / "config.yaml").is_file() else "it has no config.json"
    raise SoftbiasError(f"there is no model in {folder}: {what}")


def preprocessing(model: Any, folder: Path) -> dict[str, Any]:
    """input_size, mean, std and crop_mode, as the model, the run's summary, or a Hugging Face folder states them."""
    cfg = dict(getattr(model, "pretrained_cfg", None) or {})
    if cfg:
        return cfg | {"input_size": input_size(model, None)}
    size = model.model.config.image_size
    cfg["input_size"] = (3, size, size) if isinstance(size, int) else (3, *size)
    summary, own = folder.parent / "summary.json", folder / "preprocessor_config.json"
    if summary.is_file():
        cfg |= json.loads(summary.read_text()).get("preprocessing", {})
    elif own.is_file():
        given = json.loads(own.read_text())
        cfg |= {"mean": given.get("image_mean"), "std": given.get("image_std")}
    if not cfg.get("mean") or not cfg.get("std"):
        raise SoftbiasError(f"{folder} does not say how its pictures are normalized: it has no preprocessor_config.json")
    return cfg


def find_pictures(places: Iterable[str | Path]) -> list[Path]:
    """The files named, those listed in the tables named, and the pictures below the folders named, in natural order."""
    found: list[Path] = []
    for place in map(Path, places):
        if place.suffix.lower() in TABLES and place.is_file():
            found += [place.parent / name for name in read_table(place, needed=("path",))["path"]]
            continue
        if not place.is_dir():
            found.append(place)
            continue
        inside = (file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        visible = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(place).parts)]
        if not visible:
            raise SoftbiasError(f"there are no pictures in {place}")
        found += sorted(visible, key=lambda file: natural(str(file)))
    return found
