"""A model with other attention, or for images of another size; what was learned is kept.

`convert` is the papers' "replace self-attention by ours". `resize` treats the parts of a model as follows.

    positions       learned ones are interpolated over the grid (bicubic), fixed ones are computed anew
    attention       `Attention.resize_state`: most mechanisms know offsets alone and stay as they are
    flatten head    interpolated over the grid and scaled by old / new patches, so that logits keep their size

Shapes: H heads, N tokens, P patches, C channels, K classes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from softbias.attention import Attention, ConversionError, NoAttentionMapError, find_attention
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.models import build
from softbias.models.adapters import Replacement
from softbias.models.inspect import attention_sites, unwrap
from softbias.models.spec import Layer, ModelSpec, Spec, pair
from softbias.models.vit import Block, VisionTransformer, build_attention
from softbias.models.weights import resize_positions

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, blocks: int | Iterable[int], attention: str, **options: Any) -> Model:
    """A copy of the model in which the given blocks attend by another mechanism, with the same q, k, v and output weights.

    Gated and masked attention in place of full attention start as the same function, to rounding, and their biases learn from
    the first step on: gates are free coefficients that start at zero, masks are ones under a softmax. Options choose other
    starts, such as `gating="sigmoid"` or `kernel="exp_l2"`.

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


@torch.no_grad()
def resize(model: Model, img_size: int | tuple[int, int]) -> Model:
    """A copy of the model for another image size; to its own size it is an exact copy."""
    present = getattr(model, "spec", None)
    if not isinstance(present, Spec):
        raise SoftbiasError(f"resize takes a softbias model, but got {type(model).__name__}")
    spec = with_possible_options(replace(present, img_size=pair("img_size", img_size)))
    if spec == present:
        return copy.deepcopy(model)
    if not isinstance(model, VisionTransformer):  # convolutions fit any size
        same: Any = copy.deepcopy(model)
        same.spec = spec
        return cast(Model, same)
    like = next(model.parameters())
    resized: Any = build(spec).to(device=like.device, dtype=like.dtype).train(model.training)
    old, new = model.grid(0), resized.grid(0)
    state = model.state_dict()
    if model.pos_embed is not None:
        sizes = (old.height, old.width), (new.height, new.width)
        state["pos_embed"] = resize_positions(model.pos_embed, *sizes, model.pos_embed.shape[1] - old.patches)
    if resized.spec.pool == "flatten" and spec.num_classes:
        state["head.weight"] = resize_flatten_head(state["head.weight"], old, new)
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        of_attention = block.attn.resize_state(resized.grid(index))
        state |= {f"blocks.{index}.attn.{name}": tensor for name, tensor in of_attention.items()}
    resized.load_state_dict(state)
    for name in ("name", "class_names", "grad_checkpointing"):
        setattr(resized, name, getattr(model, name))
    return cast(Model, resized)


def with_possible_options(spec: Spec) -> Spec:
    """The spec with options that its mechanisms can have on its grids."""
    if not isinstance(spec, ModelSpec):
        return spec
    layers = [
        replace(layer, options=find_attention(layer.attention).options_on(spec.grid(index), layer.options))
        for index, layer in enumerate(spec.layers)
    ]
    return replace(spec, layers=tuple(layers))


def resize_flatten_head(weight: Tensor, old: Grid, new: Grid) -> Tensor:
    """# (K, P·C) -> (K, P'·C)"""
    by_channel = weight.unflatten(1, (old.patches, -1)).mT  # (K, C, P)
    return old.interpolated(by_channel, new).mT.flatten(1) * (old.patches / new.patches)
