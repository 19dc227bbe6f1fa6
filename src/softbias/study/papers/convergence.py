"""How pre-training converges, with a regularizer and without: rotation accuracy and loss by epoch, from the runs' metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas

from softbias.runs.run import Run
from softbias.study.frame import find_store
from softbias.study.papers.measuring import FOLDER, write_table
from softbias.study.papers.named import Measured
from softbias.study.plan import read_plan


def pretraining(folder: Path) -> list[Measured]:
    rows: list[dict[str, Any]] = []
    planned = read_plan(folder) or {}
    for arm, seed, id in dict.fromkeys((row["arm"], row["seed"], row["needs"]) for row in planned.values() if row["needs"]):
        for run in find_store(folder).glob(f"*-{id}"):
            for epoch in Run(run).metrics():
                rows.append({"arm": arm, "seed": seed, "run": id, **{k: v for k, v in epoch.items() if k != "event"}})
    if not rows:
        return []
    table = pandas.DataFrame(rows)
    table["task_loss"] = table["task_loss"].fillna(table["loss"]) if "task_loss" in table else table["loss"]
    about = (
        "Which of four rotations: accuracy on held-out pictures where there are any, and the task's loss on training pictures "
        "without the regularizer's. First seed. The table has every seed, and of each regularizer its value and `active`, the "
        "share of pictures on which it is not zero."
    )
    files = (write_table(table, folder, "pretraining"),)
    return [Measured("Convergence of pre-training", about, (draw(table, folder),), files)]


def draw(table: pandas.DataFrame, folder: Path) -> Path:
    from matplotlib import colormaps

    from softbias.pages.static import panels, save

    first = table[table["seed"] == table["seed"].min()]
    score = "val_accuracy" if "val_accuracy" in first and first["val_accuracy"].notna().any() else "accuracy"
    figure, grid = panels(2, side=4.4, height=3.3)
    for axes, column, title in zip(grid, (score, "task_loss"), ("rotation accuracy", "task loss"), strict=True):
        for arm in dict.fromkeys(first["arm"]):
            line = first[(first["arm"] == arm) & first[column].notna()]
            color, style = look(arm, colormaps)
            axes.plot(line["epoch"], line[column], style, color=color, lw=1.3, ms=3, label=arm)
        axes.set_xlim(0, 1.05 * first["epoch"].max())
        axes.set_xlabel("epoch", fontsize=8)
        axes.set_ylabel(title, fontsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles = grid[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, fontsize=7, frameon=False)
    return save(figure, folder / FOLDER, "pretraining")


def look(arm: str, colormaps: Any) -> tuple[Any, str]:
    """Base black, distance in blues and similarity in oranges by layer, others gray."""
    layer = int(arm[-1]) if arm[-1:].isdigit() else 0
    if "-L" in arm:
        return colormaps["Blues"](0.35 + 0.1 * layer), "o-"
    if "-R1-" in arm:
        return colormaps["Oranges"](0.3 + 0.1 * layer), "s-"
    return ("black", "D-") if "Base" in arm else ("#777777", "^--")
