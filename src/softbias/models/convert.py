"""Swap the attention of chosen blocks and keep what was learned: the papers' "replace self-attention by ours"."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from softbias.attention import Attention, find_attention
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.models import foreign
from softbias.models.layers import build_attention
from softbias.models.spec import Layer
from softbias.models.vit import VisionTransformer

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, blocks: int | Iterable[int], attention: str, **options: Any) -> Model:
    """A copy of the model in which the given blocks attend by another mechanism, with the same q, k, v and output weights.

    Works on our transformers and on timm's ViT and DeiT. A projection without bias becomes one with a bias of zero where the
    source has biases elsewhere; a class token that has joined takes part by content (`prefix="content"` of gated attention).

    >>> from softbias.models import create_model
    >>> mixed = convert(create_model("deit_nano"), [0, 1], "masked", norm="softmax")
    >>> mixed.spec.describe_layers()
    '2 × masked, 2 × full'
    """
    converted: Any = copy.deepcopy(model)
    own = isinstance(converted, VisionTransformer)
    sites = None if own else foreign.timm_sites(converted, None)
    if not own and sites is None:
        raise SoftbiasError(f"convert takes a softbias transformer or timm's ViT, but got {type(model).__name__}")
    depth = len(converted.blocks)
    chosen = [blocks] if isinstance(blocks, int) else list(blocks)
    for index in chosen:
        if not -depth <= index < depth:
            raise SoftbiasError(f"the model has blocks 0 to {depth - 1}, but block {index} was asked for")
    for index in sorted({index % depth for index in chosen}):
        block = converted.blocks[index]
        source, grid = (block.attn, block.attn.grid) if own else (sites[index][0], sites[index][1])  # type: ignore[index]
        heads, given = read_projections(source)
        wanted = dict(options)
        if grid.prefix and "prefix" in (find_attention(attention).__init__.__kwdefaults__ or {}):
            wanted.setdefault("prefix", "content")
        wanted.setdefault("qkv_bias", any(name in given for name in ("q.bias", "v.bias")))
        layer = Layer(attention, wanted)
        mechanism = replacement(layer, heads, grid, given)
        block.attn = mechanism if own else foreign.TimmAdapter(mechanism)
        if isinstance(converted, VisionTransformer):
            layers = list(converted.spec.layers)
            layers[index] = layer
            converted.spec = replace(converted.spec, layers=tuple(layers))
            converted.name = None
    return converted


def replacement(layer: Layer, heads: int, grid: Grid, given: dict[str, Tensor]) -> Attention:
    like = given["proj.weight"]
    mechanism = build_attention(layer, like.shape[0], heads, grid).to(device=like.device, dtype=like.dtype)
    mechanism.take_projections(given)
    return mechanism


def read_projections(source: Any) -> tuple[int, dict[str, Tensor]]:
    """Heads and projections, by name, of one of our mechanisms or of timm's attention."""
    if isinstance(source, Attention):
        return source.heads, source.projections()
    if type(source).__name__ == "GPSA":
        raise SoftbiasError("convert cannot read timm's ConViT; load its weights into ours with softbias.load_weights first")
    for name in ("q_norm", "k_norm", "norm"):
        if not isinstance(getattr(source, name, nn.Identity()), nn.Identity):
            raise SoftbiasError(f"convert takes plain attention, but this one has a {name} that no mechanism of ours has")
    given: dict[str, Tensor] = {}
    for kind, tensor in source.qkv.named_parameters():
        given |= {f"{name}.{kind}": part for name, part in zip("qkv", tensor.detach().chunk(3), strict=True)}
    given |= {f"proj.{kind}": tensor.detach() for kind, tensor in source.proj.named_parameters()}
    return source.num_heads, given
