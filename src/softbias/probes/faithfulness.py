"""Which explanation to believe: two games, and how far rollouts agree.

`faithfulness` removes the cells that an explanation calls important and asks the model again (Petsiuk et al., 2018):

    deletion     cells get the average color, the most relevant first;       AUC of p(class): the lower the better
    insertion    they come back into a blurred image in the same order;      AUC of p(class): the higher the better

An explanation that is no better than a random order tells nothing about the decision, however good it looks. So every method
has its difference to random beside it, image by image, with an interval. p is that of the class the model predicts.

`rollout` compares ways to roll out attention: how many patches count, and the agreement with the gradient-weighted form.

Shapes: B images, h × w cells, S steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.bounds import Count, Seed
from softbias.classifier import Classifier
from softbias.errors import SoftbiasError, unknown_name
from softbias.pages.static import heading, hue, panels, save
from softbias.probes.attribution import (
    METHODS,
    PASSES,
    inspect_with_gradients,
    layers_with_maps,
    methods_for,
    relevance_by_gradient,
)
from softbias.probes.drawing import by_model, latest
from softbias.probes.rollout import (
    HEAD_REDUCTIONS,
    effective_patches,
    output_rows,
    rank_correlation,
    relevance,
    rollout,
)
from softbias.probes.rows import Rows, labeled, mean_of, model_label
from softbias.probes.sampling import Source, sample

STEPS = 16
BATCH = 50
GAMES = ("deletion", "insertion")


def faithfulness(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 200,
    seed: Seed = 0,
    split: str = "test",
    methods: Sequence[str] | None = None,
    steps: Count = STEPS,
) -> Rows:
    """Rows per method: `deletion` and `insertion` (areas), their differences to random, and both curves point by point.

    methods   of `attribution.METHODS`; by default all that suit the model
    steps     the number of parts in which cells are removed and come back

    2 (steps + 1) forward passes per image and method, and those of the method itself (`attribution.PASSES`).
    """
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    first = classifier.normalized(images.images[:1].to(classifier.device).float() / 255)
    chosen = list(methods) if methods is not None else methods_for(classifier.model, first)
    for name in chosen:
        if name not in METHODS:
            raise unknown_name("way to explain", name, METHODS)
    if steps < 1:
        raise SoftbiasError(f"steps must be at least 1, but steps={steps}")
    chosen += ["random"] if "random" not in chosen else []
    passes = {name: 2 * (steps + 1) + PASSES.get(name, 1) for name in chosen}
    curves: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for batch, _ in images.batches(classifier.device, BATCH):
        x = classifier.normalized(batch)
        with torch.no_grad():
            target = classifier.model(x).argmax(-1)
        for name in chosen:
            found = METHODS[name](classifier.model, x, target).detach()
            for game in GAMES:
                curves[name, game].append(curve(classifier.model, x, target, found, game, steps).cpu())
    return labeled(classifier, "faithfulness", rows_of(curves, chosen, passes, steps), data=images.name)


@torch.no_grad()
def curve(model: nn.Module, x: Tensor, target: Tensor, found: Tensor, game: str, steps: int = STEPS) -> Tensor:
    """p(target) after 0, 1/S, …, S/S of the cells, by relevance.  # (B, 3, H, W), (B,), (B, h, w) -> (B, S + 1)

    deletion    x with the first cells at zero, which is the average color of a normalized image
    insertion   a blurred x with the first cells sharp
    """
    if game not in GAMES:
        raise unknown_name("game", game, GAMES)
    base = torch.zeros_like(x) if game == "deletion" else blurred(x)
    count = found[0].numel()
    order = found.flatten(1).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(count, device=x.device).expand_as(order))
    points = []
    for step in range(steps + 1):
        first = (rank < round(step / steps * count)).to(x.dtype).view(-1, 1, *found.shape[1:])
        taken = interpolate(first, x.shape[-2:], mode="nearest")
        mixed = taken * base + (1 - taken) * x if game == "deletion" else taken * x + (1 - taken) * base
        points.append(model(mixed).float().softmax(-1).gather(1, target[:, None])[:, 0])
    return torch.stack(points, 1)


def blurred(x: Tensor) -> Tensor:
    """A blur that hides most classes and adds no content: σ is an eighth of the image."""
    from torchvision.transforms.functional import gaussian_blur  # which takes seconds to import

    sigma = max(x.shape[-2:]) / 8
    kernel = [min(2 * int(2 * sigma) + 1, 2 * side - 1) for side in (x.shape[-1], x.shape[-2])]
    soft: Tensor = gaussian_blur(x, kernel, [sigma, sigma])
    return soft


def rows_of(curves: dict[tuple[str, str], list[Tensor]], methods: Sequence[str], passes: dict[str, int], steps: int) -> Rows:
    joined = {key: torch.cat(parts) for key, parts in curves.items()}  # (n, S + 1)
    areas = {key: torch.trapezoid(points, dx=1 / steps, dim=1) for key, points in joined.items()}
    rows: Rows = []
    for name in methods:
        for game in GAMES:
            about = {"method": name, "unit": "area under p(class)", "passes": passes[name]}
            rows.append({"measure": game, **about, **mean_of(areas[name, game])})
            if name != "random":
                rows.append({"measure": f"{game} − random", **about, **mean_of(areas[name, game] - areas["random", game])})
            for step in range(steps + 1):
                point = {"measure": f"{game} curve", "method": name, "unit": "p(class)", "share": step / steps}
                rows.append(point | mean_of(joined[name, game][:, step]))
    return rows


def draw_faithfulness(rows: Rows, folder: Path) -> list[Path]:
    """Both families of curves, and the areas with intervals; one figure per model."""
    made = []
    for model, own in by_model(rows).items():
        methods = list(dict.fromkeys(row["method"] for row in own))
        hues = {name: (hue(None) if name == "random" else hue(number)) for number, name in enumerate(methods)}
        figure, axes = panels(3, side=4.15, height=3.4)
        for axis, game in zip(axes, GAMES, strict=False):
            for name in methods:
                points = [row for row in own if row["measure"] == f"{game} curve" and row["method"] == name]
                shares = [100 * row["share"] for row in points]
                style = "--" if name == "random" else "-"
                axis.plot(shares, [row["value"] for row in points], label=name, color=hues[name], linestyle=style)
                low, high = ([row[edge] for row in points] for edge in ("low", "high"))
                axis.fill_between(shares, low, high, alpha=0.12, color=hues[name])
            better = "lower is better" if game == "deletion" else "higher is better"
            axis.set(title=f"{game}: {better}", xlabel="% of the cells", ylim=(0, 1))
        axes[0].set_ylabel("probability of the predicted class")
        axes[0].legend(fontsize=7)
        for index, name in enumerate(methods):
            for game, marker in zip(GAMES, "ov", strict=True):
                row = next(row for row in own if row["measure"] == game and row["method"] == name)
                spread = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
                axes[2].errorbar(row["value"], len(methods) - index, xerr=spread, fmt=marker, color=hues[name])
        axes[2].set_yticks([len(methods) - index for index in range(len(methods))], methods, fontsize=8)
        axes[2].set(title="areas: ● deletion, ▼ insertion", xlabel="area, 95 % interval", xlim=(0, 1))
        heading(figure, f"{model_label(own[0])}, {own[0]['n']} images: which explanation to believe")
        made.append(save(figure, folder, "faithfulness", model))
    return made


# Rollouts beside each other

UNITS = {"effective_patches": "patches", "agreement": "rank correlation with gradient-rollout"}


def rollout_agreement(
    model: nn.Module | Classifier, data: Source, *, n: Count = 1000, seed: Seed = 0, split: str = "test"
) -> Rows:
    """Rows per way to roll out: effective patches, and agreement with the gradient-weighted one. 1 pass and 1 back."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for batch, _ in images.batches(classifier.device):
        x = classifier.normalized(batch)
        inspection = inspect_with_gradients(classifier.model, x)
        layers = layers_with_maps(classifier.model, inspection, x, "identity")
        grid, maps = inspection.grid[layers[-1]], [inspection.maps[layer] for layer in layers]
        rows = output_rows(classifier.model, grid)
        weighted = relevance_by_gradient(classifier.model, inspection, layers).flatten(1)
        shares = {
            f"rollout, {heads} of heads": relevance(rollout(maps, heads=heads), grid, rows).flatten(1)
            for heads in HEAD_REDUCTIONS
        }
        for name, share in {**shares, "gradient-rollout": weighted}.items():
            found[name, "effective_patches"].append(effective_patches(share).cpu())
            if name != "gradient-rollout":
                found[name, "agreement"].append(rank_correlation(share, weighted).cpu())
    made = [
        {"measure": measure, "unit": UNITS[measure], "method": name, **mean_of(torch.cat(parts))}
        for (name, measure), parts in found.items()
    ]
    return labeled(classifier, "rollout", made, data=images.name)


def draw_rollout(rows: Rows, folder: Path) -> list[Path]:
    """How many patches count, and how far plain rollout agrees with the gradient-weighted one, model beside model."""
    figure, axes = panels(2, side=4.2, height=2.8)
    titles = {"effective_patches": "patches that count", "agreement": "agreement (rank)"}
    for one, (measure, title) in zip(axes, titles.items(), strict=True):
        methods = list(dict.fromkeys(row["method"] for row in rows if row["measure"] == measure))
        for number, (name, of_model) in enumerate(latest(rows).items()):
            found = [row for row in of_model if row["measure"] == measure]
            heights = [len(methods) - methods.index(row["method"]) - 0.12 * number for row in found]
            spread = [[row["value"] - row["low"] for row in found], [row["high"] - row["value"] for row in found]]
            values = [row["value"] for row in found]
            one.errorbar(values, heights, xerr=spread, fmt="o", ms=4, capsize=2, color=hue(number), label=name)
        one.set_yticks([len(methods) - index for index in range(len(methods))], methods, fontsize=8)
        one.set_title(title, fontsize=9)
    axes[0].legend(fontsize=7, frameon=False)
    return [save(figure, folder, "rollout")]
