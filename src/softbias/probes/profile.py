"""The bias profile: the most telling numbers of all probes, for one model or for many beside each other.

Rows are those of the probes themselves, picked by `ITEMS`; what a model has nothing for (attention distance of a convolution)
is an empty row that says why. `draw` writes profile.html, one page that opens offline, and profile.md, the table alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from softbias.classifier import Classifier
from softbias.probes import (
    gates,
    locality,
    occlusion,
    patch_shuffle,
    receptive_field,
    resolution,
    rotation,
    scenes,
    shift,
    texture,
)
from softbias.probes.pictures import Source
from softbias.probes.rows import Row, Rows


@dataclass(frozen=True)
class Item:
    """A line of the profile: which row of which probe, and how to read it."""

    key: str
    title: str
    group: str
    probe: str
    reads: str
    where: dict[str, Any] = field(default_factory=dict)


LOOKS, STANDS, RELIES, LARGER = "Where it looks", "What it withstands", "What it relies on", "Larger scenes"
ITEMS = (
    Item("accuracy", "accuracy", STANDS, "rotation", "unchanged pictures", {"measure": "accuracy", "angle": "none"}),
    Item("distance_first", "attention distance, first layer (px)", LOOKS, "locality", "mean over heads", {"layer": "first"}),
    Item("distance", "attention distance, all layers (px)", LOOKS, "locality", "mean over layers", {"layer": "all"}),
    Item("gate", "gate σ(λ)", LOOKS, "gates", "mean over heads and layers: share of place", {"measure": "gate"}),
    Item("field", "effective receptive field (px)", LOOKS, "receptive-field", "mean radius at the last features",
         {"measure": "radius", "layer": None}),
    Item("shift1", "shift by 1 px: same class", STANDS, "shift", "mean of four directions",
         {"measure": "consistency", "pixels": 1}),
    Item("shift4", "shift by 4 px: same class", STANDS, "shift", "mean of four directions",
         {"measure": "consistency", "pixels": 4}),
    Item("equivariance", "features follow a shift by 8 px", STANDS, "shift", "cosine",
         {"measure": "equivariance", "pixels": 8}),
    Item("rotation30", "turned by 30°: accuracy", STANDS, "rotation", "", {"measure": "accuracy", "angle": 30}),
    Item("rotation90", "turned by 90°: accuracy", STANDS, "rotation", "", {"measure": "accuracy", "angle": 90}),
    Item("occlusion", "half hidden: accuracy", STANDS, "occlusion", "8 × 8 tiles", {"measure": "accuracy", "hidden": 0.5}),
    Item("blurred", "half the detail: accuracy", STANDS, "resolution", "",
         {"measure": "accuracy", "entry": "blurred", "scale": 0.5}),
    Item("twice", "twice the size, native: accuracy", STANDS, "resolution", "",
         {"measure": "accuracy", "entry": "native", "scale": 2.0}),
    Item("shuffle", "4 × 4 tiles shuffled: accuracy", RELIES, "patch-shuffle", "high: parts, not shape",
         {"measure": "accuracy", "tiles": 4}),
    Item("shape", "shape bias under swapped texture", RELIES, "texture", "of those decided either way",
         {"measure": "shape_bias", "swap": "amplitude"}),
    Item("combined_resize", "combined, resize: Top-4 matching", LARGER, "combined", "random: 16 / classes",
         {"measure": "top4_matching", "entry": "resize"}),
    Item("combined_native", "combined, native: Top-4 matching", LARGER, "combined", "random: 16 / classes",
         {"measure": "top4_matching", "entry": "native"}),
    Item("background_resize", "background, resize: accuracy", LARGER, "background", "random: 1 / classes", {"entry": "resize"}),
    Item("background_native", "background, native: accuracy", LARGER, "background", "random: 1 / classes", {"entry": "native"}),
)  # fmt: skip
MEASURES: dict[str, Callable[..., Rows]] = {
    "locality": locality.locality,
    "gates": gates.gates,
    "receptive-field": receptive_field.receptive_field,
    "shift": shift.shift,
    "rotation": rotation.rotation,
    "occlusion": occlusion.occlusion,
    "resolution": resolution.resolution,
    "patch-shuffle": patch_shuffle.patch_shuffle,
    "texture": texture.texture,
    "combined": scenes.combined_probe,
    "background": scenes.background_probe,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "shift": {"pixels": (1, 4, 8)},
    "rotation": {"angles": (30, 90)},
    "occlusion": {"shares": (0.5,)},
    "resolution": {"scales": (0.5, 2.0)},
    "patch-shuffle": {"tiles": (4,)},
    "receptive-field": {"layers": False},
}


def profile(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 1000,
    scenes: int = 5000,
    seed: int = 0,
    split: str = "test",
    backgrounds: Any = None,
) -> Rows:
    """A row per line of the profile. About 30 passes per picture, and 2 + 2 per scene, two of which are 4 and 16 × as large."""
    classifier = Classifier.of(model)
    found: dict[str, Rows | str] = {}
    for name, measure in MEASURES.items():
        options: dict[str, Any] = {} if name == "gates" else {"seed": seed, "split": split, "n": n, **OPTIONS.get(name, {})}
        if name in ("combined", "background"):
            options["n"] = scenes
        if name == "receptive-field":
            options["n"] = min(n, 100)
        if name == "background" and backgrounds is not None:
            options["backgrounds"] = backgrounds
        try:
            found[name] = measure(classifier, data, **options)
        except ValueError as error:
            found[name] = str(error)
    return [line(classifier, item, found[item.probe]) for item in ITEMS]


def line(classifier: Classifier, item: Item, rows: Rows | str) -> Row:
    about: Row = {**classifier.about(), "probe": "profile", "measure": item.key, "title": item.title, "group": item.group}
    nothing: Row = {"value": None, "low": None, "high": None, "n": 0, "unit": ""}
    if isinstance(rows, str):
        return {**about, **nothing, "note": rows}
    if item.probe in ("locality", "gates"):
        chosen = averaged(item, rows)
    else:
        chosen = [row for row in rows if all(row.get(key) == value for key, value in item.where.items())]
    if not chosen:
        return {**about, **nothing, "note": "not measured for this model"}
    kept = ("value", "low", "high", "n", "unit", "chance", "note", "data", "backgrounds", "pictures", "map")
    return {**about, **{key: chosen[0][key] for key in kept if key in chosen[0]}}


def averaged(item: Item, rows: Rows) -> Rows:
    """One row over layers (and heads): means of values and of edges, which is wider than the interval of the mean."""
    if item.probe == "gates":
        chosen = [row for row in rows if row["measure"] == "gate"]
    else:
        chosen = [row for row in rows if row["measure"] == "distance" and row["head"] is None]
        first = min(row["layer"] for row in chosen)
        chosen = [row for row in chosen if item.where["layer"] == "all" or row["layer"] == first]
    if not chosen:
        return []
    means = {
        key: None if chosen[0][key] is None else sum(row[key] for row in chosen) / len(chosen)
        for key in ("value", "low", "high")
    }
    return [{**chosen[0], **means}]


def draw(rows: Rows, folder: Any) -> list[Path]:
    """profile.html and profile.md."""
    from softbias.probes.profile_page import markdown, page

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    html, table = folder / "profile.html", folder / "profile.md"
    html.write_text(page(rows), encoding="utf-8")
    table.write_text(markdown(rows), encoding="utf-8")
    return [html, table]
