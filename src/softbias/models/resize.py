"""The same model for images of another size.

    positions       learned ones are interpolated over the grid (bicubic), fixed ones are computed anew
    gated, positional, window, convolutions    know offsets only and stay as they are
    masks           un-rolled, interpolated over the query grid and over the key grid, rolled back and refitted to their rank
    flatten head    interpolated over the grid and scaled by old / new patches, so that logits keep their size

Shapes: H heads, N tokens, P patches, C channels, K classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.attention import find_attention
from softbias.attention.masked import RANK, Masked
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels.rolling import fit_svd, roll_back
from softbias.models.layers import Block
from softbias.models.spec import Spec, pair
from softbias.models.vit import VisionTransformer
from softbias.models.weights import resize_positions

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def resize(model: Model, img_size: int | tuple[int, int]) -> Model:
    """A copy of the model for another image size; to its own size it is an exact copy."""
    present = getattr(model, "spec", None)
    if not isinstance(present, Spec):
        raise SoftbiasError(f"resize takes a softbias model, but got {type(model).__name__}")
    spec = with_possible_ranks(replace(present, img_size=pair("img_size", img_size)))
    if spec == present:
        return copy.deepcopy(model)
    if not isinstance(model, VisionTransformer):  # convolutions fit any size
        same: Any = copy.deepcopy(model)
        same.spec = spec
        return same

    from softbias.models import build

    like = model.norm.weight
    resized: Any = build(spec).to(device=like.device, dtype=like.dtype).train(model.training)
    old, new = model.grid(0), resized.grid(0)
    state = model.state_dict()
    if model.pos_embed is not None:
        sizes = (old.height, old.width), (new.height, new.width)
        state["pos_embed"] = resize_positions(model.pos_embed, *sizes, old.prefix)
    if resized.spec.pool == "flatten" and spec.num_classes:
        state["head.weight"] = resize_flatten_head(state["head.weight"], old, new)
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if isinstance(block.attn, Masked):
            a, b = resize_mask(block.attn, resized.grid(index))
            state[f"blocks.{index}.attn.mask_a"], state[f"blocks.{index}.attn.mask_b"] = a, b
    resized.load_state_dict(state)
    for name in ("name", "class_names", "grad_checkpointing"):
        setattr(resized, name, getattr(model, name))
    return resized


def with_possible_ranks(spec: Any) -> Any:
    """Masks on a small grid cannot have more ranks than it has tokens."""
    layers = list(getattr(spec, "layers", ()))
    for index, layer in enumerate(layers):
        most = len(spec.grid(index))
        if find_attention(layer.attention) is Masked and layer.options.get("rank", RANK) > most:
            layers[index] = replace(layer, options={**layer.options, "rank": most})
    return replace(spec, layers=tuple(layers)) if layers else spec


def resize_last_grid(x: Tensor, old: Grid, new: Grid) -> Tensor:
    """Bilinear interpolation of the last axis, which runs over the patches of a grid.  # (…, P) -> (…, P')"""
    image = x.reshape(-1, 1, old.height, old.width).float()
    resized = interpolate(image, (new.height, new.width), mode="bilinear", align_corners=False, antialias=True)
    return resized.reshape(*x.shape[:-1], new.patches).to(x.dtype)


def resize_mask(attention: Masked, new: Grid) -> tuple[Tensor, Tensor]:
    """Factors for the new grid.  # 2 × (H, r, N')"""
    old, prefix = attention.grid, attention.grid.prefix
    mask = attention.mask()
    between = resize_last_grid(resize_last_grid(mask[:, prefix:, prefix:], old, new).mT, old, new).mT
    resized = mask.new_ones(len(mask), len(new), len(new))
    resized[:, :prefix, :prefix] = mask[:, :prefix, :prefix]
    resized[:, :prefix, prefix:] = resize_last_grid(mask[:, :prefix, prefix:], old, new)
    resized[:, prefix:, :prefix] = resize_last_grid(mask[:, prefix:, :prefix].mT, old, new).mT
    resized[:, prefix:, prefix:] = between
    return fit_svd(roll_back(resized, prefix, attention.roll), min(attention.rank, len(new)))


def resize_flatten_head(weight: Tensor, old: Grid, new: Grid) -> Tensor:
    """# (K, P·C) -> (K, P'·C)"""
    by_channel = weight.unflatten(1, (old.patches, -1)).mT  # (K, C, P)
    return resize_last_grid(by_channel, old, new).mT.flatten(1) * (old.patches / new.patches)
