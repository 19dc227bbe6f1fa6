"""The contract of a regularizer, as a function that third parties can run.

check_regularizer("mine")               # a name of the registry
check_regularizer("mine", beta=500)     # with options
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softbias.grid import Grid
from softbias.models import create_model
from softbias.regularizers import RegularizerConfig, find_regularizer
from softbias.regularizers.attach import Regularized, attached

GRIDS = (Grid(4, 4), Grid(2, 6), Grid(4, 4, prefix=1))
MODELS = ("arvit_nano", "deit_nano", "convit_nano", "ibit_nano", "window_nano")
IMAGES, HEADS, SIDE = 3, 2, 4  # images, heads of a map, pixels of a patch


def check_regularizer(name: str, **options: Any) -> None:
    """Assert that a registered regularizer

    - gives one finite value per image on any grid, also for uniform attention and for constant images
    - has a finite gradient with respect to the map, and none with respect to the images
    - has no gradient where its value is zero, if it has the floor of the reduction "log"
    - agrees, values and gradients, with its own definition where a layer's fast form is used, in float64
    - changes neither logits nor gradients of a model where its weight is zero
    """
    for grid in GRIDS:
        check_values(name, grid, **options)
    for model in MODELS:
        check_attached(name, model, **options)


def check_values(name: str, grid: Grid, **options: Any) -> None:
    regularizer = find_regularizer(name)(grid, **options).double()
    generator = torch.Generator().manual_seed(0)
    tokens, size = len(grid), (grid.height * SIDE, grid.width * SIDE)
    noise = torch.randn(IMAGES, 3, *size, dtype=torch.double, generator=generator)
    strength = torch.rand(IMAGES, 3, grid.height, grid.width, dtype=torch.double, generator=generator)
    textured = noise * torch.nn.functional.interpolate(strength, size=size)
    scores = 3 * torch.randn(IMAGES, HEADS, tokens, tokens, dtype=torch.double, generator=generator)
    uniform = torch.zeros_like(scores)
    for what, images in (("textured", textured), ("constant", torch.ones_like(textured))):
        for shape, given in (("random", scores), ("uniform", uniform)):
            about = f"{name} on a {grid.height} × {grid.width} grid, {shape} attention, {what} images"
            attention, images = given.softmax(-1).requires_grad_(), images.clone().requires_grad_()
            values = regularizer(attention, images)
            assert values.shape == (IMAGES,), f"{about}: values of shape {tuple(values.shape)}, not one per image"
            assert values.isfinite().all(), f"{about}: the values are {values.tolist()}"
            gradient, to_images = torch.autograd.grad(values.sum(), (attention, images), allow_unused=True)
            assert gradient is not None and gradient.isfinite().all(), f"{about}: the gradient is not finite"
            assert to_images is None or not to_images.any(), f"{about}: a gradient goes into the images"
            silent = values.detach() == 0
            if regularizer.reduction == "log":
                assert not gradient[silent].any(), f"{about}: a value of zero has a gradient"


def check_attached(name: str, model_name: str, **options: Any) -> None:
    torch.manual_seed(0)
    model = create_model(model_name, num_classes=4, img_size=32, patch_size=8).double()
    images = torch.randn(IMAGES, 3, 32, 32, dtype=torch.double)
    plain, *_ = outcome(Regularized(model, {name: RegularizerConfig(name, (1,), 0.0, options)}), images)
    fast = outcome(Regularized(model, {name: RegularizerConfig(name, (1,), 1.0, options)}), images)
    definition = outcome(Regularized(model, {name: RegularizerConfig(name, (1,), 1.0, options)}, fused=False), images)
    about = f"{name} on {model_name}"
    assert definition[1].isfinite().all(), f"{about}: the values are {definition[1].tolist()}; learned masks make maps negative"
    for what, one, other in zip(("logits", "values", "gradients"), fast, definition, strict=True):
        most = float((one - other).abs().max())
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9), f"{about}: {what} of the fast form differ by up to {most:.2g}"
    torch.testing.assert_close(plain, model(images), rtol=0, atol=0, msg=f"{about}: a weight of zero changes the logits")


def outcome(run: Regularized, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, values, and the gradient of the values with respect to all parameters."""
    with attached(run.double()):
        logits, values = run(images)
    gradient = torch.zeros(())
    if values.requires_grad:
        parts = torch.autograd.grad(values.sum(), list(run.module.parameters()), materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in parts])
    return logits.detach(), values.detach(), gradient
