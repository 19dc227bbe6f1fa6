"""Analyses of the finished runs of a named study: locality, pre-training, and scenes of several objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.pages.charts import Axis, Chart, Series
from softbias.pages.format import count
from softbias.pages.static import panels, save, sheet, show_map
from softbias.probes import find_probe
from softbias.probes.resolution import ENTRIES
from softbias.probes.rows import write_rows
from softbias.probes.scenes import draw_examples
from softbias.runs.probe_targets import DatasetCache, ProbeTarget, open_target
from softbias.runs.run import START, Run
from softbias.study.frame import find_store
from softbias.study.papers.measure import ArmValue, arms_in_order, compared_runs, draw_beside, write_table
from softbias.study.papers.named import Measurement
from softbias.study.papers.through_training import locality_over_epochs
from softbias.study.plan import read_plan
from softbias.study.scores import EXTRA, Score, Scores, write_scores

SCENES = {"combined": "Four pictures in one: Top-4 matching", "background": "A picture on a large background: accuracy"}
MEASURED = {"combined": "top4_matching", "background": "background_accuracy"}  # the metric of the study
AXES = {"combined": "classes matched of four, mean", "background": "accuracy"}
PUBLISHED_ENTRY = "224"
KEPT = ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy")


def locality(folder: Path, device: str, images: int) -> list[Measurement]:
    """ConViT's analyses: accuracy over strength and gated layers, learning curves, non-locality, gates."""
    frame = compared_runs(folder)
    options = {arm.name: arm.model_options for arm in arms_in_order(folder, frame)}
    frame["gated"] = [float(options[arm].get("gated_blocks", "nan")) for arm in frame["arm"]]  # nan: DeiT
    frame["strength"] = [float(options[arm].get("strength", "nan")) for arm in frame["arm"]]
    grid = frame[frame["gated"].notna()]
    parts = full_and_gated(frame)
    return [
        final_accuracy(grid, folder), learning_curves(grid, folder), *locality_over_epochs(folder, parts),
        *attention_maps(parts, folder, device, images),
    ]  # fmt: skip


def full_and_gated(frame: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """DeiT, or without it the arm without gated layers; and the arm with the most gated layers at the usual strength."""
    strength, most = usual_strength(frame), frame["gated"].max()
    plain = frame[frame["gated"].isna()] if frame["gated"].isna().any() else frame[frame["gated"] == 0]
    gated = frame[(frame["gated"] == most) & (frame["strength"] == strength)]
    found = {f"full attention: {plain['arm'].iloc[0]}": plain} if len(plain) else {}
    return {**found, f"gated attention: {most:g} layers, α = {strength:g}": gated}


def usual_strength(table: pandas.DataFrame) -> float:
    """1, or the largest strength where the study has no 1."""
    strengths = sorted(table["strength"].dropna().unique())
    return 1.0 if 1.0 in strengths else float(strengths[-1])


def final_accuracy(frame: pandas.DataFrame, folder: Path) -> Measurement:
    rows = []
    for arm in dict.fromkeys(frame["arm"]):
        cell = frame[frame["arm"] == arm]
        mean = ArmValue.over_seeds(arm, cell["accuracy"].tolist())
        settings = {"arm": arm, "gated_layers": int(cell["gated"].iloc[0]), "strength": cell["strength"].iloc[0]}
        rows.append({**settings, "seeds": len(cell), "accuracy": mean.value, "low": mean.low, "high": mean.high})
    table = pandas.DataFrame(rows)
    without = table[table["gated_layers"] == 0]["accuracy"]
    about = "Test accuracy in percent, mean over seeds."
    about += f" Without any gated layer: {100 * without.iloc[0]:.1f} %." if len(without) else ""
    return Measurement(
        "Accuracy over locality strength and number of gated layers",
        about,
        (draw_grid(table[table["gated_layers"] > 0], folder),),
        (write_table(table, folder, "strength_and_layers"),),
    )


def draw_grid(table: pandas.DataFrame, folder: Path) -> Path:
    """A colored cell per strength and number of gated layers, with its accuracy."""
    grid = table.pivot(index="gated_layers", columns="strength", values="accuracy").sort_index(ascending=False) * 100
    values = grid.to_numpy(float)
    figure, (axes,) = panels(1, side=1.6 + 0.8 * grid.shape[1], height=1.2 + 0.5 * grid.shape[0])
    drawn = show_map(axes, values, cmap="viridis", aspect="auto")
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value < middle else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    axes.set_yticks(range(grid.shape[0]), [str(value) for value in grid.index])
    axes.set_xlabel("locality strength α at the start", fontsize=8)
    axes.set_ylabel("gated layers", fontsize=8)
    figure.colorbar(drawn, ax=axes, label="test accuracy, %")
    return save(figure, folder / EXTRA, "strength_and_layers")


def learning_curves(frame: pandas.DataFrame, folder: Path) -> Measurement:
    """Accuracy by epoch, a curve per number of gated layers."""
    rows: list[dict[str, Any]] = []
    for run in frame.itertuples():
        settings = {"arm": run.arm, "gated_layers": run.gated, "strength": run.strength, "seed": run.seed}
        rows += [{**settings, **{name: epoch.get(name) for name in KEPT}} for epoch in Run(str(run.run)).metrics()]
    table = pandas.DataFrame(rows).astype({"gated_layers": int})
    column = "val_accuracy" if table["val_accuracy"].notna().any() else "accuracy"
    chosen = usual_strength(table)
    kept = table[((table["strength"] == chosen) | (table["gated_layers"] == 0)) & table[column].notna()]
    names, series = [], []
    for number, gated in enumerate(sorted(kept["gated_layers"].unique())):
        line = kept[kept["gated_layers"] == gated].groupby("epoch")[column].mean() * 100
        names.append(f"{gated} gated")
        series.append(Series("line", names[-1], line.index.tolist(), line.tolist(), number))
    chart = Chart("learning_curves", "", series, Axis("epoch", whole=True), Axis("accuracy, %"), names=names)
    images = "held-out" if column == "val_accuracy" else "training"
    return Measurement(
        "Learning curves by number of gated layers",
        f"Accuracy on {images} pictures, mean over seeds, at strength α = {chosen:g}. The table has all strengths and seeds.",
        (save(sheet([chart], width=5.2, height=3.2), folder / EXTRA, "learning_curves"),),
        (write_table(table, folder, "learning_curves"),),
    )


def attention_maps(parts: Mapping[str, pandas.DataFrame], folder: Path, device: str, images: int) -> list[Measurement]:
    """Non-locality of full attention and of the most gated layers, before and after training; and the gates."""
    cache = DatasetCache()
    rows: list[dict[str, Any]] = []
    of_gates: list[dict[str, Any]] = []
    for name, part in parts.items():
        run = part.sort_values("seed").iloc[0]
        target = open_target(run["run"], None, cache, device=device)
        for classifier in start_and_end(target, name):
            rows += find_probe("locality").measure(classifier, target.data, n=images)
            of_gates += find_probe("gates").measure(classifier) if name.startswith("gated") else []
    out = folder / EXTRA
    drawn = find_probe("locality").draw(rows, out)
    about = (
        f"First seed, {images:,} test pictures: how far heads look, on each layer's own input, before the first step and at "
        "the end. Lines: mean over heads."
    )
    files = (write_rows(rows, out, "locality")[0],)
    found = [Measurement("Non-locality: full attention beside gated", about, tuple(drawn), files)]
    drawn = find_probe("gates").draw(of_gates, out)
    files = (write_rows(of_gates, out, "gates")[0],)
    about = (
        "The share σ(λ) of position in each gated head, and where heads look by position, before the first step and at the end."
    )
    return [*found, Measurement("Gates", about, tuple(drawn), files)]


def start_and_end(target: ProbeTarget, name: str) -> list[Classifier]:
    """The model before its first step, and the trained model."""
    assert target.run is not None
    start = target.run.classifier(START, str(target.classifier.device))
    return [replace(start, name=f"{name}, at the start", when={}), replace(target.classifier, name=f"{name}, at the end")]


def pretraining(folder: Path) -> list[Measurement]:
    """How pre-training converges, with a regularizer and without: accuracy and loss by epoch."""
    rows: list[dict[str, Any]] = []
    plan = read_plan(folder) or {}
    for arm, seed, id in dict.fromkeys((row["arm"], row["seed"], row["needs"]) for row in plan.values() if row["needs"]):
        for run in find_store(folder).glob(f"*-{id}"):
            for epoch in Run(run).metrics():
                rows.append({"arm": arm, "seed": seed, "run": id, **{k: v for k, v in epoch.items() if k != "event"}})
    if not rows:
        return []
    table = pandas.DataFrame(rows)
    table["task_loss"] = table["task_loss"].fillna(table["loss"]) if "task_loss" in table else table["loss"]
    first = table[table["seed"] == table["seed"].min()]
    score = "val_accuracy" if "val_accuracy" in first and first["val_accuracy"].notna().any() else "accuracy"
    arms = list(dict.fromkeys(first["arm"]))
    charts = []
    for column, title in ((score, "rotation accuracy"), ("task_loss", "task loss")):
        series = []
        for number, arm in enumerate(arms):
            line = first[(first["arm"] == arm) & first[column].notna()]
            series.append(Series("line", arm, line["epoch"].tolist(), line[column].tolist(), number))
        charts.append(Chart("pretraining", title, series, Axis("epoch", whole=True), Axis(title), names=arms))
    about = (
        "The task is to tell by which of four rotations a picture was turned. Accuracy on held-out pictures where there are "
        "any, and the loss of the task, without the regularizer, on training pictures; first seed. The table has every seed, "
        "the value of each regularizer, and `active`, the share of pictures on which it is not zero."
    )
    picture = save(sheet(charts, width=4.4, height=3.3), folder / EXTRA, "pretraining")
    return [Measurement("Convergence of pre-training", about, (picture,), (write_table(table, folder, "pretraining"),))]


def scenes(
    folder: Path,
    device: str,
    name: str,
    measure: str,
    count_per_run: int,
    published: Mapping[str, float],
    entries: Sequence[str] = ENTRIES,
) -> list[Measurement]:
    """The probe `combined` or `background` on every finished run, beside the published numbers.

    Where an entry is that of the document's code, the numbers stand beside that one alone.
    """
    probe, cache = find_probe(name), DatasetCache()
    frame = compared_runs(folder)
    published = published if set(frame["data"]) == {"cifar10"} else {}  # no axis has numbers of two sets
    rows: list[dict[str, Any]] = []
    for run, id, arm, seed in zip(frame["run"], frame["id"], frame["arm"], frame["seed"], strict=True):
        target = open_target(run, None, cache, device=device)
        try:
            found = probe.measure(replace(target.classifier, name=arm), target.data, n=count_per_run, entries=entries)
        except NotMeasurableError as error:  # Top-4 with four classes
            return [Measurement(SCENES[name], f"Left out: {error}.")]
        rows += [{**row, "seed": seed, "run": id} for row in found]
    out = folder / EXTRA
    files = write_rows(rows, out, name)
    measured = [row for row in rows if row["measure"] == measure]
    by_entry = {}
    for entry in dict.fromkeys(row["entry"] for row in measured):
        beside = published if entry == PUBLISHED_ENTRY or PUBLISHED_ENTRY not in entries else {}
        by_entry[entry] = [scene_value(measured, entry, arm, beside.get(arm)) for arm in dict.fromkeys(frame["arm"])]
    level = next((row["chance_level"] for row in measured if row.get("chance_level")), None)
    panels = {f"{entry} entry": values for entry, values in by_entry.items()}
    figures = [draw_beside(panels, out / f"{name}_by_model.png", AXES[name], chance_level=level)]
    if name == "combined":
        figures += probe.draw([row for row in rows if row["seed"] == min(frame["seed"])], out)  # the histograms
    figures.append(draw_examples(target.data, out / f"{name}_examples.png", kind=name))
    entry = PUBLISHED_ENTRY if PUBLISHED_ENTRY in by_entry else next(iter(by_entry))
    main = {row["run"]: row for row in measured if row["entry"] == entry and row["value"] is not None}
    write_scores(
        Scores(
            MEASURED[name],
            {id: Score(row["value"], row["low"], row["high"]) for id, row in main.items()},
            f"{count_per_run:,} scenes a run, {entry} entry; the other entries stand below, among the measurements.",
            level,
        ),
        folder,
    )
    seeds = int(frame["seed"].nunique())
    spread = "95 % t interval over seeds" if seeds > 1 else "95 % interval over scenes, of one seed"
    about = f"{count_per_run:,} scenes per run, {count(seeds, 'seed')} per arm. Whiskers: {spread}."
    if published:
        about += f" Open diamonds: published, of {'100' if name == 'combined' else '200'} scenes"
        enlarged = "; its code enlarges pictures and scenes to 224 px, as the paper scale does"
        about += f"{'' if PUBLISHED_ENTRY in entries else enlarged}."
    about += " Dashed line: random answers." if level is not None else ""
    behind = next((row["backgrounds"] for row in rows if row.get("backgrounds")), None)
    about += f" Backgrounds: {behind}." if behind else ""
    summary = pandas.DataFrame(
        [{"entry": entry, "seeds": seeds, **vars(one)} for entry, values in by_entry.items() for one in values]
    )
    return [Measurement(SCENES[name], about, tuple(figures), (write_table(summary, folder, f"{name}_summary"), files[0]))]


def scene_value(rows: list[dict[str, Any]], entry: str, arm: str, published: float | None) -> ArmValue:
    """The mean over seeds with its interval; with one seed the interval over scenes."""
    found = [row for row in rows if row["entry"] == entry and row["model"] == arm and row["value"] is not None]
    if not found:
        return ArmValue(arm, None, published=published)
    if len(found) == 1:
        return ArmValue(arm, found[0]["value"], found[0]["low"], found[0]["high"], published)
    return ArmValue.over_seeds(arm, [row["value"] for row in found], published)
