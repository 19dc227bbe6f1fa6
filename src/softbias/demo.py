"""The demo: three nano models compared on the embedded set in a few minutes on two cores of a CPU.

12 runs of 600 steps in batches of 64, with one core each and two at a time: 460,000 images in all. The three models have nearly
the same size and cost: 210,000 to 240,000 parameters and 3.6 to 3.8 million multiply-accumulates per image. ResNet has the stem
for large images; with the small one it would cost ten times as much. With two seeds nothing is claimed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.study.arms import Arm
from softbias.study.spec import StudySpec
from softbias.training.recipe import find_recipe

if TYPE_CHECKING:
    from softbias.models.inspect import Inspection

STEPS, JOBS = 600, 2


def demo_study() -> StudySpec:
    return StudySpec(
        name="demo",
        title="Three small models on small data",
        question="Does a soft bias for nearby patches help where pictures are few?",
        data=("fashion",),
        arms=(
            Arm("deit_nano", "deit_nano", {"patch_size": 8}),
            Arm("convit_nano", "convit_nano", {"patch_size": 8}),
            Arm("resnet_nano", "resnet_nano", {"stem": "large"}),
        ),
        fractions=(0.1, 1.0),
        seeds=(0, 1),
        recipe=find_recipe("quick").with_overrides({"steps": STEPS, "lr": 4e-3, "schedule": "one-cycle", "crop": "none"}),
        notes=(
            f"Every run takes {STEPS} steps of 64 pictures, so that 10 % of the pictures are seen ten times as often. This is "
            "a demonstration of a few minutes, and no model is trained to its end.",
        ),
    )


def draw_attention(out: Path) -> Path:
    """Train a nano model for a minute or two, and draw where its heads look before and after: docs/attention.png."""
    import torch

    from softbias.models.inspect import inspect
    from softbias.runs.fit import fit
    from softbias.runs.run import START

    options = {"patch_size": 4}
    run = fit(
        "fashion", "convit_nano", "quick", model_options=options, epochs=5, start="scratch", out=out / "attention", resume=True
    ).run
    data = run.data()
    picture = data.images[data.splits["test"][0]]
    image = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None] / 255
    before, after = (
        inspect(classifier.model.eval(), classifier.normalized(image))
        for classifier in (run.classifier(START), run.classifier())
    )
    return draw(picture, before, after, out)


def draw(picture: Any, before: Inspection, after: Inspection, out: Path) -> Path:
    """One row per layer: where the middle patch looks, every head, untrained beside trained."""
    from matplotlib.patches import Rectangle

    from softbias.pages.static import new_figure, save, show_map
    from softbias.pages.theme import QUERY

    layers, heads = sorted(before.maps), before.maps[0].shape[1]
    figure = new_figure(1.3 * (2 * heads + 1), 1.45 * len(layers) + 0.4)
    axes = figure.subplots(len(layers), 2 * heads + 1, squeeze=False)
    for layer, row in zip(layers, axes, strict=True):
        grid = before.grid[layer]
        middle = grid.height // 2 * grid.width + grid.width // 2
        side = picture.shape[0] / grid.height
        show_map(row[0], picture)
        corner = (grid.width // 2 * side - 0.5, grid.height // 2 * side - 0.5)
        row[0].add_patch(Rectangle(corner, side, side, fill=False, color=QUERY, linewidth=1.5))
        row[0].set_ylabel(f"layer {layer}", fontsize=9)
        for column, (name, seen, head) in enumerate(
            ((name, seen, head) for name, seen in (("untrained", before), ("trained", after)) for head in range(heads)), start=1
        ):
            attention = grid.patches_only(seen.maps[layer][0, head].detach())[middle]
            show_map(row[column], attention.reshape(grid.height, grid.width), cmap="magma", vmin=0)
            if layer == layers[0]:
                row[column].set_title(f"{name}\nhead {head}", fontsize=8)
    axes[0][0].set_title("query patch", fontsize=8)
    figure.suptitle("Where one patch looks, before and after training", fontsize=11)
    return save(figure, out, "attention")
