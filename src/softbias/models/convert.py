"""Swap the attention of chosen blocks and keep what was learned: the papers' "replace self-attention by ours"."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar, cast

from torch import nn

from softbias.attention import Attention, ConversionError, NoAttentionMapError, find_attention
from softbias.errors import SoftbiasError
from softbias.models.adapters import Replacement
from softbias.models.inspect import attention_sites, unwrap
from softbias.models.layers import build_attention
from softbias.models.spec import Layer
from softbias.models.vit import VisionTransformer

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, blocks: int | Iterable[int], attention: str, **options: Any) -> Model:
    """A copy of the model in which the given blocks attend by another mechanism, with the same q, k, v and output weights.

    Works on our transformers and on timm's ViT and DeiT. An attention that does more than its projections say (norms of
    queries and keys, a table of positions) is refused. A projection without bias becomes one with a bias of zero where the
    source has biases elsewhere; a class token that has joined takes part by content (`prefix="content"` of gated attention).

    >>> from softbias.models import create_model
    >>> mixed = convert(create_model("deit_nano"), [0, 1], "masked", norm="softmax")
    >>> mixed.spec.describe_layers()
    '2 × masked, 2 × full'
    """
    converted: Any = copy.deepcopy(model)
    try:
        sites = attention_sites(converted)
    except NoAttentionMapError as error:
        raise ConversionError(f"{type(model).__name__} has no attention that convert can replace: {error}") from error
    depth = len(sites)
    chosen = [blocks] if isinstance(blocks, int) else list(blocks)
    for index in chosen:
        if not -depth <= index < depth:
            raise SoftbiasError(f"the model has blocks 0 to {depth - 1}, but block {index} was asked for")
    inner: Any = unwrap(converted)
    for index in sorted({index % depth for index in chosen}):
        source = sites[index].attention
        layer = Layer(attention, find_attention(attention).options_to_replace(source, options))
        mechanism = replacement(layer, source)
        if isinstance(inner, VisionTransformer):
            inner.blocks[index].attn = mechanism
            layers = list(inner.spec.layers)
            layers[index] = layer
            inner.spec, inner.name = replace(inner.spec, layers=tuple(layers)), None
        else:
            inner.blocks[index].attn = Replacement(mechanism, layer.describe())
    return cast(Model, converted)


def replacement(layer: Layer, source: Attention) -> Attention:
    """A new mechanism with the projections of another one, on its device and in its precision."""
    given = source.projections()
    mechanism = build_attention(layer, source.width, source.heads, source.grid).to(given["proj.weight"])
    mechanism.take_projections(given)
    return mechanism
