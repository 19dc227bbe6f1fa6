"""The demo: a nano model learns the embedded set in about a minute on a CPU, and a picture shows where its heads look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from softbias.data import fashion
from softbias.inspection import Inspection, inspect
from softbias.models import create_model
from softbias.models.storage import save

STEPS, BATCH, RATE = 400, 64, 2e-3


def run(out: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    torch.manual_seed(0)
    data = fashion.load()
    mean, std = 0.2, 0.3  # of Fashion-MNIST, nearly
    images = (torch.from_numpy(np.ascontiguousarray(data.images)).permute(0, 3, 1, 2) / 255 - mean) / std
    labels = torch.from_numpy(data.labels)
    train, test = (torch.from_numpy(data.splits[split]) for split in ("train", "test"))
    model: Any = create_model("convit_nano", num_classes=len(data.class_names), img_size=32, patch_size=4)
    console.print(f"convit_nano ({model.spec.describe_layers()}) on {len(train):,} pictures of clothes, {STEPS} steps")
    untrained = inspect(model, images[test[:1]])
    start = time.perf_counter()
    fit(model, images[train], labels[train], console)
    accuracy, count = evaluate(model, images[test], labels[test]), len(test)
    seconds = time.perf_counter() - start
    margin = 1.96 * (accuracy * (1 - accuracy) / count) ** 0.5
    console.print(f"[bold]{accuracy:.1%} ± {margin:.1%}[/] of {count:,} test pictures right, after {seconds:.0f} s (one seed)")
    out.mkdir(parents=True, exist_ok=True)
    save(model, out / "model", class_names=data.class_names, preprocessing={"mean": (mean,) * 3, "std": (std,) * 3})
    trained = inspect(model, images[test[:1]])
    draw(data.images[test[0]], untrained, trained, out / "attention.png")
    console.print(f"where its heads look, before and after: {out / 'attention.png'}")
    console.print(f"the model, for softbias.load: {out / 'model'}")


def fit(model: torch.nn.Module, images: Tensor, labels: Tensor, console: Any) -> None:
    """AdamW with a linear warm-up and decay; no augmentation."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    ramp = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    order = torch.cat([torch.randperm(len(labels)) for _ in range(-(-STEPS * BATCH // len(labels)))])
    for step in range(STEPS):
        batch = order[step * BATCH : (step + 1) * BATCH]
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ramp.step()
        if step % 50 == 49:
            console.print(f"  step {step + 1:>3}   loss {loss.item():.3f}")


@torch.no_grad()
def evaluate(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = [(model(part).argmax(-1) == truth).sum() for part, truth in zip(images.split(250), labels.split(250), strict=True)]
    return int(torch.stack(right).sum()) / len(labels)


def draw(picture: np.ndarray, before: Inspection, after: Inspection, path: Path) -> None:
    """One row per layer: where the middle patch looks, every head, untrained beside trained."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    layers, heads = sorted(before.maps), before.maps[0].shape[1]
    figure, axes = plt.subplots(len(layers), 2 * heads + 1, figsize=(1.3 * (2 * heads + 1), 1.45 * len(layers)))
    for layer, row in zip(layers, axes, strict=True):
        grid = before.grid[layer]
        place = grid.height // 2 * grid.width + grid.width // 2
        row[0].imshow(picture)
        side = picture.shape[0] / grid.height
        box = (grid.width // 2 * side - 0.5, grid.height // 2 * side - 0.5)
        row[0].add_patch(plt.Rectangle(box, side, side, fill=False, color="red", linewidth=1.5))
        row[0].set_ylabel(f"layer {layer}", fontsize=9)
        for column, (seen, head) in enumerate([(s, h) for s in (before, after) for h in range(heads)], start=1):
            attention = seen.maps[layer][0, head].detach()
            looks = grid.patches_only(attention)[place].reshape(grid.height, grid.width)
            row[column].imshow(looks, cmap="magma", vmin=0)
            if layer == layers[0]:
                row[column].set_title(f"{'untrained' if seen is before else 'trained'}\nhead {head}", fontsize=8)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0][0].set_title("query patch", fontsize=8)
    figure.suptitle("Where one patch looks, before and after training", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
