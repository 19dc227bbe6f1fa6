"""Ways to find the parts of an image that made the decision: functions (model, images, target) -> relevance of cells.

    rollout, rollout-max, rollout-min     attention alone, see `rollout`; the same map for every class
    rollout-signed                        the same by IBiT's own rule: the maximum over heads, with signs, not normalized
    gradient-rollout                      attention weighted by how much the class depends on it
    gradients                             |x ⊙ ∂y/∂x|, summed over the pixels of a cell
    integrated-gradients                  |(x − x₀) ⊙ mean over the way from x₀ of ∂y/∂x| (Sundararajan et al., 2017), x₀ = 0
    grad-cam                              max(Σ_c F_c mean(∂y/∂F_c), 0) on the last feature map (Selvaraju et al., 2017)
    random                                noise, which an explanation must beat

`faithfulness` measures which of them to believe. Images are normalized, so that x = 0 is the average color. The gradient of
a class score y on an attention map is

    ∂y/∂A = ∂y/∂O · Vᵀ,     O = A V head by head, before the output projection

so it needs no map in the graph, and every model keeps its fused path.

Shapes: B images, H heads, N tokens, C channels, D = C / H, h × w cells (the patches of a transformer, 8 × 8 for a network
without patches).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from softbias.attention import NoAttentionMapError
from softbias.errors import NotMeasurableError, unknown_name
from softbias.models.inspect import (
    Inspection,
    Site,
    attention_sites,
    choose_layers,
    describe,
    inspect,
    unwrap,
)
from softbias.probes.features import cells
from softbias.probes.rollout import gradient_rollout, identity_like, output_rows, relevance, rollout

Method = Callable[[nn.Module, Tensor, Tensor], Tensor]
STEPS = 16  # on the way of integrated gradients
OF_IBIT: Mapping[str, Any] = {"heads": "max", "signed": "keep", "normalize": False}  # the rule of the paper's figure

# Maps with their gradients


@dataclass(kw_only=True)
class GradientInspection(Inspection):
    """An inspection with the gradients of a class score y.

    target           (B,) the classes
    gradients        layer -> ∂y/∂A  (B, H, N, N)
    image_gradient   ∂y/∂x  (B, 3, height, width)
    """

    target: Tensor
    gradients: dict[int, Tensor]
    image_gradient: Tensor


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside: no dropout and no stochastic depth. Every module gets its own mode back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def inspect_with_gradients(model: nn.Module, images: Tensor, target: Tensor | None = None) -> GradientInspection:
    """Logits, maps of every layer that has one, and gradients for the target class (default: the predicted one).

    A model without attention maps has empty `maps` and `gradients`.
    """
    model = unwrap(model)
    try:
        sites = attention_sites(model, (images.shape[-2], images.shape[-1]))
        layers = choose_layers(model, sites, None)
    except NoAttentionMapError:
        sites, layers = [], []
    maps: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    with evaluating(model), ExitStack() as hooks, torch.enable_grad():
        for layer in layers:
            site = sites[layer]
            reader = value_hook(site, layer, maps, values)
            hooks.callback(site.module.register_forward_hook(reader, with_kwargs=True).remove)
            hooks.callback(site.attention.output_layer.register_forward_pre_hook(output_hook(layer, outputs)).remove)
        images = images.detach().requires_grad_()
        logits = model(images)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        target = logits.argmax(-1) if target is None else target.to(logits.device)
        score = logits.gather(1, target[:, None]).sum()
        found = torch.autograd.grad(score, [images, *(outputs[layer] for layer in layers)])
    gradients = {
        layer: sites[layer].attention.split_heads(slope) @ values[layer].mT
        for layer, slope in zip(layers, found[1:], strict=True)
    }
    grids = {layer: sites[layer].grid for layer in layers}
    return GradientInspection(
        logits=logits.detach(), maps=maps, grid=grids, target=target, gradients=gradients, image_gradient=found[0]
    )


def value_hook(site: Site, layer: int, maps: dict[int, Tensor], values: dict[int, Tensor]) -> Callable[..., None]:
    """Keeps A and V of the tokens that a layer is called with."""

    def read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tokens = site.attention.tokens_of(args, kwargs)
        with torch.no_grad():
            maps[layer], values[layer] = site.attention.attention_map(tokens), site.attention.values(tokens)

    return read


def output_hook(layer: int, outputs: dict[int, Tensor]) -> Callable[..., None]:
    """Keeps O = A V, the input of the output projection."""

    def read(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        outputs[layer] = args[0]

    return read


# Rollout of a model


def layers_with_maps(model: nn.Module, found: Inspection, images: Tensor, missing: str) -> list[int]:
    """The layers to roll out. Layers without a map are refused, or skipped as if each patch kept its own content."""
    if missing not in ("refuse", "identity"):
        raise unknown_name("way to treat layers without a map", missing, ("refuse", "identity"))
    if not found.maps:
        raise NoAttentionMapError(f"{describe(unwrap(model))} has no attention maps, so there is nothing to roll out")
    depth = len(attention_sites(model, (images.shape[-2], images.shape[-1])))
    without = sorted(set(range(depth)) - set(found.maps))
    if without and missing == "refuse":
        raise NoAttentionMapError(
            f"layers {without} of {describe(unwrap(model))} mix patches without attention, so a rollout would leave out "
            'their effect; missing="identity" rolls out the others'
        )
    return sorted(found.maps)


def attention_rollout(model: nn.Module, images: Tensor, *, missing: str = "refuse", **options: Any) -> Tensor:
    """Relevance of every patch by `rollout`, for any model that `inspect` reads; shares.  # (B, height, width)"""
    with evaluating(unwrap(model)), torch.no_grad():
        found = inspect(unwrap(model), images)
    layers = layers_with_maps(model, found, images, missing)
    grid = found.grid[layers[-1]]
    return relevance(rollout([found.maps[layer] for layer in layers], **options), grid, output_rows(model, grid))


def attention_gradient_rollout(
    model: nn.Module, images: Tensor, target: Tensor | None = None, *, missing: str = "refuse"
) -> Tensor:
    """Relevance of every patch for a class (default: the predicted one) by `gradient_rollout`.  # (B, height, width)"""
    found = inspect_with_gradients(model, images, target)
    return relevance_by_gradient(model, found, layers_with_maps(model, found, images, missing))


def relevance_by_gradient(model: nn.Module, found: GradientInspection, layers: Sequence[int]) -> Tensor:
    grid = found.grid[layers[-1]]
    rolled = gradient_rollout([found.maps[layer] for layer in layers], [found.gradients[layer] for layer in layers])
    rows = output_rows(model, grid)
    if rows.stop is None:  # the head reads the patches: their content before any attention explains no decision
        rolled = rolled - identity_like(rolled)
    return relevance(rolled, grid, rows)


# Other methods


def pooled(values: Tensor, shape: tuple[int, int]) -> Tensor:
    """The strength of every cell as a share of the whole image.  # (B, 3, H, W) -> (B, h, w)"""
    return as_shares(adaptive_avg_pool2d(values.abs().sum(1, keepdim=True), shape)[:, 0])


def as_shares(found: Tensor) -> Tensor:
    return found / found.sum((1, 2), keepdim=True).clamp_min(torch.finfo(found.dtype).tiny)


def gradients(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    return pooled(images * inspect_with_gradients(model, images, target).image_gradient, cells(model, images))


def integrated_gradients(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    """captum's, where it is installed; otherwise the same mean, taken at the middles of `STEPS` steps."""
    with evaluating(unwrap(model)):
        try:
            from captum.attr import IntegratedGradients
        except ImportError:
            found = integrated(model, images, target)
        else:
            found = IntegratedGradients(model).attribute(images, target=target, n_steps=STEPS, method="riemann_middle")
    return pooled(found.to(images.dtype), cells(model, images))


def integrated(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros_like(images)
    for step in range(STEPS):
        scaled = (images * ((step + 0.5) / STEPS)).detach().requires_grad_()
        score = model(scaled).gather(1, target[:, None]).sum()
        total += torch.autograd.grad(score, scaled)[0]
    return images * total / STEPS


def grad_cam(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    bare: Any = unwrap(model)
    if not hasattr(bare, "forward_features") or not hasattr(bare, "forward_head"):
        raise NotMeasurableError(f"{type(bare).__name__} has no forward_features and forward_head, which grad-cam needs")
    shape = cells(model, images)
    with evaluating(bare), torch.enable_grad():
        features = bare.forward_features(images.detach().requires_grad_())
        score = bare.forward_head(features).gather(1, target[:, None]).sum()
        (slope,) = torch.autograd.grad(score, features)
        if features.ndim == 3:  # tokens, of which the patches come last
            patches = slice(features.shape[1] - shape[0] * shape[1], None)
            found = (features[:, patches] * slope[:, patches].mean(1, keepdim=True)).sum(-1).clamp_min(0).unflatten(1, shape)
        else:
            found = (features * slope.mean((2, 3), keepdim=True)).sum(1).clamp_min(0)
            found = interpolate(found[:, None], shape, mode="bilinear", align_corners=False)[:, 0]
    return as_shares(found.detach())


def noise(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    """The same noise for the same batch, independent of the global seed."""
    height, width = cells(model, images)
    return as_shares(torch.rand(len(images), height, width, generator=torch.Generator().manual_seed(0)).to(images))


METHODS: Mapping[str, Method] = {
    "rollout": lambda model, images, _: attention_rollout(model, images, missing="identity"),
    "rollout-max": lambda model, images, _: attention_rollout(model, images, missing="identity", heads="max", discard=0.9),
    "rollout-min": lambda model, images, _: attention_rollout(model, images, missing="identity", heads="min"),
    "rollout-signed": lambda model, images, _: attention_rollout(model, images, missing="identity", **OF_IBIT),
    "gradient-rollout": lambda model, images, target: attention_gradient_rollout(model, images, target, missing="identity"),
    "gradients": gradients,
    "integrated-gradients": integrated_gradients,
    "grad-cam": grad_cam,
    "random": noise,
}
PASSES = {"gradient-rollout": 2, "gradients": 2, "integrated-gradients": 2 * STEPS, "grad-cam": 2, "random": 0}  # others: 1
BY_ATTENTION = ("rollout", "rollout-max", "rollout-min", "rollout-signed", "gradient-rollout")


def methods_for(model: nn.Module, images: Tensor) -> list[str]:
    """The methods that suit this model: rollout needs maps, grad-cam a map of features.

    Grad-CAM is for convolutional networks: the patches of a transformer with a class token have no gradient at the end.
    """
    try:
        choose_layers(model, attention_sites(model, (images.shape[-2], images.shape[-1])), None)
    except NoAttentionMapError:
        convolutional = hasattr(unwrap(model), "forward_head")
        return [name for name in METHODS if name not in BY_ATTENTION and (convolutional or name != "grad-cam")]
    return [name for name in METHODS if name != "grad-cam"]
