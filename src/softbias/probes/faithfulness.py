"""Which explanation to believe: take away what it calls important, and see whether the decision goes (Petsiuk et al., 2018).

    deletion     cells go to the average color, the most relevant first;    AUC of p(class): the lower the better
    insertion    they come back into a blurred picture in the same order;   AUC of p(class): the higher the better

An explanation that is no better than random order says nothing about the decision, however good it looks; so every method has
its difference to random beside it, picture by picture, with an interval. p is that of the class the model predicts.

Passes per picture: 2 (steps + 1) forward passes per method, and what the method itself takes (`attribution.PASSES`). The time
is estimated from the first batch and said before the rest begins.

Shapes: B images, h × w cells, S steps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.classifier import Classifier
from softbias.errors import SoftbiasError, unknown_name
from softbias.probes.attribution import METHODS, PASSES, methods_for
from softbias.probes.pictures import Source, sample
from softbias.probes.rows import Rows, mean_of, stamp

STEPS = 16
BATCH = 50
GAMES = ("deletion", "insertion")


def faithfulness(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 200,
    seed: int = 0,
    split: str = "test",
    methods: Sequence[str] | None = None,
    steps: int = STEPS,
    say: Callable[[str], None] = lambda text: None,
) -> Rows:
    """Rows per method: `deletion` and `insertion` (areas), their differences to random, and both curves point by point.

    methods   of `attribution.METHODS`; by default all that suit the model
    steps     in how many parts the cells go and come
    say       is told passes and estimated time before the work begins
    """
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    first = classifier.normalized(pictures.images[:1].to(classifier.device).float() / 255)
    chosen = list(methods) if methods is not None else methods_for(classifier.model, first)
    for name in chosen:
        if name not in METHODS:
            raise unknown_name("way to explain", name, METHODS)
    if steps < 1:
        raise SoftbiasError(f"steps must be at least 1, but steps={steps}")
    chosen += ["random"] if "random" not in chosen else []
    passes = {name: 2 * (steps + 1) + PASSES.get(name, 1) for name in chosen}
    curves: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    start, done = time.perf_counter(), 0
    total = sum(passes.values())
    seconds = seconds_per_pass(classifier, first) * total * len(pictures)
    say(f"faithfulness: {total} passes per picture, about {seconds:.0f} s for {len(pictures):,} pictures")
    for images, _ in pictures.batches(classifier.device, BATCH):
        x = classifier.normalized(images)
        with torch.no_grad():
            target = classifier.model(x).argmax(-1)
        for name in chosen:
            order = METHODS[name](classifier.model, x, target).detach()
            for game in GAMES:
                curves[name, game].append(curve(classifier.model, x, target, order, game, steps).cpu())
        done += len(images)
        if done == len(images) < len(pictures):
            left = (time.perf_counter() - start) / done * (len(pictures) - done)
            say(f"faithfulness: measured on the first {done}, {left:.0f} s to go")
    return stamp(classifier, "faithfulness", rows_of(curves, chosen, passes, steps), data=pictures.name)


@torch.no_grad()
def seconds_per_pass(classifier: Classifier, picture: Tensor) -> float:
    """Of one picture in a batch; a gradient counts as a second pass."""
    batch = picture.expand(BATCH, -1, -1, -1)
    classifier.model(batch[:2])
    start = time.perf_counter()
    classifier.model(batch)
    return (time.perf_counter() - start) / BATCH


@torch.no_grad()
def curve(model: nn.Module, x: Tensor, target: Tensor, relevance: Tensor, game: str, steps: int = STEPS) -> Tensor:
    """p(target) after 0, 1/S, …, S/S of the cells.  # (B, 3, H, W), (B,), (B, h, w) -> (B, S + 1)

    deletion    x with the first cells at zero, which is the average color of a normalized picture
    insertion   a blurred x with the first cells sharp
    """
    if game not in GAMES:
        raise unknown_name("game", game, GAMES)
    base = torch.zeros_like(x) if game == "deletion" else blurred(x)
    count = relevance[0].numel()
    order = relevance.flatten(1).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(count, device=x.device).expand_as(order))
    points = []
    for step in range(steps + 1):
        first = (rank < round(step / steps * count)).to(x.dtype).view(-1, 1, *relevance.shape[1:])
        taken = interpolate(first, x.shape[-2:], mode="nearest")
        mixed = taken * base + (1 - taken) * x if game == "deletion" else taken * x + (1 - taken) * base
        points.append(model(mixed).float().softmax(-1).gather(1, target[:, None])[:, 0])
    return torch.stack(points, 1)


def blurred(x: Tensor) -> Tensor:
    """So soft that a class is hard to see, and with nothing new in it: σ is an eighth of the picture."""
    from torchvision.transforms.functional import gaussian_blur  # which takes seconds to import

    sigma = max(x.shape[-2:]) / 8
    kernel = [min(2 * int(2 * sigma) + 1, 2 * side - 1) for side in (x.shape[-1], x.shape[-2])]
    return gaussian_blur(x, kernel, [sigma, sigma])


def rows_of(
    curves: dict[tuple[str, str], list[Tensor]], methods: Sequence[str], passes: dict[str, int], steps: int
) -> list[dict[str, Any]]:
    joined = {key: torch.cat(parts) for key, parts in curves.items()}  # (n, S + 1)
    areas = {key: torch.trapezoid(points, dx=1 / steps, dim=1) for key, points in joined.items()}
    rows: list[dict[str, Any]] = []
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


def draw(rows: Rows, folder: Path | str) -> list[Path]:
    """Both families of curves, and the areas with intervals; one picture per model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    made = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        methods = list(dict.fromkeys(row["method"] for row in own))
        hues = {name: ("#6e7781" if name == "random" else f"C{number}") for number, name in enumerate(methods)}
        figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.8), layout="constrained", width_ratios=(1, 1, 0.9))
        for axis, game in zip(axes, GAMES, strict=False):
            for name in methods:
                points = [row for row in own if row["measure"] == f"{game} curve" and row["method"] == name]
                shares = [100 * row["share"] for row in points]
                style = {"color": hues[name], "linestyle": "--" if name == "random" else "-"}
                axis.plot(shares, [row["value"] for row in points], label=name, **style)
                axis.fill_between(
                    shares, [row["low"] for row in points], [row["high"] for row in points], alpha=0.12, color=hues[name]
                )
            better = "lower is better" if game == "deletion" else "higher is better"
            axis.set(title=f"{game}: {better}", xlabel="% of the cells", ylim=(0, 1))
        axes[0].set_ylabel("probability of the predicted class")
        axes[0].legend(fontsize=7)
        for place, name in enumerate(methods):
            for game, marker in zip(GAMES, "ov", strict=True):
                row = next(row for row in own if row["measure"] == game and row["method"] == name)
                bars = {"xerr": [[row["value"] - row["low"]], [row["high"] - row["value"]]], "fmt": marker, "color": hues[name]}
                axes[2].errorbar(row["value"], len(methods) - place, label=game if not place else None, **bars)
        axes[2].set_yticks([len(methods) - place for place in range(len(methods))], methods, fontsize=8)
        axes[2].set(title="areas: ● deletion, ▼ insertion", xlabel="area, 95 % interval", xlim=(0, 1))
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
        weights = own[0].get("weights", "")
        figure.suptitle(f"{model} ({weights}), {own[0]['n']} pictures: which explanation to believe", fontsize=11)
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in model)
        path = Path(folder) / f"faithfulness_{safe}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)
        made.append(path)
    return made
