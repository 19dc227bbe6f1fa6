"""Names in the papers' own state dicts, and what becomes of them here.

    ConViT   its gated layers keep q and k apart from v; the order of r(δ) is ours
    IBiT     the stem is a linear layer on unfolded patches; k comes before q; the factors of a mask are mask1 and mask2
    ARViT    its positions, and with them all channels of the residual stream, have another order: sin and cos alternate, first
             those of the column, then those of the row. Ours are sin row, cos row, sin column, cos column. Its head reads
             channels before patches

IBiT's and ARViT's weights belong to models that are built with released=True. What a release keeps beside its weights, such as
tables of positions and of rolled indices, is made again by our model, and left out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from softbias.errors import UnfitWeightsError

State = dict[str, Tensor]
OF_IBIT = {
    "BNorm1": "norm1",
    "BNorm2": "norm2",
    "MLP.0": "mlp.fc1",
    "MLP.3": "mlp.fc2",
    "attention.final_linear": "attn.proj",
    "attention.mask1": "attn.mask_a",
    "attention.mask2": "attn.mask_b",
}
OF_ARVIT = {
    "self_attn.in_proj_": "attn.qkv.",
    "self_attn.out_proj.": "attn.proj.",
    "linear1.": "mlp.fc1.",
    "linear2.": "mlp.fc2.",
    "norm1.": "norm1.",
    "norm2.": "norm2.",
}


def release_of(given: Mapping[str, Tensor]) -> str | None:
    """The release whose names these are; None for names of ours or of timm's."""
    if "scale_up.1.weight" in given:
        return "IBiT"
    if "backbone.proj.weight" in given:
        return "ARViT"
    return "ConViT" if any(name.endswith(".attn.gating_param") for name in given) else None


def to_own_names(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> State:
    """The same weights as our models have them; `own` is the state of the model, from which shapes are taken."""
    release = release_of(given)
    return dict(given) if release is None else FROM[release](given, own)


def from_convit(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> State:
    found: State = {}
    for name, tensor in given.items():
        prefix, _, rest = name.partition(".attn.")
        if rest in ("qk.weight", "qk.bias"):
            kind = rest.partition(".")[2]
            found[f"{prefix}.attn.qkv.{kind}"] = torch.cat([tensor, part_of(given, f"{prefix}.attn.v.{kind}", tensor)])
        elif rest in ("v.weight", "v.bias") or rest == "rel_indices":
            continue
        elif rest in ("pos_proj.weight", "pos_proj.bias"):
            found[f"{prefix}.attn.position.{rest.partition('.')[2]}"] = tensor
        elif rest == "gating_param":
            found[f"{prefix}.attn.gate"] = tensor
        else:
            found[name] = tensor
    return found


def from_ibit(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> State:
    found: State = {}
    for name, tensor in given.items():
        block = re.fullmatch(r"CiTBlocks\.(\d+)\.(.+)", name)
        if name == "scale_up.1.weight":
            found["patch_embed.proj.weight"] = shaped(tensor, own.get("patch_embed.proj.weight"))
        elif name == "embedding":
            found["cls_token"] = tensor.reshape(1, 1, -1)
        elif block and block[2].startswith("attention.Linears."):
            if block[2].startswith("attention.Linears.0."):  # keys; queries are 1 and values 2
                kind = block[2].rpartition(".")[2]
                start = f"CiTBlocks.{block[1]}.attention.Linears"
                query, value = (part_of(given, f"{start}.{index}.{kind}", tensor) for index in (1, 2))
                found[f"blocks.{block[1]}.attn.qkv.{kind}"] = torch.cat([query, tensor, value])
        elif block and block[2] == "attention.roll_back":
            continue
        elif block:
            found[f"blocks.{block[1]}.{renamed(block[2], OF_IBIT)}"] = tensor
        else:
            found[name.replace("scale_up.1.", "patch_embed.proj.").replace("fcn.0.", "head.")] = tensor
    return found


def from_arvit(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> State:
    found: State = {}
    width = len(given["backbone.proj.weight"])
    order = channel_order(width)
    for name, tensor in given.items():
        layer = re.fullmatch(r"encoder\.encoder\.layers\.(\d+)\.(.+)", name)
        if name in ("pos", "mask") or name.startswith("gm_mask."):
            continue
        if layer:
            reads = layer[2] in ("self_attn.in_proj_weight", "linear1.weight")
            writes = not layer[2].startswith(("self_attn.in_proj_", "linear1."))
            tensor = permuted(tensor, order, 1) if reads else permuted(tensor, order, 0) if writes else tensor
            found[f"blocks.{layer[1]}.{renamed(layer[2], OF_ARVIT)}"] = tensor
        elif name == "head.weight" and tensor.ndim == 2 and tensor.shape[1] % width == 0:
            by_channel = permuted(tensor.unflatten(1, (width, -1)), order, 1)  # (K, C, P)
            found[name] = by_channel.mT.flatten(1)
        elif name.startswith(("backbone.proj.", "norm.ln.")):
            own_name = name.replace("backbone.", "patch_embed.").replace("norm.ln.", "norm.")
            found[own_name] = permuted(tensor, order, 0)
        else:
            found[name] = tensor
    return found


def channel_order(width: int) -> list[int]:
    """Where each of our channels lies in ARViT's release.

    >>> channel_order(8)  # sin row, cos row, sin column, cos column
    [4, 6, 5, 7, 0, 2, 1, 3]
    """
    half = width // 2
    return [first + index for first in (half, half + 1, 0, 1) for index in range(0, half, 2)]


def permuted(tensor: Tensor, order: list[int], axis: int) -> Tensor:
    if tensor.ndim <= axis or tensor.shape[axis] != len(order):
        return tensor  # its shape does not fit, which loading says
    return tensor.index_select(axis, torch.tensor(order, device=tensor.device))


def shaped(tensor: Tensor, own: Tensor | None) -> Tensor:
    """The weight of a linear layer on unfolded patches, channels first, as that of a convolution."""
    fits = own is not None and own.numel() == tensor.numel() and len(own) == len(tensor)
    return tensor.reshape(own.shape) if own is not None and fits else tensor


def part_of(given: Mapping[str, Tensor], name: str, other: Tensor) -> Tensor:
    found = given.get(name)
    if found is None or found.shape[1:] != other.shape[1:]:
        raise UnfitWeightsError([f"{name} is missing or has another width than its neighbors"])
    return found


def renamed(name: str, names: Mapping[str, str]) -> str:
    start = next((each for each in names if name.startswith(each)), None)
    return name if start is None else names[start] + name.removeprefix(start)


FROM: Mapping[str, Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], State]] = {
    "ConViT": from_convit,
    "IBiT": from_ibit,
    "ARViT": from_arvit,
}
