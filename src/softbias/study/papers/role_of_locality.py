"""ConViT's analyses on the finished runs: accuracy over strength × gated layers, learning curves, non-locality and gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas

from softbias.probes import find_probe
from softbias.probes.rows import write_rows
from softbias.runs.probing import DatasetCache, ProbeTarget, open_target
from softbias.runs.run import START, Run
from softbias.study.papers.measuring import FOLDER, arms_in_order, compared_runs, over_seeds, write_table
from softbias.study.papers.named import Measured
from softbias.study.spec import read_study


def measure(folder: Path, device: str, pictures: int) -> list[Measured]:
    frame = compared_runs(folder)
    options = {arm.name: arm.model_options for arm in read_study(folder).arms}
    frame["gated"] = [int(options[arm]["gated_blocks"]) for arm in frame["arm"]]
    frame["strength"] = [float(options[arm].get("strength", "nan")) for arm in frame["arm"]]
    return [final_accuracy(frame, folder), learning_curves(frame, folder), *looks(frame, folder, device, pictures)]


def final_accuracy(frame: pandas.DataFrame, folder: Path) -> Measured:
    """Strength by number of gated layers."""
    rows = []
    for arm in arms_in_order(frame):
        cell = frame[frame["arm"] == arm]
        value, low, high = over_seeds(cell["accuracy"].tolist())
        about = {"arm": arm, "gated_layers": cell["gated"].iloc[0], "strength": cell["strength"].iloc[0], "seeds": len(cell)}
        rows.append({**about, "accuracy": value, "low": low, "high": high})
    table = pandas.DataFrame(rows)
    without = table[table["gated_layers"] == 0]["accuracy"]
    said = "Test accuracy in percent, mean over seeds."
    said += f" Without any gated layer: {100 * without.iloc[0]:.1f} %." if len(without) else ""
    return Measured(
        "Accuracy over locality strength and number of gated layers",
        said,
        (draw_grid(table[table["gated_layers"] > 0], folder),),
        (write_table(table, folder, "strength_and_layers"),),
    )


def draw_grid(table: pandas.DataFrame, folder: Path) -> Path:
    from softbias.pages.static import panels, save

    grid = table.pivot(index="gated_layers", columns="strength", values="accuracy").sort_index(ascending=False) * 100
    figure, (axes,) = panels(1, side=1.6 + 0.8 * grid.shape[1], height=1.2 + 0.5 * grid.shape[0])
    drawn = axes.imshow(grid.to_numpy(float), cmap="viridis", aspect="auto")
    middle = (float(grid.min().min()) + float(grid.max().max())) / 2
    for row, line in enumerate(grid.to_numpy(float)):
        for column, value in enumerate(line):
            axes.text(
                column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if value < middle else "black"
            )
    axes.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    axes.set_yticks(range(grid.shape[0]), [str(value) for value in grid.index])
    axes.set_xlabel("locality strength α at the start", fontsize=8)
    axes.set_ylabel("gated layers", fontsize=8)
    figure.colorbar(drawn, ax=axes, label="test accuracy, %")
    return save(figure, folder / FOLDER, "strength_and_layers")


def learning_curves(frame: pandas.DataFrame, folder: Path) -> Measured:
    """By epoch, per number of gated layers."""
    rows: list[dict[str, Any]] = []
    for run in frame.itertuples():
        about = {"arm": run.arm, "gated_layers": run.gated, "strength": run.strength, "seed": run.seed}
        for epoch in Run(str(run.run)).metrics():
            kept = {name: epoch.get(name) for name in ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy")}
            rows.append({**about, **kept})
    table = pandas.DataFrame(rows)
    column = "val_accuracy" if table["val_accuracy"].notna().any() else "accuracy"
    strengths = sorted(table["strength"].dropna().unique())
    chosen = 1.0 if 1.0 in strengths else strengths[-1]
    where = "held-out" if column == "val_accuracy" else "training"
    return Measured(
        "Learning curves by number of gated layers",
        f"Accuracy on {where} pictures, mean over seeds, at strength α = {chosen:g}. The table has all strengths and seeds.",
        (draw_curves(table, column, chosen, folder),),
        (write_table(table, folder, "learning_curves"),),
    )


def draw_curves(table: pandas.DataFrame, column: str, strength: float, folder: Path) -> Path:
    from matplotlib import colormaps

    from softbias.pages.static import marker, panels, save

    kept = table[((table["strength"] == strength) | (table["gated_layers"] == 0)) & table[column].notna()]
    figure, (axes,) = panels(1, side=5.2, height=3.2)
    counts = sorted(kept["gated_layers"].unique())
    for place, count in enumerate(counts):
        line = kept[kept["gated_layers"] == count].groupby("epoch")[column].mean() * 100
        color = colormaps["viridis"](0.9 * place / max(1, len(counts) - 1))
        axes.plot(line.index, line, marker(place) + "-", color=color, ms=3, lw=1.5, label=f"{count} gated")
    axes.set_xlabel("epoch", fontsize=8)
    axes.set_ylabel("accuracy, %", fontsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=7, frameon=False)
    return save(figure, folder / FOLDER, "learning_curves")


def looks(frame: pandas.DataFrame, folder: Path, device: str, pictures: int) -> list[Measured]:
    """Non-locality without and with the most gated layers, before and after training; and the gates."""
    cache = DatasetCache()
    strengths = sorted(frame["strength"].dropna().unique())
    usual = 1.0 if 1.0 in strengths else strengths[-1]
    gated = frame[(frame["gated"] == frame["gated"].max()) & (frame["strength"] == usual)]
    plain = frame[frame["gated"] == 0]
    rows: list[dict[str, Any]] = []
    of_gates: list[dict[str, Any]] = []
    for part, name in ((plain, "full attention"), (gated, "gated attention")):
        run = part.sort_values("seed").iloc[0]
        named = open_target(run["run"], None, cache, device=device)
        for classifier in at_both_ends(named, name):
            rows += find_probe("locality").measure(classifier, named.data, n=pictures)
            of_gates += find_probe("gates").measure(classifier) if name == "gated attention" else []
    place = folder / FOLDER
    drawn = find_probe("locality").draw(rows, place)
    about = (
        f"Of the arms without and with {gated['gated'].iloc[0]} gated layers (α = {usual:g}), first seed, {pictures:,} test "
        "pictures: how far heads look, on each layer's own input, before the first step and at the end. Lines: mean over heads."
    )
    files = (write_rows(rows, place, "locality")[0],)
    found = [Measured("Non-locality: full attention beside gated", about, tuple(drawn), files)]
    drawn = find_probe("gates").draw(of_gates, place)
    files = (write_rows(of_gates, place, "gates")[0],)
    about = "The share σ(λ) of place in each gated head, and where heads look by place, before the first step and at the end."
    return [*found, Measured("Gates", about, tuple(drawn), files)]


def at_both_ends(named: ProbeTarget, name: str) -> list[Any]:
    """The model before its first step, and as it is now."""
    assert named.run is not None
    start = named.run.classifier(START, str(named.classifier.device))
    return [replace(start, name=f"{name}, at the start", when={}), replace(named.classifier, name=f"{name}, at the end")]
