"""Optimizers, learning rates, and averaged weights.

The learning rate is a pure function of the step, so there is nothing to save and nothing to restore:

    warm-up     warmup_lr + (peak − warmup_lr) · step / warmup
    cosine      min_lr + (peak − min_lr) (1 + cos π p) / 2          p: share of the steps after the warm-up
    one-cycle   up from peak / 25 for the first 30 %, then down to min(min_lr, peak / 1000), both along a cosine
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from softbias.errors import SoftbiasError
from softbias.training.depth import lr_factor
from softbias.training.muon import Muon, is_for_muon
from softbias.training.recipe import Recipe

ONE_CYCLE_UP, ONE_CYCLE_START, ONE_CYCLE_END = 0.3, 1 / 25, 1 / 1000


def parameter_groups(model: Any, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Matrices and masks are decayed. Vectors (biases, norms, gates) and the model's `no_weight_decay` (embeddings) are not.

    Parameters that share a factor of the learning rate (`depth.lr_factor`) share their groups.
    """
    spare = set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = 0.0 if parameter.ndim <= 1 or name in spare else weight_decay
            groups.setdefault((lr_factor(model, name, layer_decay), decay), []).append(parameter)
    order = sorted(groups, key=lambda key: (-key[0], -key[1]))  # of a group's state in checkpoints
    return [{"params": groups[key], "weight_decay": key[1], "lr_factor": key[0]} for key in order]


def build_optimizer(model: nn.Module, recipe: Recipe, *, graph: bool = False) -> torch.optim.Optimizer:
    """The recipe's optimizer; for a CUDA graph the learning rate is a tensor, which every replay reads."""
    groups = parameter_groups(model, recipe.weight_decay, recipe.layer_decay)
    if not groups:
        raise SoftbiasError("the model has no parameter to train")
    first = next(model.parameters())
    fused = first.device.type in ("cuda", "cpu")
    lr = recipe.peak_lr()
    if graph:
        groups = [{**group, "lr": torch.tensor(lr * group["lr_factor"], device=first.device)} for group in groups]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=recipe.betas[0], nesterov=recipe.betas[0] > 0, fused=fused)
    if recipe.optimizer == "muon":
        return Muon(muon_groups(model, groups), lr=lr, betas=recipe.betas, fused=fused, capturable=graph)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=lr, betas=recipe.betas, fused=fused, capturable=graph)


def muon_groups(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, with the matrices for Muon in groups of their own."""
    chosen = {id(parameter) for name, parameter in model.named_parameters() if is_for_muon(name, parameter)}
    if not chosen:
        raise SoftbiasError('optimizer="muon" is for matrices of blocks, but the model has none; take optimizer="adamw"')
    found: list[dict[str, Any]] = []
    for group in groups:
        for muon in (True, False):
            inside = [parameter for parameter in group["params"] if (id(parameter) in chosen) == muon]
            found += [{**group, "params": inside, "muon": muon}] if inside else []
    return found


def learning_rate(recipe: Recipe, step: int, total_steps: int, warmup_steps: int) -> float:
    """The learning rate of step 0 … total_steps − 1."""
    peak = recipe.peak_lr()
    last = max(1, total_steps - 1)
    if recipe.schedule == "one-cycle":
        turn = ONE_CYCLE_UP * last
        if step < turn:
            return between(peak * ONE_CYCLE_START, peak, step / turn)
        return between(peak, min(recipe.min_lr, peak * ONE_CYCLE_END), (step - turn) / max(1e-9, last - turn))
    if step < warmup_steps:
        return recipe.warmup_lr + (peak - recipe.warmup_lr) * (step + 1) / (warmup_steps + 1)
    if recipe.schedule == "constant":
        return peak
    share = (step - warmup_steps) / max(1, last - warmup_steps)
    return between(peak, min(recipe.min_lr, peak), share)


def between(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, share))) / 2


class ModelEma:
    """An exponential moving average of a model's weights (EMA).

        ema ← d · ema + (1 − d) · weights,         d = min(decay, (1 + step) / (10 + step))

    The smaller decay at the start keeps the random initial weights out. Buffers (BatchNorm's) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        pairs = [(self.tensors[name], tensor) for name, tensor in model.state_dict(keep_vars=True).items()]
        self.averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        self.copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        # the parameters themselves and not views of their memory: a distributed wrapper may give them other memory
        averaged, weights = [mean for mean, _ in self.averaged], [tensor.detach() for _, tensor in self.averaged]
        torch._foreach_lerp_(averaged, weights, 1 - decay)
        for copied, tensor in self.copied:
            copied.copy_(tensor)


def trainable(model: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)
