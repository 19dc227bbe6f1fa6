"""Draw docs/evidence.png: what soft biases gain over plain attention, from the packed studies in results/evidence.

    python scripts/draw_evidence.py [FILE]

Differences are paired by seed, with 95 % t intervals over seeds. The file also holds the numbers as text: a test
compares them with the studies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from softbias.pages.theme import DPI, LIGHT, MARKERS
from softbias.stats import t_interval
from softbias.study.archive import unpacked
from softbias.study.report.results import gather

ROOT = Path(__file__).parents[1]
TRAINING_IMAGES = 50_000  # of CIFAR-10 and of CIFAR-100
LOOK = {500: ("c1", "triangle-up"), 5_000: ("c0", "circle"), 50_000: ("c2", "square")}  # number of pictures: color, marker


class Group(NamedTuple):
    """Rows of one study. arms: name in the study -> name in the figure."""

    title: str
    study: str
    plain: str
    arms: dict[str, str]
    data: str = "cifar10"


GROUPS = (
    Group(
        "Tiny models, 25 epochs",
        "sample-efficiency",
        "DeiT",
        {
            "ConViT": "ConViT",
            "IBiT": "IBiT",
            "IBiT, softmax": "IBiT, with a softmax",
            "windows": "windows",
            "soft_tiny": "soft_tiny",
        },
    ),
    Group("Tiny models, 100 epochs", "sample-efficiency-long", "DeiT", {"ConViT": "ConViT", "IBiT": "IBiT"}),
    Group(
        "Tiny models, 25 epochs, CIFAR-100",
        "sample-efficiency-cifar100",
        "DeiT",
        {"ConViT": "ConViT", "IBiT": "IBiT", "soft_tiny": "soft_tiny"},
        "cifar100",
    ),
    Group(
        "Nano models, 600 steps",
        "papers-nano",
        "DeiT",
        {"ConViT": "ConViT", "IBiT": "IBiT", "windows": "windows", "DeiT, distance loss": "distance loss (ARViT)"},
    ),
    Group("Nano models, 3,000 steps", "papers-nano-long-again", "DeiT", {"ConViT": "ConViT", "IBiT": "IBiT"}),
    Group(
        "Nano models without a class token, 600 steps",
        "mixtures-nano",
        "full",
        {
            "gated": "gated (ConViT)",
            "masked": "masked (IBiT's masks)",
            "gated, then masked": "gated, then masked",
            "windows, then full": "windows, then full",
            "depth-wise, then full": "depth-wise, then full",
        },
    ),
    Group(
        "Nano ARViT: a loss while it learns rotations",
        "arvit-nano-again",
        "base",
        {"distance, layer 1": "distance loss", "style, layer 3": "similarity loss"},
    ),
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
    for amount, part in runs[runs["data"] == group.data].groupby("amount"):
        values = part.pivot(index="seed", columns="arm", values="value") * 100
        for arm, label in group.arms.items():
            pairs = (values[arm] - values[group.plain]).dropna()
            rows.append((label, round(amount * TRAINING_IMAGES), pairs.mean(), *t_interval(pairs)))
    return pd.DataFrame(rows, columns=["label", "images", "mean", "low", "high"])


def tables() -> dict[str, pd.DataFrame]:
    return {group.title: gains(group) for group in GROUPS}


def as_text(tables: dict[str, pd.DataFrame]) -> str:
    return json.dumps([[title, *row] for title, table in tables.items() for row in table.round(2).values.tolist()])


def draw(path: Path) -> None:
    found = tables()
    height = 0.5 + 0.3 * sum(len(group.arms) + 1.4 for group in GROUPS)
    figure = Figure((8.4, height), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    y, ticks = 0.0, {}
    for title, table in found.items():
        axes.text(
            0, y, title, transform=axes.get_yaxis_transform(), weight="bold", va="center", color=LIGHT["ink"],
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        for label, rows in table.groupby("label", sort=False):
            y += 1
            ticks[y] = label
            draw_row(axes, y, rows)
        y += 1.4
    axes.axvline(0, color=LIGHT["soft"], linewidth=1.5, zorder=0)
    axes.set_ylim(y - 0.4, -0.8)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_xlabel(
        "points of test accuracy over plain attention, or over no loss\n"
        "CIFAR-10 where no other set is named, equal steps, 95 % intervals over seeds"
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f}".replace("-", "−") if value else "0"))
    axes.grid(axis="x", color=LIGHT["line"])
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=LIGHT["soft"])
    axes.spines[:].set_visible(False)
    for amount, (color, marker) in LOOK.items():
        shape, size, _ = MARKERS[marker]
        axes.plot([], [], shape, markersize=size, color=LIGHT[color], label=f"{amount:,}")
    axes.legend(title="training pictures", loc="lower right", frameon=True, edgecolor=LIGHT["line"])
    figure.savefig(path, metadata={"Software": None, "Description": as_text(found)})


def draw_row(axes: Axes, y: float, rows: pd.DataFrame) -> None:
    """A mark per number of pictures, one under the other, so that none covers another."""
    for k, row in enumerate(rows.itertuples()):
        at = y + 0.26 * (k - (len(rows) - 1) / 2)
        color, marker = LOOK[row.images]
        shape, size, _ = MARKERS[marker]
        axes.hlines(at, row.low, row.high, color=LIGHT[color], linewidth=4, alpha=0.45)
        axes.plot(row.mean, at, shape, markersize=0.8 * size, color=LIGHT[color], markeredgecolor="white")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "evidence.png")
