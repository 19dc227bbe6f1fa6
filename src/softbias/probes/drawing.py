"""Figures of rows that several probes share: by layer, over training, points with intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.pages.static import heading, panels, save
from softbias.pages.theme import LIGHT, MARKERS, color_of, marker_of
from softbias.probes.rows import Rows, model_label


def hue(number: int) -> str:
    """The color of a series, or of a head."""
    return LIGHT[color_of(number)]


def marker(number: int) -> str:
    """matplotlib's marker of a series, or of a head."""
    return MARKERS[marker_of(number)][0]


def through_training(rows: Rows) -> bool:
    """Whether rows were measured at several steps of a training."""
    return len({row.get("step") for row in rows}) > 1


def by_model(rows: Rows) -> dict[str, Rows]:
    """Rows by the name of the model."""
    found: dict[str, Rows] = defaultdict(list)
    for row in rows:
        found[row["model"]].append(row)
    return dict(found)


def latest(rows: Rows) -> dict[str, Rows]:
    """The rows of every model at its last step, by the model's label."""
    found = {}
    for of_model in by_model(rows).values():
        last = max(row.get("step") or 0 for row in of_model)
        kept = [row for row in of_model if (row.get("step") or 0) == last]
        found[model_label(kept[0])] = kept
    return found


def as_matrix(cells: Mapping[tuple[int, int], float]) -> NDArray[np.float64]:
    """Values by (row, column) as an array."""
    height, width = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
    return np.array([[cells[row, column] for column in range(width)] for row in range(height)])


def by_layer(rows: Rows, folder: Path, stem: str, measures: dict[str, str]) -> list[Path]:
    """A panel per measure: a line per model over its layers, a faint dot per head."""
    models = latest(rows)
    figure, axes = panels(len(measures), side=4.2, height=3.0)
    for one, (measure, title) in zip(axes, measures.items(), strict=True):
        for number, (name, of_model) in enumerate(models.items()):
            color = hue(number)
            chosen = [row for row in of_model if row["measure"] == measure]
            heads = [row for row in chosen if row["head"] is not None]
            shift = 0.12 * (number - (len(models) - 1) / 2)
            one.plot(
                [row["layer"] + shift for row in heads], [row["value"] for row in heads], "o", color=color, alpha=0.35, ms=3
            )
            layers = sorted({row["layer"] for row in chosen})
            means = [mean(row["value"] for row in heads if row["layer"] == layer) for layer in layers]
            one.plot([layer + shift for layer in layers], means, marker(number) + "-", color=color, ms=5, label=name)
        one.set_xlabel("layer", fontsize=8)
        one.set_ylabel(title, fontsize=8)
        one.set_ylim(0, 1.05 * max(one.get_ylim()[1], 1e-9))
        one.xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend(fontsize=7, frameon=False)
    return [save(figure, folder, stem)]


def over_training(rows: Rows, folder: Path, stem: str, measure: str, title: str) -> list[Path]:
    """A figure per model, a panel per layer, a line per head over the epochs."""
    made = []
    for name, of_model in by_model(rows).items():
        chosen = [row for row in of_model if row["measure"] == measure and row["head"] is not None]
        if not chosen:
            continue
        layers = sorted({row["layer"] for row in chosen})
        figure, axes = panels(len(layers), side=2.3, height=2.3)
        top = max(row["value"] for row in chosen)
        for one, layer in zip(axes, layers, strict=True):
            for head in sorted({row["head"] for row in chosen if row["layer"] == layer}):
                line = sorted((row["epoch"], row["value"]) for row in chosen if row["layer"] == layer and row["head"] == head)
                one.plot(*zip(*line, strict=True), color=hue(head), lw=1.5, marker=marker(head), ms=3, label=f"head {head}")
            one.set_title(f"layer {layer}", fontsize=9)
            one.set_xlabel("epoch", fontsize=8)
            one.set_ylim(0, 1.05 * top or 1)
        axes[0].set_ylabel(title, fontsize=8)
        axes[-1].legend(fontsize=6, frameon=False)
        heading(figure, f"{name}: {title} through training")
        made.append(save(figure, folder, f"{stem}_training", name))
    return made


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else float("nan")


def draw_points(
    rows: Rows, folder: Path, stem: str, panels_by: str, across: str, title: str, *, chance_level: float | None = None
) -> list[Path]:
    """A panel per value of one column, groups along another, a point with its interval per model."""
    models = latest(rows)
    kinds = list(dict.fromkeys(row[panels_by] for row in rows))
    figure, axes = panels(len(kinds), side=max(3.2, 1.4 + 0.28 * len(models)), height=3.0, columns=3)
    for one, kind in zip(axes, kinds, strict=True):
        groups = list(dict.fromkeys(row[across] for row in rows if row[panels_by] == kind))
        for number, (name, of_model) in enumerate(models.items()):
            chosen = {row[across]: row for row in of_model if row[panels_by] == kind and row["value"] is not None}
            shift = 0.7 * ((number + 0.5) / len(models) - 0.5)
            positions = [index + shift for index, group in enumerate(groups) if group in chosen]
            found = [chosen[group] for group in groups if group in chosen]
            values = [row["value"] for row in found]
            spread = [[row["value"] - row["low"] for row in found], [row["high"] - row["value"] for row in found]]
            style: dict[str, Any] = {"color": hue(number), "capsize": 2, "ms": 4}
            one.errorbar(positions, values, spread, fmt=marker(number), label=name, **style)
        if chance_level is not None:
            one.axhline(chance_level, color="#777777", lw=1, ls=":")
            one.annotate("random", (1, chance_level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)
        one.set_xticks(range(len(groups)), [str(group) for group in groups], fontsize=8)
        one.set_xlim(-0.6, len(groups) - 0.4)
        one.set_xlabel(across, fontsize=8)
        one.set_title(str(kind).replace("_", " "), fontsize=9)
    for one in axes:  # one quantity, so one scale
        one.set_ylim(0, max(other.get_ylim()[1] for other in axes))
    axes[0].set_ylabel(title, fontsize=8)
    axes[-1].legend(fontsize=7, frameon=False)
    return [save(figure, folder, stem)]
