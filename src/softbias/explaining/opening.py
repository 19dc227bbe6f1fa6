"""A model that is ready for picture files: a run, a saved model, a name, or a module in memory.

    opened = open_model("runs/flowers-convit_nano-1a2b3c4d5e")      # or "hf:FOLDER", "timm:NAME", "convit_nano", a module
    pixels = opened.read("cat.jpg")                                 # as the model sees it, (height, width, 3)

A model by name has fresh weights, and is called untrained wherever it is shown. Weights come from safetensors alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from softbias.data.decode import load, resized
from softbias.exporting import input_size
from softbias.models import create_model, list_models
from softbias.probes.subject import Subject
from softbias.training.predict import Predictor

Picture = str | Path | IO[bytes] | Image.Image | NDArray[np.uint8]


@dataclass(frozen=True)
class Opened:
    """A subject with the size its pictures must have, what becomes of their aspect ratio, and the folder of its run."""

    subject: Subject
    img_size: tuple[int, int]
    fit: str = "crop"
    run: Path | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        model: Any = self.subject.model
        return self.subject.class_names or tuple(f"class {number}" for number in range(model.num_classes))

    def read(self, picture: Picture) -> NDArray[np.uint8]:
        """A picture as the model sees it; a file that is none raises BrokenPicture.  # (height, width, 3)"""
        if isinstance(picture, np.ndarray):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
                raise ValueError(f"an array must be (height, width, 3) of uint8, but is {picture.shape} of {picture.dtype}")
            picture = Image.fromarray(picture)
        if not isinstance(picture, Image.Image):
            picture = load(picture, wanted=self.img_size).image
        return np.array(resized(picture.convert("RGB"), self.img_size, self.fit))

    def tensor(self, pixels: NDArray[np.uint8]) -> Tensor:
        """# (height, width, 3) uint8 -> (1, 3, height, width), normalized"""
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.subject.device).permute(2, 0, 1)[None]
        return self.subject.normalized(images.float() / 255)


def open_model(source: str | Path | nn.Module | Opened, *, device: str = "cpu", name: str | None = None) -> Opened:
    """See above; `name` is what the model is called, by default its own name and, for a run, the folder's."""
    if isinstance(source, Opened):
        return source
    if isinstance(source, nn.Module):
        subject = Subject.of(source, name)
        return Opened(subject, input_size(subject.model, None)[1:])
    text = str(source)
    if not Path(text).exists() and (text.startswith("timm:") or text in list_models()):
        model: Any = create_model(text, device=device)
        fresh = replace(Subject.of(model, name or text), weights="untrained")  # known here, and not to be guessed
        return Opened(fresh, input_size(model, None)[1:])
    folder = Path(text.removeprefix("hf:"))
    if not folder.exists() and "/" not in text and ":" not in text:
        raise ValueError(
            f"{text!r} is neither a folder nor a model's name; give a run, a saved model, hf:FOLDER, timm:NAME, or a name that "
            "`softbias models` lists"
        )
    predictor = Predictor(folder, device=device)
    is_run = (folder / "config.yaml").is_file()
    subject = Subject.of(
        predictor.model,
        name or folder.resolve().name,
        mean=predictor.mean,
        std=predictor.std,
        class_names=predictor.class_names,
    )
    return Opened(subject, predictor.img_size, predictor.fit, folder if is_run else None)
