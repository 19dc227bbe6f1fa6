"""Models of other libraries: timm's classifiers by name, Hugging Face folders, and how to read their attention.

Shapes: B images, H heads, N tokens, C channels, D = C / H.
"""

from __future__ import annotations

import difflib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbias.errors import FewTokensWarning, SoftbiasError, unknown_name
from softbias.models.presets import FEW_PATCHES
from softbias.models.spec import pair, suitable_patch


def create_timm(name: str, *, device: Any = None, dtype: torch.dtype | None = None, **options: Any) -> nn.Module:
    """A model of timm's registry, with fresh weights unless `pretrained=True`; options go to timm."""
    import timm

    require_timm(name)
    try:
        model: Any = timm.create_model(name, **options)
    except TypeError as error:
        refused = next((option for option in options if f"'{option}'" in str(error)), None)
        if refused is None:
            raise
        value = options.pop(refused)
        if refused == "img_size" or (refused == "drop_path_rate" and not value):  # it takes any size, and drops no path
            return create_timm(name, device=device, dtype=dtype, **options)
        hint = "; --drop-path 0 leaves it out" if refused == "drop_path_rate" else ""
        raise SoftbiasError(f"timm:{name} has no option {refused}, but {refused}={value!r}{hint}") from error
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if grid and grid[0] * grid[1] < FEW_PATCHES and "img_size" in options:
        warnings.warn(
            f"timm:{name} at {options['img_size']} px leaves only {grid[0] * grid[1]} tokens to attend to; "
            f"patch_size={suitable_patch(pair('img_size', options['img_size']))} is a better choice",
            FewTokensWarning,
            stacklevel=3,
        )
    model.name = f"timm:{name}"
    model.timm_options = {option: value for option, value in options.items() if option != "pretrained"}
    model.class_names = None
    return model.to(device=device, dtype=dtype)


def require_timm(name: str) -> None:
    import timm

    if not timm.is_model(name.split(".")[0]):
        near = " or ".join(f"timm:{each}" for each in difflib.get_close_matches(name, timm.list_models(), 3, 0.5))
        raise SoftbiasError(
            f"timm has no model {name!r}; {f'did you mean {near}? ' if near else ''}timm.list_models() names all"
        )


# Hugging Face


class HuggingFaceClassifier(nn.Module):
    """A Hugging Face image classifier that returns logits, as every other model here does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.num_classes: int = model.config.num_labels
        names = model.config.id2label
        self.class_names = tuple(names[index] for index in sorted(names)) if names else None

    @property
    def name(self) -> str:
        return f"hf:{self.config.name_or_path}"

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits

    # timm's conventions, by which a head is trained alone or replaced

    def get_classifier(self) -> nn.Module:
        return self.model.classifier

    def reset_classifier(self, num_classes: int) -> None:
        head = self.get_classifier()
        if not isinstance(head, nn.Linear):
            raise SoftbiasError(f"{self.name} has a head of {type(head).__name__}, and only a linear one can be replaced")
        self.model.classifier = nn.Linear(head.in_features, num_classes).to(head.weight)
        self.config.num_labels = self.model.num_labels = self.num_classes = num_classes
        self.class_names = None


def create_hugging_face(
    folder: str,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int = 3,
    device: Any = None,
    dtype: torch.dtype | None = None,
    **others: Any,
) -> nn.Module:
    """The classifier in a folder that `save_pretrained` wrote: with its weights if they are there (safetensors only)."""
    for option in others:
        raise unknown_name(f"option of hf:{folder}", option, ("num_classes", "img_size", "in_chans"))
    try:
        from transformers import AutoConfig, AutoModelForImageClassification
    except ImportError as error:
        raise SoftbiasError("hf: models need the package transformers: pip install 'softbias[hf]'") from error
    if not (Path(folder) / "config.json").is_file():
        raise SoftbiasError(f"hf:{folder}: there is no config.json in that folder")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    size = getattr(config, "image_size", None)
    if img_size is not None and size is not None and pair("image_size", size) != pair("img_size", img_size):
        raise SoftbiasError(f"hf:{folder} is for image_size={size}, but {img_size} was asked for")
    if getattr(config, "num_channels", in_chans) != in_chans:
        raise SoftbiasError(f"hf:{folder} is for num_channels={config.num_channels}, but {in_chans} was asked for")
    if num_classes not in (None, config.num_labels):
        config.num_labels = num_classes
    if any(Path(folder).glob("*.safetensors")):
        model = AutoModelForImageClassification.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, ignore_mismatched_sizes=True
        )
    elif any(Path(folder).glob("*.bin")):
        raise SoftbiasError(f"hf:{folder} holds pickled weights, which can run code; save them as safetensors first")
    else:
        model = AutoModelForImageClassification.from_config(config)
    return HuggingFaceClassifier(model).to(device=device, dtype=dtype)
