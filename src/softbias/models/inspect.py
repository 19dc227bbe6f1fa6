"""Attention maps from any vision transformer: ours, timm's, Hugging Face's.

    seen = inspect(model, images, layers=[0, 3])
    seen.logits, seen.maps[3], seen.grid[3]

The model runs on its fused path, as always. For the chosen layers, and for no others, the map is computed from the same input
beside it. A layer that has no map is an error, and never an empty answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from softbias.attention import NoAttentionMapError
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.models.sites import Site, foreign_sites
from softbias.models.vit import VisionTransformer

__all__ = ["Inspection", "Site", "attention_sites", "inspect", "unwrap"]


@dataclass
class Inspection:
    """logits (B, K); maps: block -> (B, H, N, N); grid: block -> the positions of its tokens."""

    logits: Tensor
    maps: dict[int, Tensor] = field(default_factory=dict)
    grid: dict[int, Grid] = field(default_factory=dict)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DataParallel, DDP or an averaged copy."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def attention_sites(model: nn.Module, img_size: tuple[int, int] | None = None) -> list[Site]:
    """One site per block, in order; `img_size` matters for models of timm that take any size."""
    model = unwrap(model)
    if isinstance(model, VisionTransformer):
        blocks: Any = model.blocks
        return [Site(block.attn, block.attn, layer.describe()) for block, layer in zip(blocks, model.spec.layers, strict=True)]
    sites = foreign_sites(model, img_size)
    if sites is None:
        raise NoAttentionMapError(
            f"{describe(model)} has no attention maps that softbias can read exactly; it reads softbias models, timm's ViT, "
            "DeiT, BEiT and ConViT, and Hugging Face's ViTForImageClassification"
        )
    return sites


def inspect(model: nn.Module, images: Tensor, layers: int | Iterable[int] | None = None) -> Inspection:
    """Logits and attention maps; layers count from 0, −1 is the last, None means every layer that has a map.

    Gradients flow through the maps; wrap the call in `torch.no_grad()` if they are not needed.

    >>> import torch
    >>> from softbias.models import create_model
    >>> seen = inspect(create_model("convit_nano"), torch.zeros(2, 3, 32, 32))
    >>> {layer: tuple(attention.shape) for layer, attention in seen.maps.items()}
    {0: (2, 4, 64, 64), 1: (2, 4, 64, 64), 2: (2, 4, 64, 64), 3: (2, 4, 65, 65)}
    """
    bare = unwrap(model)
    sites = attention_sites(bare, tuple(images.shape[-2:]))  # type: ignore[arg-type]
    chosen = choose_layers(bare, sites, layers)
    found: dict[int, Tensor] = {}
    with ExitStack() as hooks:
        for layer in chosen:
            hook = sites[layer].module.register_forward_hook(map_reader(sites[layer], layer, found), with_kwargs=True)
            hooks.callback(hook.remove)
        logits = bare(images)
    if not isinstance(logits, Tensor):
        logits = logits.logits  # of Hugging Face's models
    missing = sorted(set(chosen) - set(found))
    if missing:
        raise NoAttentionMapError(f"{describe(bare)} did not run the attention of layers {missing}")
    return Inspection(logits, {layer: found[layer] for layer in chosen}, {layer: sites[layer].grid for layer in chosen})


def map_reader(site: Site, layer: int, found: dict[int, Tensor]) -> Callable[..., None]:
    """A forward hook for the module of the site, which puts the map of every call into `found`."""

    def read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        found[layer] = site.attention.attention_map(site.attention.tokens_of(args, kwargs))

    return read


def choose_layers(model: nn.Module, sites: list[Site], layers: int | Iterable[int] | None) -> list[int]:
    """The layers as numbers from 0, in order; a layer that does not exist or has no map is an error."""
    with_map = [index for index, site in enumerate(sites) if site.attention.has_map]
    if layers is None:
        if not with_map:
            raise NoAttentionMapError(f"no layer of {describe(model)} has an attention map")
        return with_map
    chosen = [layers] if isinstance(layers, int) else list(layers)
    for layer in chosen:
        if not -len(sites) <= layer < len(sites):
            raise SoftbiasError(f"{describe(model)} has layers 0 to {len(sites) - 1}, but layer {layer} was asked for")
        if layer % len(sites) not in with_map:
            raise NoAttentionMapError(
                f"layer {layer} of {describe(model)} mixes tokens without attention and has no map; "
                f"layers with one: {with_map or 'none'}"
            )
    return sorted({layer % len(sites) for layer in chosen})


def describe(model: nn.Module) -> str:
    return str(getattr(model, "name", None) or type(model).__name__)
