"""The demo: three nano models compared on the embedded set in a few minutes on two cores of a CPU.

12 runs of 600 steps in batches of 64, one core each and two at a time: 460,000 pictures in all, of which a core trains about
1,200 a second. The three have as good as the same size and cost: 210,000 to 240,000 parameters, 3.6 to 3.8 million
multiply-accumulates a picture (ResNet with the stem of large pictures; with the small one it would take ten times as long).
With two seeds nothing is claimed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softbias.study.arms import Arm
from softbias.study.spec import StudySpec
from softbias.training.recipe import find_recipe

STEPS, JOBS = 600, 2


def demo_study(steps: int = STEPS) -> StudySpec:
    return StudySpec(
        name="demo",
        title="Three small models on small data",
        question="Does a soft bias for what is near help where pictures are few?",
        data=("fashion",),
        arms=(
            Arm("deit_nano", "deit_nano", {"patch_size": 8}),
            Arm("convit_nano", "convit_nano", {"patch_size": 8}),
            Arm("resnet_nano", "resnet_nano", {"stem": "large"}),
        ),
        fractions=(0.1, 1.0),
        seeds=(0, 1),
        recipe=find_recipe("quick").with_overrides({"steps": steps, "lr": 4e-3, "schedule": "one-cycle", "crop": "none"}),
        notes=(
            f"Every run takes {steps} steps of 64 pictures, so that 10 % of the pictures are seen ten times as often: "
            "a demonstration of a few minutes, not a training to its end.",
        ),
    )


def run_picture(out: Path, epochs: float = 5.0) -> Path:
    """docs/attention.png: where the heads of a nano model look before and after training, which takes a minute or two."""
    import torch

    from softbias.data import fashion
    from softbias.data.augment.apply import normalize
    from softbias.models import create_model
    from softbias.models.inspect import inspect
    from softbias.runs.fit import fit

    data = fashion.load()
    options: dict[str, Any] = {"patch_size": 4}
    run = fit("fashion", "convit_nano", "quick", model_options=options, epochs=epochs, out=out / "attention", resume=True)
    torch.manual_seed(0)
    untrained = create_model("convit_nano", num_classes=len(data.class_names), img_size=32, **options)
    picture = data.images[data.splits["test"][0]]
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None]
    images = normalize(pixels, run.summary["preprocessing"]["mean"], run.summary["preprocessing"]["std"])
    draw(picture, inspect(untrained.eval(), images), inspect(run.model.cpu(), images), out / "attention.png")
    return out / "attention.png"


def draw(picture: Any, before: Any, after: Any, path: Path) -> None:
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
