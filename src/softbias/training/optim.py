"""Optimizers, with weight decay where it belongs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from softbias.errors import SoftbiasError
from softbias.training.recipe import Recipe


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, object]]:
    """Matrices and masks are decayed; vectors (biases, norms, gates) and what the model names (embeddings) are not."""
    spare = set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (kept if parameter.ndim <= 1 or name in spare else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def build_optimizer(model: nn.Module, recipe: Recipe, *, recorded: bool = False) -> torch.optim.Optimizer:
    """The recipe's optimizer; for a recorded step the learning rate is a tensor, which a replay reads."""
    groups = [group for group in parameter_groups(model, recipe.weight_decay) if group["params"]]
    if not groups:
        raise SoftbiasError("the model has no parameter to train")
    first = next(model.parameters())
    fused = first.device.type in ("cuda", "cpu")
    lr = torch.tensor(recipe.peak_lr(), device=first.device) if recorded else recipe.peak_lr()
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=recipe.betas[0], nesterov=recipe.betas[0] > 0, fused=fused)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=lr, betas=recipe.betas, fused=fused, capturable=recorded)


class ModelEma:
    """An exponential moving average of a model's weights (EMA).

        average ← d · average + (1 − d) · weights,     d = min(decay, (1 + step) / (10 + step))

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
        # parameters themselves and not views of their memory: a distributed wrapper may give them other memory
        mine, theirs = [own for own, _ in self.averaged], [tensor.detach() for _, tensor in self.averaged]
        torch._foreach_lerp_(mine, theirs, 1 - decay)
        for own, tensor in self.copied:
            own.copy_(tensor)


def trainable(model: nn.Module) -> Iterable[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)
