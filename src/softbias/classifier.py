"""A model with its preprocessing and its class names: what a person means by "the model".

    classifier = Classifier.of(module)                      # an nn.Module in memory
    classifier = Classifier.load("flowers")                 # a folder that `softbias.save` or Hugging Face wrote
    classifier.predict(["a.jpg", "b.png"])                  # a row per file, in order
    classifier.logits(images)                               # images in [0, 1]

Files go through the same steps as the training images did: decoded, brought to the model's size by the same resize mode, and
normalized by the same numbers. A file that cannot be read gives a row with an error and stops nothing.

Shapes: B images, n files, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from softbias.bounds import ValueRange
from softbias.data.augment.apply import normalize
from softbias.data.decode import BrokenImageError, in_order, load
from softbias.data.resizing import resized
from softbias.data.value_range import check_range
from softbias.errors import SoftbiasError, in_one_line
from softbias.json_file import read_json
from softbias.models import storage
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.inspect import unwrap
from softbias.models.spec import pair

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
WEIGHTS = ("trained", "untrained", "untrained but for its head", "unknown")
CROP_MODES = {"crop": "center", "pad": "border", "stretch": "squash"}  # our resize_mode -> timm's crop_mode
LOW_CONFIDENCE = 0.5
Picture = str | Path | IO[bytes] | Image.Image | NDArray[np.uint8]


@dataclass(frozen=True)
class Prediction:
    """The classes of one file. error: why the file could not be read; then all other fields are empty."""

    file: str
    label: str | None = None
    confidence: float | None = None
    low: bool = False
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def to_dict(self, class_names: Sequence[str]) -> dict[str, Any]:
        if self.error is not None:
            return {"file": self.file, "error": self.error}
        return {
            "file": self.file,
            "label": self.label,
            "confidence": self.confidence,
            "low_confidence": self.low,
            "probabilities": dict(zip(class_names, self.probabilities, strict=True)),
        }


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode.

    name          as tables show it
    weights       one of WEIGHTS, read off the weights themselves
    img_size      (height, width) of its images; None for a module that does not state it
    mean, std     of the channels, for pixels in [0, 1]; 0 and 1 for a module that does not state them
    resize_mode   what happens to the aspect ratio of files: crop, pad or stretch
    value_range   what is black and white in files of more than eight bits; None: each file decides
    class_names   one per output, where they are known
    when          step and epoch, for a model out of the middle of its training
    """

    model: nn.Module
    name: str
    weights: str
    img_size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    resize_mode: str = "crop"
    value_range: ValueRange | None = None
    class_names: tuple[str, ...] | None = None
    when: dict[str, int | float] = field(default_factory=dict)

    @staticmethod
    def of(model: nn.Module | Classifier, name: str | None = None, **known: Any) -> Classifier:
        """A module with all that it states about itself; `known` are fields that the caller knows better."""
        if isinstance(model, Classifier):
            return model
        model = unwrap(model).eval()
        label = name or getattr(model, "name", None) or type(model).__name__
        stated = {"weights": weights_of(model), **stated_preprocessing(model)}
        return Classifier(model, label, **{**stated, **known})

    @staticmethod
    def load(folder: str | Path, device: str | torch.device = "cpu") -> Classifier:
        """The model in a folder that `softbias.save` or Hugging Face's `save_pretrained` wrote."""
        folder = Path(folder)
        model = storage.load(folder, device=device)
        known = preprocessing_beside(folder) if isinstance(model, HuggingFaceClassifier) else {}
        return Classifier.of(model, folder.resolve().name, **known)

    @property
    def device(self) -> torch.device:
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def output_names(self) -> tuple[str, ...]:
        """The class names, or "class 0", "class 1", … where they are not known; an error for a model without classes."""
        model: Any = self.model
        if model.num_classes == 0:
            raise SoftbiasError(
                f"{self.name} has learned features and knows no classes; softbias fit DATA --start RUN trains a classifier "
                "from it"
            )
        return self.class_names or tuple(f"class {number}" for number in range(model.num_classes))

    def about(self) -> dict[str, Any]:
        """What every row of a probe says about the model."""
        return {"model": self.name, "weights": self.weights, **self.when}

    def with_model(self, model: nn.Module) -> Classifier:
        return replace(self, model=model.eval())

    def mirrored(self) -> Classifier:
        """The same, with the mean probabilities of every image and its mirror image."""
        return self.with_model(Mirrored(self.model))

    def normalized(self, images: Tensor) -> Tensor:
        """# (B, 3, H, W) in [0, 1] -> the same, as the model wants it"""
        mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std

    def logits(self, images: Tensor) -> Tensor:
        """# (B, 3, H, W) in [0, 1] -> (B, K)"""
        logits: Tensor = self.model(self.normalized(images))
        return finite(logits.float(), self.name)

    def read(self, picture: Picture) -> NDArray[np.uint8]:
        """A picture as the model sees it; BrokenImageError if a file holds none.  # (height, width, 3)"""
        if self.img_size is None:
            raise SoftbiasError(f"{self.name} does not state its image size, so pictures cannot be brought to it")
        if isinstance(picture, np.ndarray):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
                raise SoftbiasError(f"an array must be (height, width, 3) of uint8, but is {picture.shape} of {picture.dtype}")
            picture = Image.fromarray(picture)
        if not isinstance(picture, Image.Image):
            picture = load(picture, wanted=self.img_size, value_range=self.value_range).image
        return np.array(resized(picture.convert("RGB"), self.img_size, self.resize_mode))

    def tensor(self, array: NDArray[np.uint8]) -> Tensor:
        """# (height, width, 3) uint8 -> (1, 3, height, width), normalized"""
        images = torch.from_numpy(np.ascontiguousarray(array)).to(self.device).permute(2, 0, 1)[None]
        return self.normalized(images.float() / 255)

    @torch.no_grad()
    def probabilities(self, arrays: NDArray[np.uint8], batch: int = 64) -> NDArray[np.float32]:
        """# (n, height, width, 3) uint8 of the model's size -> (n, K)"""
        outputs, rows = len(self.output_names), []
        for start in range(0, len(arrays), batch):
            images = torch.from_numpy(np.ascontiguousarray(arrays[start : start + batch])).to(self.device)
            logits = self.model(normalize(images.permute(0, 3, 1, 2), self.mean, self.std)).float()
            rows.append(finite(logits, self.name).softmax(-1).cpu())
        return torch.cat(rows).numpy() if rows else np.empty((0, outputs), np.float32)

    def predict(self, files: Iterable[str | Path], *, batch: int = 64, threshold: float = LOW_CONFIDENCE) -> list[Prediction]:
        """One row per file, in order."""
        return list(self.stream(files, batch=batch, threshold=threshold))

    def stream(
        self, files: Iterable[str | Path], *, batch: int = 64, threshold: float = LOW_CONFIDENCE
    ) -> Iterator[Prediction]:
        """The rows of `predict` as they are computed, for a long list of files."""
        if batch < 1 or not 0 <= threshold <= 1:
            raise SoftbiasError(f"batch must be at least 1 and threshold lie in [0, 1], but {batch=}, {threshold=}")
        decoded = in_order(self.read_or_error, files)
        while part := list(islice(decoded, batch)):
            good = [image for _, image in part if not isinstance(image, BrokenImageError)]
            rows = iter(self.probabilities(np.stack(good), batch)) if good else iter(())
            for file, image in part:
                if isinstance(image, BrokenImageError):
                    yield Prediction(str(file), error=image.reason)
                else:
                    yield self.prediction(str(file), next(rows), threshold)

    def read_or_error(self, file: str | Path) -> tuple[str | Path, NDArray[np.uint8] | BrokenImageError]:
        try:
            return file, self.read(file)
        except BrokenImageError as error:
            return file, error

    def prediction(self, file: str, probabilities: NDArray[np.float32], threshold: float) -> Prediction:
        best = int(probabilities.argmax())
        confidence = float(probabilities[best])
        return Prediction(file, self.output_names[best], confidence, confidence < threshold, tuple(map(float, probabilities)))


class Mirrored(nn.Module):
    """log ½ (p(x) + p(mirror image of x)), p = softmax(logits): the softmax of these outputs is the mean of both.

    # (B, 3, H, W) -> (B, K)
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.num_classes = model, model.num_classes

    def forward(self, images: Tensor) -> Tensor:
        both = [self.model(each).float().log_softmax(-1) for each in (images, images.flip(-1))]
        return torch.logaddexp(*both) - math.log(2)


def finite(logits: Tensor, name: str = "the model") -> Tensor:
    """The logits; an error if some are no numbers, because nothing can be said about such a picture.  # (B, K)"""
    broken = int((~torch.isfinite(logits)).any(-1).sum())
    if broken:
        raise SoftbiasError(
            f"{name} gives outputs that are not finite for {broken} of {len(logits)} pictures: its weights or its "
            "normalization are damaged, or too large for the precision; use another checkpoint, or train with a smaller --lr"
        )
    return logits


def stated_preprocessing(model: Any) -> dict[str, Any]:
    """img_size, mean, std, resize_mode, value_range and class_names, as far as a module states them."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    found: dict[str, Any] = {key: tuple(cfg[key]) for key in ("mean", "std") if cfg.get(key)}
    found |= {"value_range": check_range(cfg["value_range"])} if cfg.get("value_range") else {}
    found["img_size"] = stated_size(model, cfg)
    found["resize_mode"] = resize_mode(cfg.get("crop_mode"))
    names = getattr(model, "class_names", None)
    if names and not all(name.startswith("LABEL_") for name in names):  # Hugging Face's names for unnamed classes
        found["class_names"] = tuple(names)
    return found


def stated_size(model: Any, cfg: Any) -> tuple[int, int] | None:
    spec = getattr(model, "spec", None)
    if spec is not None:
        return spec.img_size[0], spec.img_size[1]
    hugging_face = getattr(model.config, "image_size", None) if isinstance(model, HuggingFaceClassifier) else None
    size = getattr(model, "timm_options", {}).get("img_size") or hugging_face or tuple(cfg.get("input_size", ()))[1:]
    return pair("img_size", size) if size else None


def resize_mode(crop_mode: str | None) -> str:
    return {timm_mode: mode for mode, timm_mode in CROP_MODES.items()}.get(crop_mode or "center", "crop")


def preprocessing_beside(folder: Path) -> dict[str, Any]:
    """mean, std and resize_mode from the preprocessor_config.json of a Hugging Face folder."""
    file = folder / "preprocessor_config.json"
    try:
        given = read_json(file) if file.is_file() else {}
        mean, std = tuple(map(float, given["image_mean"])), tuple(map(float, given["image_std"]))
    except (KeyError, TypeError, ValueError) as error:
        reason = in_one_line(error) if file.is_file() else "it has no preprocessor_config.json"
        raise SoftbiasError(f"{folder} does not say how its pictures are normalized: {reason}") from error
    deep = {"value_range": check_range(given["value_range"])} if given.get("value_range") else {}
    return {"mean": mean, "std": std, "resize_mode": resize_mode(given.get("crop_mode")), **deep}


@torch.no_grad()
def weights_of(model: nn.Module) -> str:
    """Whether the weights were ever trained, from what training cannot leave as it was.

    Fresh norms scale by one (or zero, where a residual branch starts closed) and shift by zero, and fresh batch norms have
    seen nothing; the first step of any optimizer changes that. A model without norms is judged by its biases. A head that
    was trained on a frozen backbone looks like a fresh one here; only its run knows better.
    """
    model = unwrap(model)
    fresh = [fresh_norm(module) for module in model.modules() if isinstance(module, NORMS)]
    judged = [verdict for verdict in fresh if verdict is not None]
    if not judged:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        judged = [not bool(layer.bias.any()) for layer in layers if layer.bias is not None]
    if not judged:
        return "unknown"
    return "untrained" if all(judged) else "trained"


def fresh_norm(module: Any) -> bool | None:
    """Whether a norm is as it was made; None for one that never changes."""
    if isinstance(module.weight, Tensor):
        like_new = bool(((module.weight == 1) | (module.weight == 0)).all())
        like_new &= module.bias is None or not bool(module.bias.any())
        mean = getattr(module, "running_mean", None)
        return like_new and (mean is None or not bool(mean.any()))
    return None
