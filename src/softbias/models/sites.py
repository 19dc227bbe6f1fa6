"""Where a model attends: its blocks, the attention in each, and the grid of its tokens.

The attention of a foreign model is read by the adapters of `softbias.models.adapters`. A model with an attention that none of
them reads exactly has no sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from softbias.attention import Attention
from softbias.grid import Grid
from softbias.models.adapters import (
    HuggingFaceAttention,
    Replacement,
    TimmAttention,
    TimmBeitAttention,
    TimmConvitAttention,
    TimmGatedAttention,
    qualified_name,
)
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.spec import pair

TIMM_ADAPTERS = (TimmAttention, TimmBeitAttention, TimmConvitAttention, TimmGatedAttention)
VIT, BEIT, CONVIT = (
    "timm.models.vision_transformer.VisionTransformer",
    "timm.models.beit.Beit",
    "timm.models.convit.ConVit",
)


@dataclass(frozen=True)
class Site:
    """Where a model attends: the module that it calls with tokens, and the attention that says all about it.

    In our models the two are the same; a foreign module has an adapter. `name` is the mechanism as pages name it.
    """

    module: nn.Module
    attention: Attention
    name: str

    @property
    def grid(self) -> Grid:
        return self.attention.grid


def is_a(model: nn.Module, *names: str) -> bool:
    """Whether the model is of one of these classes, or of a class made from it; the library need not be imported for that."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(model).__mro__)


def timm_sites(model: Any, img_size: tuple[int, int] | None) -> list[Site] | None:
    """The attention of timm's ViT, BEiT or ConViT, or None for any other model and for any other attention."""
    if not is_a(model, VIT, BEIT, CONVIT):
        return None
    height, width = model.patch_embed.grid_size
    if img_size is not None and not getattr(model.patch_embed, "strict_img_size", True):
        height, width = model.patch_embed.dynamic_feat_size(img_size)
    found: list[Site] = []
    for index, block in enumerate(model.blocks):
        prefix = int(index >= model.local_up_to_layer) if is_a(model, CONVIT) else model.num_prefix_tokens
        grid, source = Grid(height, width, prefix), getattr(block, "attn", None)
        if isinstance(source, Replacement):
            found.append(Site(source.mechanism, source.mechanism, source.name))
        elif source is None:
            return None
        else:
            adapter = next((each for each in TIMM_ADAPTERS if each.fits(source)), None)
            if adapter is None:
                return None
            found.append(Site(source, adapter(source, grid, model), adapter.mechanism))
    return found


def hugging_face_sites(model: Any) -> list[Site] | None:
    """The same for Hugging Face's ViT."""
    inner: Any = model.model if isinstance(model, HuggingFaceClassifier) else model
    if qualified_name(inner) != "transformers.models.vit.modeling_vit.ViTForImageClassification":
        return None
    image, patch = (pair(name, getattr(inner.config, name)) for name in ("image_size", "patch_size"))
    grid = Grid(image[0] // patch[0], image[1] // patch[1], prefix=1)
    sources = [layer.attention for layer in inner.vit.layers]
    if not all(HuggingFaceAttention.fits(source) for source in sources):
        return None
    return [Site(source, HuggingFaceAttention(source, grid), HuggingFaceAttention.mechanism) for source in sources]


def foreign_sites(model: nn.Module, img_size: tuple[int, int] | None) -> list[Site] | None:
    """The attention of a foreign model, block by block, or None if we cannot read all of it exactly."""
    return hugging_face_sites(model) or timm_sites(model, img_size)
