"""ConViT, IBiT and ARViT as their own code has them: formulas of a state dict with their names, written without our layers.

    logits = convit(weights, images, heads=4, gated_blocks=2)

Each is one function of images and weights, with the names that the published state dicts have. `random_weights` makes such a
state dict, and `tests/references/test_released.py` loads it into our models.

Shapes: B images, H heads, N tokens, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import conv2d, dropout, gelu, layer_norm, linear, relu, unfold

Weights = Mapping[str, Tensor]


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors of these shapes; norms stay near the identity, so that signals neither vanish nor explode."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator, dtype=torch.double)
        scale = (
            0.3 if len(shape) < 2 or "mask" in name or "embed" in name or "pos_proj" in name else math.prod(shape[1:]) ** -0.5
        )
        found[name] = scale * drawn + (1.0 if len(shape) == 1 and "orm" in name and name.endswith("weight") else 0.0)
    return found


def normed(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def layer(x: Tensor, weights: Weights, name: str) -> Tensor:
    return linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def in_heads(x: Tensor, heads: int) -> Tensor:
    """# (B, N, C) -> (B, H, N, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def content(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])


# ConViT


def convit_shapes(
    width: int, heads: int, blocks: int, gated: int, patch: int, side: int, classes: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, width), "pos_embed": (1, side * side, width)}
    shapes |= {"patch_embed.proj.weight": (width, 3, patch, patch), "patch_embed.proj.bias": (width,)}
    for index in range(blocks):
        at = f"blocks.{index}"
        attention: dict[str, tuple[int, ...]] = {"qkv.weight": (3 * width, width)}
        if index < gated:
            attention = {"qk.weight": (2 * width, width), "v.weight": (width, width), "gating_param": (heads,)}
            attention |= {"pos_proj.weight": (heads, 3), "pos_proj.bias": (heads,)}
        attention |= {"proj.weight": (width, width), "proj.bias": (width,)}
        shapes |= {f"{at}.attn.{name}": shape for name, shape in attention.items()}
        shapes |= {f"{at}.{name}.{kind}": (width,) for name in ("norm1", "norm2") for kind in ("weight", "bias")}
        shapes |= {f"{at}.mlp.fc1.weight": (4 * width, width), f"{at}.mlp.fc1.bias": (4 * width,)}
        shapes |= {f"{at}.mlp.fc2.weight": (width, 4 * width), f"{at}.mlp.fc2.bias": (width,)}
    shapes |= {"norm.weight": (width,), "norm.bias": (width,), "head.weight": (classes, width), "head.bias": (classes,)}
    return shapes


def convit(weights: Weights, images: Tensor, *, heads: int, gated: int, blocks: int) -> Tensor:
    patch = weights["patch_embed.proj.weight"].shape[-1]
    x = conv2d(images, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=patch)
    side = x.shape[-1]
    x = x.flatten(2).mT + weights["pos_embed"]
    rows, columns = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
    across, down = columns[None] - columns[:, None], rows[None] - rows[:, None]  # key minus query
    relative = torch.stack([across, down, across**2 + down**2], dim=-1).to(x)  # (N, N, 3)
    for index in range(blocks):
        at = f"blocks.{index}"
        if index == gated:
            x = torch.cat([weights["cls_token"].expand(len(x), -1, -1), x], dim=1)
        y = normed(x, weights, f"{at}.norm1", 1e-6)
        if index < gated:
            q, k = (in_heads(part, heads) for part in layer(y, weights, f"{at}.attn.qk").chunk(2, -1))
            v = in_heads(layer(y, weights, f"{at}.attn.v"), heads)
            position = layer(relative, weights, f"{at}.attn.pos_proj").permute(2, 0, 1).softmax(-1)
            gate = weights[f"{at}.attn.gating_param"].sigmoid()[:, None, None]
            attention = (1 - gate) * content(q, k).softmax(-1) + gate * position
            attention = attention / attention.sum(-1, keepdim=True)
        else:
            q, k, v = (in_heads(part, heads) for part in layer(y, weights, f"{at}.attn.qkv").chunk(3, -1))
            attention = content(q, k).softmax(-1)
        x = x + layer(joined(attention @ v), weights, f"{at}.attn.proj")
        y = normed(x, weights, f"{at}.norm2", 1e-6)
        x = x + layer(gelu(layer(y, weights, f"{at}.mlp.fc1")), weights, f"{at}.mlp.fc2")
    return layer(normed(x, weights, "norm", 1e-6)[:, 0], weights, "head")


# IBiT


def ibit_shapes(
    width: int, heads: int, blocks: int, rank: int, patch: int, tokens: int, classes: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (width,)}
    shapes |= {"scale_up.1.weight": (width, 3 * patch * patch), "scale_up.1.bias": (width,)}
    for index in range(blocks):
        at = f"CiTBlocks.{index}"
        shapes |= {f"{at}.{name}.{kind}": (width,) for name in ("BNorm1", "BNorm2") for kind in ("weight", "bias")}
        for name in ("Linears.0", "Linears.1", "Linears.2", "final_linear"):
            shapes |= {f"{at}.attention.{name}.weight": (width, width), f"{at}.attention.{name}.bias": (width,)}
        shapes |= {f"{at}.attention.{name}": (heads, rank, tokens) for name in ("mask1", "mask2")}
        shapes |= {f"{at}.MLP.0.weight": (4 * width, width), f"{at}.MLP.0.bias": (4 * width,)}
        shapes |= {f"{at}.MLP.3.weight": (width, 4 * width), f"{at}.MLP.3.bias": (width,)}
    return shapes | {"fcn.0.weight": (classes, width), "fcn.0.bias": (classes,)}


def ibit(
    weights: Weights, images: Tensor, *, heads: int, blocks: int, patch: int, kept: Callable[[int], Tensor] | None = None
) -> Tensor:
    """`kept` gives the factor of each image's attention branch in a block: 0, or 1 / .9, in training."""
    x = layer(unfold(images, patch, stride=patch).mT, weights, "scale_up.1")
    x = torch.cat([weights["embedding"].expand(len(x), 1, -1), x], dim=1)
    tokens, width = x.shape[1:]
    rates = 1 / torch.exp(torch.linspace(0, math.ceil(math.log(tokens)), width // 2))  # the code's own table is float32
    angles = torch.outer(torch.arange(tokens).float(), rates)
    x = x + torch.cat([angles.sin(), angles.cos()], dim=-1)
    patches = tokens - 1
    roll = torch.zeros(tokens, tokens, dtype=torch.long)
    roll[0] = torch.arange(tokens)
    for i in range(patches):
        roll[1 + i, 0] = 0
        roll[1 + i, 1:] = (torch.arange(patches) - i) % patches  # without "1 +": one patch off
    for index in range(blocks):
        at = f"CiTBlocks.{index}"
        x = normed(x, weights, f"{at}.BNorm1", 1e-5)
        k, q, v = (in_heads(layer(x, weights, f"{at}.attention.Linears.{part}"), heads) for part in range(3))
        rolled = weights[f"{at}.attention.mask1"].mT @ weights[f"{at}.attention.mask2"]
        attention = content(q, k) * rolled.gather(-1, roll.expand_as(rolled))
        attention = attention / (attention.square().sum((-2, -1), keepdim=True).sqrt() + 1e-8)
        branch = layer(joined(attention @ v), weights, f"{at}.attention.final_linear")
        x = x + (branch if kept is None else branch * kept(index))
        x = normed(x, weights, f"{at}.BNorm2", 1e-5)
        x = x + layer(gelu(layer(x, weights, f"{at}.MLP.0")), weights, f"{at}.MLP.3")
    return layer(x[:, 0], weights, "fcn.0")


# ARViT


def arvit_shapes(width: int, blocks: int, patch: int, side: int, classes: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"backbone.proj.weight": (width, 3, patch, patch), "backbone.proj.bias": (width,)}
    for index in range(blocks):
        at = f"encoder.encoder.layers.{index}"
        shapes |= {f"{at}.self_attn.in_proj_weight": (3 * width, width), f"{at}.self_attn.in_proj_bias": (3 * width,)}
        shapes |= {f"{at}.self_attn.out_proj.weight": (width, width), f"{at}.self_attn.out_proj.bias": (width,)}
        shapes |= {f"{at}.linear1.weight": (256, width), f"{at}.linear1.bias": (256,)}
        shapes |= {f"{at}.linear2.weight": (width, 256), f"{at}.linear2.bias": (width,)}
        shapes |= {f"{at}.{name}.{kind}": (width,) for name in ("norm1", "norm2") for kind in ("weight", "bias")}
    shapes |= {"norm.ln.weight": (width,), "norm.ln.bias": (width,)}
    return shapes | {"head.weight": (classes, width * side * side), "head.bias": (classes,)}


def interleaved_positions(side: int, width: int) -> Tensor:
    """sin and cos alternate: of the column in the first half of the channels, of the row in the second; float32.  # (N, C)"""
    half = width // 2
    rates = torch.exp(torch.arange(0.0, half, 2) * -(math.log(10_000.0) / half))
    table = torch.zeros(side, side, width)
    angles = torch.outer(torch.arange(side).float(), rates)
    table[:, :, 0:half:2], table[:, :, 1:half:2] = angles.sin()[None], angles.cos()[None]
    table[:, :, half::2], table[:, :, half + 1 :: 2] = angles.sin()[:, None], angles.cos()[:, None]
    return table.flatten(0, 1)


def channels_dropped(x: Tensor, drop: float) -> Tensor:
    """Dropout of the residual stream with the masks that our order of channels has: sin and cos of the row, of the column."""
    half = x.shape[-1] // 2
    order = [*range(half, 2 * half, 2), *range(half + 1, 2 * half, 2), *range(0, half, 2), *range(1, half, 2)]
    mask = torch.empty_like(x)
    mask[..., order] = dropout(torch.ones_like(x), drop)
    return x * mask


def arvit(weights: Weights, images: Tensor, *, heads: int, blocks: int, drop: float = 0.0) -> Tensor:
    """`drop`: the rate of dropout, with masks of PyTorch's own random numbers, drawn in the order of the formula."""
    patch = weights["backbone.proj.weight"].shape[-1]
    x = conv2d(images, weights["backbone.proj.weight"], weights["backbone.proj.bias"], stride=patch)
    positions = 0.3 * interleaved_positions(x.shape[-1], x.shape[1])
    x = x.flatten(2).mT
    for index in range(blocks):
        at = f"encoder.encoder.layers.{index}"
        packed = linear(x + positions, weights[f"{at}.self_attn.in_proj_weight"], weights[f"{at}.self_attn.in_proj_bias"])
        q, k, v = (in_heads(part, heads) for part in packed.chunk(3, -1))
        attention = dropout(content(q, k).softmax(-1), drop)
        branch = layer(joined(attention @ v), weights, f"{at}.self_attn.out_proj")
        x = normed(x + channels_dropped(branch, drop), weights, f"{at}.norm1", 1e-5)
        hidden = dropout(relu(layer(x, weights, f"{at}.linear1")), drop)
        x = normed(x + channels_dropped(layer(hidden, weights, f"{at}.linear2"), drop), weights, f"{at}.norm2", 1e-5)
    x = normed(x, weights, "norm.ln", 1e-5)
    return layer(x.mT.flatten(1), weights, "head")  # channels before patches
