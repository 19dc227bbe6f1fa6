"""How deep a parameter lies in a model: which ones stay as they were, and how fast the others learn.

    lr of block i = lr · decay^(depth − i)          what comes before the blocks: i = −1; norms and head after them: i = depth
                    lr · rate                       of biases that a conversion put into a block (`models.conversion`)

The models are those with `blocks`, as ours and timm's transformers have them. What a model has before its blocks is found by
order: its own parameters (positions, class token) and the modules that it lists before `blocks`.

Frozen parameters need no gradient, so autograd builds no graph for them: the first blocks then cost their forward pass alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from softbias.errors import SoftbiasError


def blocks_of(model: Any, setting: str) -> nn.ModuleList | nn.Sequential:
    """The blocks of a model; `setting` is what needs them, for the error."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        raise SoftbiasError(
            f"{setting} needs a transformer with blocks, ours or timm's, but {type(model).__name__} has none; leave it out"
        )
    return blocks


def freeze_blocks(model: nn.Module, count: int) -> None:
    """Freeze the first `count` blocks and what comes before them; nothing for 0."""
    if not count:
        return
    depth = len(blocks_of(model, f"frozen_blocks={count}"))
    if count > depth:
        raise SoftbiasError(f"frozen_blocks={count}, but the model has {depth} blocks; freeze at most {depth}")
    joins = getattr(getattr(model, "spec", None), "class_token", None) or 0
    for name, parameter in model.named_parameters():
        late_token = name == "cls_token" and joins >= count  # it meets the first trained block, so it can learn
        if index_of(model, name) < count and not late_token:
            parameter.requires_grad_(False)


def frozen_modules(model: nn.Module, count: int) -> Iterator[nn.Module]:
    """The modules of `freeze_blocks`, which stay in evaluation mode."""
    if count:
        before = (module for name, module in model.named_children() if name != "blocks" and index_of(model, f"{name}.") < 0)
        yield from before
        yield from list(blocks_of(model, f"frozen_blocks={count}"))[:count]


def index_of(model: nn.Module, name: str) -> int:
    """The block of a parameter; −1 before the first one, and the number of blocks after the last.

    name   of a parameter, as from `named_parameters`, or "patch_embed." for a module
    """
    if found := re.match(r"blocks\.(\d+)\.", name):
        return int(found[1])
    children = [child for child, _ in model.named_children()]
    first = name.partition(".")[0]
    after = first in children and children.index(first) > children.index("blocks")
    return len(model.get_submodule("blocks")) if after else -1  # type: ignore[arg-type]  # a list of blocks


def lr_factor(model: nn.Module, name: str, decay: float) -> float:
    """By how much the learning rate of a parameter is multiplied. What a conversion has added is as new as the head."""
    added: Mapping[str, float] = getattr(model, "new_parameters", {})
    if decay == 1 or name in added:
        return added.get(name, 1.0)
    depth = len(blocks_of(model, f"layer_decay={decay:g}"))
    return float(decay ** (depth - index_of(model, name)))
