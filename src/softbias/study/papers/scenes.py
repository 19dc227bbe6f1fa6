"""The probes `combined` and `background` on the finished runs of a study, every seed, beside the document's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas

from softbias.probes import find_probe
from softbias.probes.rows import write_rows
from softbias.probes.scenes import draw_examples
from softbias.runs.probing import DatasetCache, open_target
from softbias.study.papers.measuring import (
    FOLDER,
    Point,
    arms_in_order,
    compared_runs,
    draw_beside,
    over_seeds,
    write_table,
)
from softbias.study.papers.named import Measured

TITLES = {"combined": "Four pictures in one: Top-4 matching", "background": "A picture on a large background: accuracy"}
AXES = {"combined": "classes matched of four, mean", "background": "accuracy"}


def measure(folder: Path, device: str, name: str, column: str, scenes: int, theirs: Mapping[str, float]) -> list[Measured]:
    probe, cache = find_probe(name), DatasetCache()
    frame = compared_runs(folder)
    rows: list[dict[str, Any]] = []
    for run, arm, seed in zip(frame["run"], frame["arm"], frame["seed"], strict=True):
        named = open_target(run, None, cache, device=device)
        found = probe.measure(replace(named.classifier, name=arm), named.data, n=scenes)
        rows += [{**row, "seed": seed} for row in found]
    files = write_rows(rows, folder / FOLDER, name)
    summary = over_runs([row for row in rows if row["measure"] == column], arms_in_order(frame), theirs)
    entries = list(dict.fromkeys(summary["entry"]))
    shown = {
        f"{entry} entry": [
            Point(row.arm, row.value, row.low, row.high, row.published)
            for row in summary[summary["entry"] == entry].itertuples()
        ]
        for entry in entries
    }
    chance = next((row["chance_level"] for row in rows if row["measure"] == column and row.get("chance_level")), None)
    figures = [draw_beside(shown, folder / FOLDER / f"{name}_by_model.png", AXES[name], chance=chance)]
    if name == "combined":
        figures += probe.draw([row for row in rows if row["seed"] == min(frame["seed"])], folder / FOLDER)  # the histograms
    figures.append(draw_examples(named.data, folder / FOLDER / f"{name}_examples.png", kind=name))
    seeds = frame["seed"].nunique()
    spread = "95 % t interval over seeds" if seeds > 1 else "95 % interval over scenes, of one seed"
    about = (
        f"{scenes:,} scenes a run, {seeds} seed{'s' if seeds > 1 else ''} an arm. Bars: {spread}. Open diamonds: published, on "
    )
    about += f"CIFAR-10, of {'100' if name == 'combined' else '200'} scenes, entry not stated."
    behind = next((row["backgrounds"] for row in rows if row.get("backgrounds")), None)
    about += f" Backgrounds: {behind}." if behind else ""
    tables = (write_table(summary, folder, f"{name}_summary"), files[0])
    return [Measured(TITLES[name], about, tuple(figures), tables)]


def over_runs(rows: list[dict[str, Any]], arms: list[str], theirs: Mapping[str, float]) -> pandas.DataFrame:
    """A row per entry and arm: mean over seeds with its interval; of one seed the interval over scenes."""
    made = []
    for entry in dict.fromkeys(row["entry"] for row in rows):
        for arm in arms:
            found = [row for row in rows if row["entry"] == entry and row["model"] == arm and row["value"] is not None]
            about = {"arm": arm, "entry": entry, "seeds": len(found), "published": theirs.get(arm)}
            if not found:
                made.append({**about, "value": None, "low": None, "high": None})
                continue
            value, low, high = over_seeds([row["value"] for row in found])
            if len(found) == 1:
                low, high = found[0]["low"], found[0]["high"]
            made.append({**about, "value": value, "low": low, "high": high})
    table = pandas.DataFrame(made)
    return table.astype(object).where(table.notna(), None)
