"""The effective receptive field by gradient (Luo et al., 2016): the pixels that the middle feature depends on.

    g = ‖∂(r · F[p]) / ∂x‖ over the channels of a pixel,    r of random signs, p the middle of the feature map

A plain sum over channels will not do: after a layer norm it is constant. Random signs make E[g²] the squared norm of the
Jacobian's column.

    radius       Σ g ‖x − p‖ / Σ g                      mean distance of the gradient, in pixels
    half_radius  the radius that holds half of Σ g
    extent       the farthest pixel (in rows or columns) with more than 1 % of the strongest pixel's mean gradient
    field        the mean gradient itself, relative to its maximum, averaged down to at most 32 × 32, for the figures

Layer None is the last feature map; where a model has blocks, each block's output is measured as well.

Shapes: B images, C channels, h × w cells of the feature map.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from softbias.bounds import Count, Seed
from softbias.classifier import Classifier
from softbias.grid import Grid
from softbias.models.inspect import unwrap
from softbias.models.vit import VisionTransformer
from softbias.pages.static import heading, panels, save, show_map
from softbias.probes.drawing import as_matrix, latest
from softbias.probes.features import feature_map
from softbias.probes.rows import Rows, labeled, mean_of, without_interval
from softbias.probes.sampling import Source, sample

LARGEST = 32  # side of a drawn field
OF_THE_MEAN = "one field, the mean over all images"


def receptive_field(
    model: nn.Module | Classifier, data: Source, *, n: Count = 100, seed: Seed = 0, split: str = "test", layers: bool = True
) -> Rows:
    """Rows per layer. One pass forward and one back per image and layer."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    rng = torch.Generator().manual_seed(seed)
    sums: dict[int | None, Tensor] = {}
    radii: dict[tuple[int | None, str], list[Tensor]] = defaultdict(list)
    for batch, _ in images.batches(classifier.device, batch=50):
        batch.requires_grad_()
        with torch.enable_grad(), block_outputs(classifier, layers) as outputs:
            last: dict[int | None, Tensor] = {None: feature_map(classifier, batch)}
            maps = {**outputs, **last}
            for number, (layer, features) in enumerate(maps.items()):
                gradient = middle_gradient(features, batch, rng, keep=number < len(maps) - 1)  # (B, H, W)
                distances = distances_from_middle(features, batch)
                total = gradient.sum((-2, -1)).clamp_min(1e-30)
                radii[layer, "radius"].append(((gradient * distances).sum((-2, -1)) / total).cpu())
                radii[layer, "half_radius"].append(half_radius(gradient, distances).cpu())
                part = (gradient / total[:, None, None]).sum(0).cpu()
                sums[layer] = sums.get(layer, torch.zeros_like(part)) + part
        middle = {layer: middle_of(features, batch) for layer, features in maps.items()}
    rows: Rows = []
    for (layer, measure), parts in radii.items():
        rows.append({"measure": measure, "unit": "pixels", "layer": layer, "head": None, **mean_of(torch.cat(parts))})
    for layer, field in sums.items():
        rows += field_rows(field / field.max().clamp_min(1e-30), layer, middle[layer])
    return labeled(classifier, "receptive-field", rows, data=images.name)


def middle_gradient(features: Tensor, images: Tensor, rng: torch.Generator, *, keep: bool) -> Tensor:
    """# (B, C, h, w), (B, 3, H, W) -> (B, H, W)"""
    signs = (2 * torch.randint(2, (features.shape[1],), generator=rng) - 1).to(features)
    chosen = features[:, :, features.shape[2] // 2, features.shape[3] // 2] @ signs
    (gradient,) = torch.autograd.grad(chosen.sum(), images, retain_graph=keep)
    strength: Tensor = gradient.norm(dim=1)
    return strength


def middle_of(features: Tensor, images: Tensor) -> tuple[float, float]:
    """The pixel (row, column) at which the middle cell of a feature map is centered."""
    steps = images.shape[-2] / features.shape[-2], images.shape[-1] / features.shape[-1]
    return (features.shape[-2] // 2 + 0.5) * steps[0] - 0.5, (features.shape[-1] // 2 + 0.5) * steps[1] - 0.5


def distances_from_middle(features: Tensor, images: Tensor) -> Tensor:
    """# (H, W)"""
    row, column = middle_of(features, images)
    rows = torch.arange(images.shape[-2], device=images.device)[:, None] - row
    return (rows.square() + (torch.arange(images.shape[-1], device=images.device)[None] - column).square()).sqrt()


def half_radius(gradient: Tensor, distances: Tensor) -> Tensor:
    """The distance at which half of the gradient is reached.  # (B, H, W), (H, W) -> (B,)"""
    order = distances.flatten().argsort()
    reached = gradient.flatten(1)[:, order].cumsum(1)
    first = (reached >= 0.5 * reached[:, -1:]).int().argmax(1)
    return distances.flatten()[order][first]


def field_rows(field: Tensor, layer: int | None, middle: tuple[float, float]) -> Rows:
    rows, columns = torch.nonzero(field > 0.01, as_tuple=True)
    extent = max(float((rows - middle[0]).abs().max()), float((columns - middle[1]).abs().max())) if len(rows) else 0.0
    about = {"layer": layer, "head": None}
    found: Rows = [{"measure": "extent", "unit": "pixels", **about, **without_interval(extent, OF_THE_MEAN)}]
    small = field
    if max(field.shape) > LARGEST:
        small = adaptive_avg_pool2d(field[None], (min(LARGEST, field.shape[0]), min(LARGEST, field.shape[1])))[0]
    for row, line in enumerate(small.tolist()):
        for column, value in enumerate(line):
            cell = {"measure": "field", "unit": "relative", **about, "row": row, "column": column}
            found.append({**cell, **without_interval(value, OF_THE_MEAN)})
    return found


@contextmanager
def block_outputs(classifier: Classifier, wanted: bool) -> Iterator[dict[int | None, Tensor]]:
    """The tokens after every block as maps, while the model runs; empty for a model without blocks of tokens."""
    model: Any = unwrap(classifier.model)
    found: dict[int | None, Tensor] = {}
    blocks = getattr(model, "blocks", None) if wanted and hasattr(model, "patch_embed") else None
    with ExitStack() as hooks:
        for index, block in enumerate(blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else ()):
            hooks.callback(block.register_forward_hook(output_hook(model, index, found)).remove)
        yield found


def output_hook(model: Any, index: int, found: dict[int | None, Tensor]) -> Callable[..., None]:
    def keep(module: nn.Module, args: Any, tokens: Any) -> None:
        if isinstance(tokens, Tensor) and tokens.ndim == 3:
            if isinstance(model, VisionTransformer):
                grid = model.grid(index)
            else:
                height, width = model.patch_embed.grid_size
                grid = Grid(height, width, tokens.shape[1] - height * width)
            found[index] = grid.as_image(tokens)

    return keep


def draw(rows: Rows, folder: Path) -> list[Path]:
    """The fields, a line per model, a column per layer; the last column is the feature map that is pooled."""
    models = latest(rows)
    columns = max(len({row["layer"] for row in of_model}) for of_model in models.values())
    figure, grid = panels(len(models) * columns, side=1.6, height=1.75, columns=columns)
    for axes in grid:
        axes.set_axis_off()
    for line, (name, of_model) in enumerate(models.items()):
        layers = sorted({row["layer"] for row in of_model}, key=lambda layer: (layer is None, layer or 0))
        for index, layer in enumerate(layers):
            own = [row for row in of_model if row["layer"] == layer]
            field = as_matrix({(row["row"], row["column"]): row["value"] for row in own if row["measure"] == "field"})
            axes = grid[line * columns + columns - len(layers) + index]
            axes.set_axis_on()
            show_map(axes, np.sqrt(field), cmap="magma", vmin=0, vmax=1)
            radius = next(row["value"] for row in own if row["measure"] == "radius")
            axes.set_title(f"{'features' if layer is None else f'layer {layer}'}: {radius:.1f} px", fontsize=7)
            if index == 0:
                axes.set_ylabel(name, fontsize=7)
    heading(figure, "effective receptive field of the middle cell (square root of the gradient; mean radius)")
    return [save(figure, folder, "receptive_field")]
