"""Initial weights of linear layers, as `initial` of a spec names them. Norms, convolutions and mechanisms start their own way.

normal        truncated normal of .02, biases at zero: ViT, DeiT, ConViT
normal_stem   the same for the convolutions of the stem: Hugging Face's ViT
xavier        in the blocks uniform within ±√(6 / (inputs + outputs)) (Glorot & Bengio, 2010), biases of the attention at
              zero; other biases, stem and head as PyTorch starts them: ARViT's release
torch         as PyTorch starts them: IBiT's release
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

DEVIATION = 0.02


def init_normal(layer: nn.Linear | nn.Conv2d) -> None:
    nn.init.trunc_normal_(layer.weight, std=DEVIATION)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def normal(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            init_normal(module)


def normal_stem(model: Any) -> None:
    normal(model)
    for module in model.patch_embed.modules():
        if isinstance(module, nn.Conv2d):
            init_normal(module)


def xavier(model: Any) -> None:
    for block in model.blocks:
        for parameter in block.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        for layer in (block.attn.qkv, block.attn.proj):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


INITIAL: Mapping[str, Callable[[Any], None]] = {
    "normal": normal,
    "normal_stem": normal_stem,
    "xavier": xavier,
    "torch": lambda model: None,
}
