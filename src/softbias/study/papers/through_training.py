"""Figures of a named study over epochs, as its document draws them, from what probes left while the runs trained.

ConViT: non-locality of full and of gated attention by layer, and the gates of every head. IBiT: the masks themselves, and how
far they move from their start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pandas

from softbias.pages.format import amount_text, count
from softbias.probes import find_probe
from softbias.probes.drawing import layers_over_training, over_training
from softbias.probes.rows import Rows, write_rows
from softbias.runs.live import read_live
from softbias.runs.run import Run
from softbias.study.papers.measure import compared_runs
from softbias.study.papers.named import Measurement
from softbias.study.scores import EXTRA

MOST_MASKS = 12  # lines of the figure of masks; with more heads, one of each layer is drawn


def rows_of(runs: pandas.DataFrame, probe: str, name: str) -> Rows:
    """The rows of a probe in runs that differ in their seed, under one name."""
    found: Rows = []
    for run in runs.itertuples():
        found += [{**row, "model": name, "seed": run.seed} for row in read_live(Run(str(run.run)), probe)]
    return found


def over_seeds(rows: Rows) -> Rows:
    """The mean over seeds of every number; rows of single cells of a mask are left out."""
    groups: dict[tuple[object, ...], Rows] = {}
    for row in rows:
        if row["head"] is not None and "row" not in row and row["value"] is not None:
            groups.setdefault((row["model"], row["measure"], row["layer"], row["head"], row["epoch"]), []).append(row)
    return [{**ones[0], "value": sum(row["value"] for row in ones) / len(ones)} for ones in groups.values()]


def locality_over_epochs(folder: Path, parts: Mapping[str, pandas.DataFrame]) -> list[Measurement]:
    """Non-locality of each part of the runs, and the gates of those that have some; nothing where no run was probed."""
    out = folder / EXTRA
    rows = [row for name, runs in parts.items() for row in rows_of(runs, "locality", name)]
    made = []
    if rows:
        figure = layers_over_training(over_seeds(rows), out, "locality_epochs", "non_locality", "non-locality (patches)")
        about = (
            "How far heads look while the models train, on each layer's own input and on held-out pictures "
            f"({count(len({row['seed'] for row in rows}), 'seed')}). The higher, the further from the query patch."
        )
        files = (write_rows(rows, out, "locality_epochs")[0],)
        made.append(Measurement("Non-locality over epochs: full attention beside gated", about, (figure,), files))
    gates = [row for name, runs in parts.items() for row in rows_of(runs, "gates", name)]
    if gates:
        figures = over_training(over_seeds(gates), out, "gates_epochs", "gate", "gate σ(λ): share of position")
        about = "The share σ(λ) of position in every gated head while the model trains; the black line is the mean over heads."
        made.append(Measurement("Gates over epochs", about, tuple(figures), (write_rows(gates, out, "gates_epochs")[0],)))
    return made


def masks_over_epochs(folder: Path) -> list[Measurement]:
    """How far the masks of every arm move from their start, and the masks themselves; nothing where no run was probed."""
    frame = compared_runs(folder)
    out = folder / EXTRA
    rows: Rows = []
    first: Rows = []
    for key, runs in frame.groupby(["arm", "amount"], sort=False):
        arm, amount = cast("tuple[str, float]", key)
        name = f"{arm}, {amount_text(amount)}" if frame["amount"].nunique() > 1 else arm
        found = rows_of(runs, "masks", name)
        rows += [row for row in found if "row" not in row]
        if found and amount == frame["amount"].max() and not first:
            first = [row for row in found if row["seed"] == runs["seed"].min()]
    rows = without_fixed(rows)
    if not rows:
        return []
    moved = layers_over_training(over_seeds(rows), out, "masks_moved", "moved", "distance from the initial mask")
    figures, about = (
        [moved],
        "How far the learned masks of a layer move from their start, as a share of its norm, mean over heads and seeds.",
    )
    if first:
        chosen, note = legible(first)
        figures += [file for file in find_probe("masks").draw(chosen, out) if "training" not in file.name]
        about += f" Below, the masks of the middle patch of {first[0]['model']}, first seed, from the start to the end{note}."
    return [Measurement("Masks over epochs", about, tuple(figures), (write_rows(rows, out, "masks_epochs")[0],))]


def without_fixed(rows: Rows) -> Rows:
    """The rows of layers whose masks are learned: a mask of ones that stays is no part of a mean over masks that move."""
    learned = {(row["model"], row["layer"]) for row in rows if row["measure"] == "moved" and row["value"]}
    return [row for row in rows if (row["model"], row["layer"]) in learned]


def legible(rows: Rows) -> tuple[Rows, str]:
    """The rows of at most `MOST_MASKS` heads: with more, of each layer the head whose mask moved most."""
    heads = sorted({(row["layer"], row["head"]) for row in rows})
    if len(heads) <= MOST_MASKS:
        return rows, ""
    last = max(row["epoch"] for row in rows)
    moved = {(row["layer"], row["head"]): row["value"] for row in rows if row["measure"] == "moved" and row["epoch"] == last}
    kept = {max((head for head in heads if head[0] == layer), key=moved.__getitem__) for layer, _ in heads}
    return [row for row in rows if (row["layer"], row["head"]) in kept], ", of each layer the head whose mask moved most"
