"""Ways to say which parts of a picture made the decision: one function each, (model, images, target) -> relevance of cells.

    rollout, rollout-max, rollout-min     attention alone, see `rollout`; the same picture for every class
    gradient-rollout                      attention weighted by how much the class depends on it
    gradients                             |x ⊙ ∂y/∂x|, summed over the pixels of a cell
    integrated-gradients                  |(x − x₀) ⊙ mean over the way from x₀ of ∂y/∂x| (Sundararajan et al., 2017), x₀ = 0
    grad-cam                              max(Σ_c F_c mean(∂y/∂F_c), 0) on the last feature map (Selvaraju et al., 2017)
    random                                noise: what an explanation must beat

`faithfulness` measures which of them to believe. Images are normalized, so that x = 0 is the average color.

Shapes: B images, h × w cells (the patches of a transformer, 8 × 8 for a network without patches).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from softbias.attention import NoAttentionMapError
from softbias.errors import SoftbiasError
from softbias.models.inspect import attention_sites, choose_layers, unwrap
from softbias.probes.rollout import attention_gradient_rollout, attention_rollout
from softbias.probes.seeing import evaluating, see

Method = Callable[[nn.Module, Tensor, Tensor], Tensor]
CELLS = (8, 8)  # of a network without patches
STEPS = 16  # on the way of integrated gradients


def cells(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """How many cells a picture has, (height, width)."""
    try:
        grid = attention_sites(model, (images.shape[-2], images.shape[-1]))[0].grid
    except NoAttentionMapError:
        return min(CELLS[0], images.shape[-2]), min(CELLS[1], images.shape[-1])
    return grid.height, grid.width


def pooled(pixels: Tensor, shape: tuple[int, int]) -> Tensor:
    """The strength of every cell as a share of the picture's.  # (B, 3, H, W) -> (B, h, w)"""
    found = adaptive_avg_pool2d(pixels.abs().sum(1, keepdim=True), shape)[:, 0]
    return found / found.sum((1, 2), keepdim=True).clamp_min(torch.finfo(found.dtype).tiny)


def gradients(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    seen = see(model, images, target)
    assert seen.pixels is not None
    return pooled(images * seen.pixels, cells(model, images))


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
        raise SoftbiasError(f"{type(bare).__name__} does not say where its features end, so there is no grad-cam of it")
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
    found = found.detach()
    return found / found.sum((1, 2), keepdim=True).clamp_min(torch.finfo(found.dtype).tiny)


def noise(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    """The same noise for the same batch, whatever the global seed is."""
    height, width = cells(model, images)
    found = torch.rand(len(images), height, width, generator=torch.Generator().manual_seed(0)).to(images)
    return found / found.sum((1, 2), keepdim=True)


METHODS: Mapping[str, Method] = {
    "rollout": lambda model, images, _: attention_rollout(model, images, missing="identity"),
    "rollout-max": lambda model, images, _: attention_rollout(model, images, missing="identity", heads="max", discard=0.9),
    "rollout-min": lambda model, images, _: attention_rollout(model, images, missing="identity", heads="min"),
    "gradient-rollout": lambda model, images, target: attention_gradient_rollout(model, images, target, missing="identity"),
    "gradients": gradients,
    "integrated-gradients": integrated_gradients,
    "grad-cam": grad_cam,
    "random": noise,
}
PASSES = {"gradient-rollout": 2, "gradients": 2, "integrated-gradients": 2 * STEPS, "grad-cam": 2, "random": 0}  # others: 1
ATTENTION = ("rollout", "rollout-max", "rollout-min", "gradient-rollout")


def methods_for(model: nn.Module, images: Tensor) -> list[str]:
    """The methods that can say something about this model: no rollout without maps, no grad-cam without a map of features.

    Grad-CAM is for convolutional networks: the patches of a transformer with a class token have no gradient at the end.
    """
    try:
        choose_layers(model, attention_sites(model, (images.shape[-2], images.shape[-1])), None)
    except NoAttentionMapError:
        convolutional = hasattr(unwrap(model), "forward_head")
        return [name for name in METHODS if name not in ATTENTION and (convolutional or name != "grad-cam")]
    return [name for name in METHODS if name != "grad-cam"]
