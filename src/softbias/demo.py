"""The demo: what soft biases are worth where pictures are few, on the embedded set, in minutes on two cores of a CPU.

Three nano models at 500 and 5,000 pictures, with five seeds: 30 runs of 500 steps in batches of 64, with one core each and two
at a time. `soft_nano` has a residual stem and gated attention. The second arm lacks both: it is a plain ViT of the same width
and depth. `resnet_nano` has the stem for large images; a step of it costs a little less than one of `soft_nano`. The report
adds a logistic regression on raw pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.study.arms import Arm
from softbias.study.spec import StudySpec
from softbias.training.recipe import find_recipe

if TYPE_CHECKING:
    from softbias.models.inspect import Inspection

STEPS, SEEDS, JOBS = 500, range(100, 105), 2  # seeds that nobody had looked at when the arms were settled


def demo_study() -> StudySpec:
    return StudySpec(
        name="demo",
        title="Soft biases on small data",
        question="Do soft biases help a small vision transformer where pictures are few? How far is a convolutional network?",
        data=("fashion",),
        arms=(
            Arm("soft_nano", "soft_nano"),
            Arm("plain ViT", "soft_nano", {"stem": "patch", "biased_blocks": 0}),
            Arm("resnet_nano", "resnet_nano", {"stem": "large"}),
        ),
        fractions=(0.1, 1.0),
        seeds=tuple(SEEDS),
        recipe=find_recipe("quick").with_overrides({"steps": STEPS}),
        mixing="views",
        notes=(
            f"Every run takes {STEPS} steps of 64 pictures, so that 10 % of the pictures are seen ten times as often; these "
            "are mixed with each other (mixup, CutMix). All models have one recipe, which was chosen for soft_nano. This is a "
            "demonstration of a few minutes, and no model is trained to its end.",
            "The models, the recipe and the seeds were settled on parts of the training pictures, before these runs.",
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
