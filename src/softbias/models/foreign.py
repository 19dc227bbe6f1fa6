"""Models of other libraries: timm's classifiers by name, Hugging Face folders, and how to read their attention.

Shapes: B images, H heads, N tokens, C channels, D = C / H.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbias.attention import Attention
from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.models.presets import FEW_PATCHES
from softbias.models.spec import pair, suitable_patch

Reader = Callable[[Any, Tensor], Tensor]  # Any: an nn.Module whose attributes are another library's

# timm


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


class TimmAdapter(nn.Module):
    """One of our mechanisms in the place of timm's attention, which is also handed a mask."""

    def __init__(self, mechanism: Attention) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise SoftbiasError(f"{type(self.mechanism).__name__} attention takes no attention mask")
        return self.mechanism(x)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """# (B, N, C) -> (B, H, N, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def read_timm(module: Any, x: Tensor) -> Tensor:
    """The map of timm's Attention (ViT, DeiT) and of its ConViT's MHSA."""
    q, k, _ = (split_heads(part, module.num_heads) for part in module.qkv(x).chunk(3, dim=-1))
    q, k = getattr(module, "q_norm", nn.Identity())(q), getattr(module, "k_norm", nn.Identity())(k)
    return (q * module.scale @ k.mT).softmax(-1)


def read_timm_gpsa(module: Any, x: Tensor) -> Tensor:
    return module.get_attention(x)


def timm_sites(model: nn.Module, img_size: tuple[int, int] | None) -> list[tuple[nn.Module, Grid, Reader]] | None:
    blocks, embed = getattr(model, "blocks", None), getattr(model, "patch_embed", None)
    if blocks is None or embed is None or not hasattr(embed, "grid_size"):
        return None
    height, width = embed.grid_size
    if img_size is not None and not getattr(embed, "strict_img_size", True):
        patch = pair("patch_size", embed.patch_size)
        height, width = -(-img_size[0] // patch[0]), -(-img_size[1] // patch[1])
    late = getattr(model, "local_up_to_layer", None)  # ConViT: the class token joins there
    found: list[tuple[nn.Module, Grid, Reader]] = []
    for index, block in enumerate(blocks):
        attention: Any = getattr(block, "attn", None)
        prefix = getattr(model, "num_prefix_tokens", 1) if late is None else int(index >= late)
        kind = type(attention).__name__
        if isinstance(attention, TimmAdapter):
            found.append((attention.mechanism, attention.mechanism.grid, read_timm))
        elif kind == "GPSA":
            found.append((attention, Grid(height, width), read_timm_gpsa))
        elif kind in ("Attention", "MHSA") and hasattr(attention, "qkv") and type(attention).__module__.startswith("timm"):
            found.append((attention, Grid(height, width, prefix), read_timm))
        else:
            return None
    return found or None


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


def read_hugging_face(module: Any, x: Tensor) -> Tensor:
    """The map of a ViT's self-attention, whose projections are named by release: q_proj, k_proj or query, key."""
    query = module.q_proj if hasattr(module, "q_proj") else module.query
    key = module.k_proj if hasattr(module, "k_proj") else module.key
    heads = module.num_attention_heads
    q, k = split_heads(query(x), heads), split_heads(key(x), heads)
    return (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1)


def hugging_face_sites(model: nn.Module) -> list[tuple[nn.Module, Grid, Reader]] | None:
    inner: Any = model.model if isinstance(model, HuggingFaceClassifier) else model
    if type(inner).__name__ != "ViTForImageClassification":
        return None
    config = inner.config
    image, patch = pair("image_size", config.image_size), pair("patch_size", config.patch_size)
    grid = Grid(image[0] // patch[0], image[1] // patch[1], prefix=1)
    attention = [
        module
        for module in inner.modules()
        if type(module).__name__ in ("ViTAttention", "ViTSelfAttention")
        and (hasattr(module, "q_proj") or hasattr(module, "query"))
    ]
    return [(module, grid, read_hugging_face) for module in attention] or None


def find_sites(model: nn.Module, img_size: tuple[int, int] | None) -> list[tuple[nn.Module, Grid, Reader]] | None:
    """The attention of a foreign model, block by block, or None if it is not one we can read."""
    return hugging_face_sites(model) or timm_sites(model, img_size)
