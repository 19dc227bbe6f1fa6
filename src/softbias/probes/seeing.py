"""One look at a picture: logits, maps, and how the score of a class depends on the maps and on the pixels.

    ∂y/∂A = ∂y/∂O · Vᵀ,     O = A V head by head, before the output projection

so the gradient on a map needs no map in the graph, and every model keeps its fused path.

Shapes: B images, H heads, N tokens, C channels, D = C / H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softbias.attention import Attention, NoAttentionMapError
from softbias.models.foreign import split_heads
from softbias.models.inspect import Inspection, Site, attention_sites, choose_layers, inspect, map_reader, unwrap


@dataclass
class Seen(Inspection):
    """An inspection with ∂y/∂A of the target class beside every map."""

    gradients: dict[int, Tensor] | None = None
    target: Tensor | None = None
    pixels: Tensor | None = None  # ∂y/∂x  (B, 3, height, width)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """No dropout and no stochastic depth inside."""
    training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(training)


def see(model: nn.Module, images: Tensor, target: Tensor | None = None, *, gradients: bool = True) -> Seen:
    """Logits, maps of every layer that has one, and their gradients for the target class (default: the predicted one).

    A model without any map has empty `maps`, and `pixels` all the same.
    """
    bare = unwrap(model)
    with evaluating(bare):
        if not gradients:
            with torch.no_grad():
                found = inspect(bare, images)
            return Seen(found.logits, found.maps, found.grid, target=found.logits.argmax(-1) if target is None else target)
        return see_with_gradients(bare, images, target)


def see_with_gradients(model: nn.Module, images: Tensor, target: Tensor | None) -> Seen:
    try:
        sites = attention_sites(model, (images.shape[-2], images.shape[-1]))
        layers = choose_layers(model, sites, None)
    except NoAttentionMapError:
        sites, layers = [], []
    maps: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    with ExitStack() as hooks, torch.enable_grad():
        for layer in layers:
            module: Any = sites[layer].module
            for hook in (
                module.register_forward_hook(value_reader(sites[layer], layer, maps, values), with_kwargs=True),
                output_hook(module, layer, outputs),
            ):
                hooks.callback(hook.remove)
        images = images.detach().requires_grad_()
        logits = model(images)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        target = logits.argmax(-1) if target is None else target.to(logits.device)
        score = logits.gather(1, target[:, None]).sum()
        found = torch.autograd.grad(score, [images, *(outputs[layer] for layer in layers)])
    slopes = {
        layer: split_heads(slope, maps[layer].shape[1]) @ values[layer].mT
        for layer, slope in zip(layers, found[1:], strict=True)
    }
    return Seen(logits.detach(), maps, {layer: sites[layer].grid for layer in layers}, slopes, target, found[0])


def value_reader(site: Site, layer: int, maps: dict[int, Tensor], values: dict[int, Tensor]) -> Callable[..., None]:
    read_map = map_reader(site, layer, maps)

    def read(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        with torch.no_grad():
            read_map(module, args, kwargs, output)
            values[layer] = read_values(module, args[0] if args else next(iter(kwargs.values())))

    return read


def read_values(module: Any, x: Tensor) -> Tensor:
    """V of every readable attention: ours, timm's (ViT, DeiT, ConViT) and Hugging Face's.  # (B, N, C) -> (B, H, N, D)"""
    if isinstance(module, Attention):
        return module.values(x)
    if hasattr(module, "qkv"):
        return split_heads(module.qkv(x).chunk(3, dim=-1)[2], module.num_heads)
    if hasattr(module, "v"):  # timm's GPSA
        return split_heads(module.v(x), module.num_heads)
    return split_heads((module.v_proj if hasattr(module, "v_proj") else module.value)(x), module.num_attention_heads)


def output_hook(module: Any, layer: int, outputs: dict[int, Tensor]) -> Any:
    """Keeps O = A V, the input of the output projection."""
    project = getattr(module, "proj", None) or getattr(module, "o_proj", None)
    if project is not None:

        def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            outputs[layer] = args[0]

        return project.register_forward_pre_hook(before)

    def after(_: nn.Module, args: Any, output: Any) -> None:  # older releases of transformers project in a module of its own
        outputs[layer] = output[0] if isinstance(output, tuple) else output

    return module.register_forward_hook(after)
