"""Gradient biasing, the conjecture of IBiT's §6.2: a mask that favors near patches also favors their gradient.

    Y = S ⊙ M,   ∂J/∂S = M ⊙ ∂J/∂Y

The gradient on the scores is the gradient on the masked map, scaled by the mask. We measure both by distance, and a model
without masks (full attention, M = 1) beside it, where the two are the same. J is the cross-entropy of the true class.

    on_map      mean |∂J/∂Y| at a distance, relative to its mean over all pairs
    on_scores   mean |∂J/∂S|, likewise
    mask        mean |M|, likewise
    near_share  Σ |∂J/∂S| over pairs at most `near` patches at / Σ over all; `uniform_near_share` is the share of such pairs

Under norm="softmax" the mask is a term of the scores and not a factor, so their gradient is not scaled by it: the probe
refuses such a layer. Prefix tokens are left out, and so is a layer whose patches receive no gradient at all: the last one of a
model that pools by its class token. Under the Frobenius norm its patches do receive one, through the norm alone, which is
proportional to Y itself.

Shapes: B images, H heads, P patches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softbias.attention import Attention
from softbias.bounds import Count, Scale, Seed
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.grid import Grid
from softbias.models.inspect import attention_sites
from softbias.pages.static import heading, hue, panels, save
from softbias.probes.drawing import latest
from softbias.probes.rows import Row, Rows, labeled, mean_of
from softbias.probes.sampling import Source, sample

TINY = 1e-20


def gradient_biasing(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 200,
    seed: Seed = 0,
    split: str = "test",
    near: Scale = 1.5,
) -> Rows:
    """Rows per layer and distance, averaged over heads. One pass forward and one back per image."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    images.needed_labels("gradient-biasing")
    sites = attention_sites(classifier.model, images.size)
    own = {layer: site.attention for layer, site in enumerate(sites) if site.attention is site.module}
    chosen = {layer: attention for layer, attention in own.items() if attention.score_mask() is not None}
    soft = [layer for layer, attention in own.items() if "mask" in attention.bias_measures and layer not in chosen]
    if not chosen and not soft:
        raise NotMeasurableError(f"{classifier.name} has neither learned masks nor full attention of ours to compare them with")
    if soft:
        raise NotMeasurableError(
            f'layers {soft} of {classifier.name} have norm="softmax", where the mask does not scale the gradient'
        )
    found: dict[tuple[int, str, float], list[Tensor]] = defaultdict(list)
    for batch, labels in images.batches(classifier.device, batch=50):
        assert labels is not None
        with torch.enable_grad(), recording(chosen) as recorded:
            loss = cross_entropy(classifier.logits(batch), labels, reduction="sum")
            inputs = [tensor for scores, masked, _ in recorded.values() for tensor in (scores, masked)]
            slopes = iter(torch.autograd.grad(loss, inputs))
        for layer, (_, _, mask) in recorded.items():
            on_scores, on_map, grid = next(slopes), next(slopes), chosen[layer].grid
            if not bool(grid.patches_only(on_scores).any()):
                continue  # the last layer of a model that pools by its class token: its patches' rows reach no logit
            for key, values in by_distance(on_scores, on_map, mask, grid, near).items():
                found[layer, *key].append(values.cpu())
    if not found:
        raise NotMeasurableError(
            f"no patch of {classifier.name} receives a gradient in a layer that has masks or full attention"
        )
    rows = [row_of(layer, measure, distance, torch.cat(parts)) for (layer, measure, distance), parts in found.items()]
    return labeled(classifier, "gradient-biasing", rows, near=near, data=images.name)


def row_of(layer: int, measure: str, distance: float, values: Tensor) -> Row:
    unit = "share" if measure.endswith("share") else "relative to the mean"
    at = None if measure.endswith("share") else distance
    return {"measure": measure, "unit": unit, "layer": layer, "head": None, "distance": at, **mean_of(values)}


@contextmanager
def recording(layers: dict[int, Attention]) -> Iterator[dict[int, tuple[Tensor, Tensor, Tensor]]]:
    """Run the layers by their definition and keep scores S, masked map Y and mask M."""
    found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def explicit(layer: int, module: Attention) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            q, k, v = module.project(x)
            scores, mask = module.scores(q, k), module.score_mask()
            assert mask is not None
            masked = scores * mask
            found[layer] = scores, masked, mask.detach()
            return module.merge(module.apply_scores(masked, v))

        return forward

    try:
        for layer, module in layers.items():
            module.forward = explicit(layer, module)  # type: ignore[assignment, method-assign]
        yield found
    finally:
        for module in layers.values():
            del module.forward  # that of the class takes effect again


def by_distance(scores: Tensor, masked: Tensor, mask: Tensor, grid: Grid, near: float) -> dict[tuple[str, float], Tensor]:
    """Relative strength of both gradients and of the mask at every distance on the grid, averaged over heads.

    # (B, H, N, N) twice, (H, N, N) -> (B,)
    """
    distances = grid.distances().to(mask)
    kinds = {"on_scores": scores, "on_map": masked, "mask": mask.expand_as(scores)}
    found: dict[tuple[str, float], Tensor] = {}
    for name, values in kinds.items():
        strength = grid.patches_only(values.abs().float())  # (B, H, P, P)
        relative = strength / strength.mean((-2, -1), keepdim=True).clamp_min(TINY)
        for distance in distances.unique():
            found[name, round(float(distance), 4)] = relative[..., distances == distance].mean((1, 2))
        if name == "on_scores":
            found["near_share", 0.0] = relative[..., distances <= near].sum((1, 2)) / relative.sum((1, 2, 3))
    share = (distances <= near).float().mean()
    found["uniform_near_share", 0.0] = share.expand(len(scores)).cpu()
    return found


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Gradient on the scores, on the map, and the mask, over distance: a line each, a panel per layer."""
    made = []
    for name, of_model in latest(rows).items():
        layers = sorted({row["layer"] for row in of_model})
        figure, grid = panels(len(layers), side=2.8, height=2.5)
        kinds = {"on_scores": ("∂J/∂S = M ⊙ ∂J/∂Y", "-"), "on_map": ("∂J/∂Y", "--"), "mask": ("mask |M|", ":")}
        for axes, layer in zip(grid, layers, strict=True):
            for number, (measure, (label, style)) in enumerate(kinds.items()):
                line = sorted(
                    (row["distance"], row["value"]) for row in of_model if row["layer"] == layer and row["measure"] == measure
                )
                axes.plot(*zip(*line, strict=True), style, color=hue(number), label=label)
            axes.axhline(1, color=hue(None), lw=0.7)
            axes.set_ylim(bottom=0)
            axes.set_title(f"layer {layer}", fontsize=9)
            axes.set_xlabel("distance (patches)", fontsize=8)
        grid[0].set_ylabel("relative to the mean", fontsize=8)
        grid[-1].legend(fontsize=7, frameon=False)
        heading(figure, f"{name}: gradient by distance")
        made.append(save(figure, folder, "gradient_biasing", name))
    return made
