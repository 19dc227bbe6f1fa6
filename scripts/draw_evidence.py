"""Draw docs/evidence.png: what soft biases gain over plain attention, from the packed studies in results/evidence.

    python scripts/draw_evidence.py [FILE]

Differences are paired by seed, with 95 % t intervals over seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from scipy import stats

from softbias.pages.theme import DPI, LIGHT, MARKERS
from softbias.study.archive import unpacked
from softbias.study.report.results import gather

ROOT = Path(__file__).parents[1]
TRAINING_IMAGES = 50_000  # of CIFAR-10
LOOK = {500: ("c1", "triangle-up"), 5_000: ("c0", "circle"), 50_000: ("c2", "square")}  # number of pictures: color, marker


class Group(NamedTuple):
    """Rows of one study. arms: name in the study -> name in the figure."""

    title: str
    study: str
    plain: str
    arms: dict[str, str]


GROUPS = (
    Group(
        "Tiny models, 25 epochs",
        "sample-efficiency",
        "DeiT",
        {"ConViT": "ConViT", "IBiT": "IBiT", "windows": "windows", "soft_tiny": "soft_tiny"},
    ),
    Group(
        "Nano models, 600 steps",
        "papers-nano",
        "DeiT",
        {"ConViT": "ConViT", "IBiT": "IBiT", "windows": "windows", "DeiT, distance loss": "distance loss (ARViT)"},
    ),
    Group("Nano models, 3,000 steps", "papers-nano-long", "DeiT", {"ConViT": "ConViT", "IBiT": "IBiT"}),
    Group(
        "Two blocks, 500 steps: position",
        "positional-nano",
        "full attention",
        {"position inside the softmax": "inside the softmax", "position after the softmax": "after it (ConViT)"},
    ),
)


def gains(group: Group) -> pd.DataFrame:
    """A row per arm and number of pictures: the mean difference to plain attention in points, and its interval."""
    with unpacked(ROOT / "results" / "evidence" / f"{group.study}.zip") as folder:
        runs = gather([folder]).runs
    rows = []
    for amount, part in runs.groupby("amount"):
        values = part.pivot(index="seed", columns="arm", values="value") * 100
        for arm, label in group.arms.items():
            pairs = (values[arm] - values[group.plain]).dropna()
            low, high = stats.t.interval(0.95, len(pairs) - 1, pairs.mean(), stats.sem(pairs))
            rows.append((label, round(amount * TRAINING_IMAGES), pairs.mean(), low, high))
    return pd.DataFrame(rows, columns=["label", "images", "mean", "low", "high"])


def draw(path: Path) -> None:
    figure = Figure(
        (8.4, 0.5 + 0.3 * sum(len(group.arms) + 1.4 for group in GROUPS)), dpi=DPI, facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    y, ticks = 0.0, []
    for group in GROUPS:
        axes.text(0, y, group.title, transform=axes.get_yaxis_transform(), weight="bold", va="center", color=LIGHT["ink"])
        rows = gains(group)
        for label in group.arms.values():
            y += 1
            ticks.append((y, label))
            part = rows[rows["label"] == label]
            for offset, row in zip(spread(len(part)), part.itertuples(), strict=True):
                color, marker = LOOK[row.images]
                axes.hlines(y + offset, row.low, row.high, color=LIGHT[color], linewidth=4, alpha=0.45)
                shape, size, _ = MARKERS[marker]
                axes.plot(row.mean, y + offset, shape, markersize=0.8 * size, color=LIGHT[color], markeredgecolor="white")
        y += 1.4
    axes.axvline(0, color=LIGHT["soft"], linewidth=1.5, zorder=0)
    axes.set_ylim(y - 0.4, -0.8)
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.set_xlabel("points of test accuracy over plain attention; CIFAR-10, equal steps, 95 % intervals over seeds")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f}".replace("-", "−") if value else "0"))
    axes.grid(axis="x", color=LIGHT["line"])
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=LIGHT["soft"])
    axes.spines[:].set_visible(False)
    for amount, (color, marker) in LOOK.items():
        shape, size, _ = MARKERS[marker]
        axes.plot([], [], shape, markersize=size, color=LIGHT[color], label=f"{amount:,}")
    axes.legend(title="training pictures", loc="lower right", frameon=True, edgecolor=LIGHT["line"])
    figure.savefig(path, metadata={"Software": None})


def spread(count: int) -> list[float]:
    """Offsets of the marks of a row, so that they do not cover each other."""
    return [0.26 * (k - (count - 1) / 2) for k in range(count)]


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "evidence.png")
