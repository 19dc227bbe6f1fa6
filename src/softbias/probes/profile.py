"""The bias profile: the most telling numbers of all probes, for one model or for many beside each other.

The rows are rows of the probes, selected by `ITEMS`. Where a model has no such number (attention distance of a convolution),
the row is empty and gives the reason. `draw` writes profile.html, one page that opens offline, and profile.md, the table
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from softbias._version import __version__
from softbias.bounds import Count, Seed
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.files import write_text
from softbias.pages.charts import Axis, Cell, Chart, Series, Table
from softbias.pages.format import measured, measured_interval
from softbias.pages.html import render
from softbias.probes import changes, learned_bias, locality, receptive_field, resolution, shift
from softbias.probes import scenes as scene_probes
from softbias.probes.drawing import latest
from softbias.probes.rows import Row, Rows, estimate, model_label, not_measured, plain
from softbias.probes.sampling import Source

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Item:
    """A line of the profile: which row of which probe, and how to read it."""

    key: str
    title: str
    group: str
    probe: str
    reads: str
    where: dict[str, Any] = field(default_factory=dict)


REACH, ROBUST, RELIES, LARGER = "Where it looks", "What it withstands", "What it relies on", "Larger scenes"
ITEMS = (
    Item("accuracy", "accuracy", ROBUST, "rotation", "unchanged pictures", {"measure": "accuracy", "angle": "none"}),
    Item("distance_first", "attention distance, first layer (px)", REACH, "locality", "mean over heads", {"layer": "first"}),
    Item("distance", "attention distance, all layers (px)", REACH, "locality", "mean over layers", {"layer": "all"}),
    Item("gate", "gate σ(λ)", REACH, "gates", "mean over heads and layers: share of position", {"measure": "gate"}),
    Item("field", "effective receptive field (px)", REACH, "receptive-field", "mean radius at the last features",
         {"measure": "radius", "layer": None}),
    Item("shift1", "shift by 1 px: same class", ROBUST, "shift", "mean of four directions",
         {"measure": "consistency", "pixels": 1}),
    Item("shift4", "shift by 4 px: same class", ROBUST, "shift", "mean of four directions",
         {"measure": "consistency", "pixels": 4}),
    Item("equivariance", "features follow a shift by 8 px", ROBUST, "shift", "cosine",
         {"measure": "equivariance", "pixels": 8}),
    Item("rotation30", "turned by 30°: accuracy", ROBUST, "rotation", "", {"measure": "accuracy", "angle": 30}),
    Item("rotation90", "turned by 90°: accuracy", ROBUST, "rotation", "", {"measure": "accuracy", "angle": 90}),
    Item("occlusion", "half hidden: accuracy", ROBUST, "occlusion", "8 × 8 tiles", {"measure": "accuracy", "hidden": 0.5}),
    Item("blurred", "half the detail: accuracy", ROBUST, "resolution", "",
         {"measure": "accuracy", "entry": "blurred", "scale": 0.5}),
    Item("twice", "twice the size, native: accuracy", ROBUST, "resolution", "",
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
    "gates": learned_bias.gates,
    "receptive-field": receptive_field.receptive_field,
    "shift": shift.shift,
    "rotation": changes.rotation,
    "occlusion": changes.occlusion,
    "resolution": resolution.resolution,
    "patch-shuffle": changes.patch_shuffle,
    "texture": changes.texture,
    "combined": scene_probes.combined_probe,
    "background": scene_probes.background_probe,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "shift": {"distances": (1, 4, 8)},
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
    n: Count = 1000,
    scenes: Count = 5000,
    seed: Seed = 0,
    split: str = "test",
    backgrounds: scene_probes.BackgroundSource = None,
) -> Rows:
    """A row per item. About 30 passes per image, and 2 + 2 per scene, two of which are 4 and 16 × as large."""
    classifier = Classifier.of(model)
    found: dict[str, Rows | NotMeasurableError] = {}
    for name, measure in MEASURES.items():
        options: dict[str, Any] = {} if name == "gates" else {"seed": seed, "split": split, "n": n, **OPTIONS.get(name, {})}
        if name in ("combined", "background"):
            options["n"] = scenes
        if name == "receptive-field":
            options["n"] = min(n, 100)
        if name == "background":
            options["backgrounds"] = backgrounds
        try:
            found[name] = measure(classifier, data, **options)
        except NotMeasurableError as error:
            found[name] = error
    return [item_row(classifier, item, found[item.probe]) for item in ITEMS]


def item_row(classifier: Classifier, item: Item, rows: Rows | NotMeasurableError) -> Row:
    about: Row = {**classifier.about(), "probe": "profile", "measure": item.key, "title": item.title, "group": item.group}
    if isinstance(rows, NotMeasurableError):
        return {**about, "unit": "", **not_measured(rows)}
    if item.probe in ("locality", "gates"):
        chosen = averaged(item, rows)
    else:
        chosen = [row for row in rows if all(row.get(key) == value for key, value in item.where.items())]
    if not chosen:
        return {**about, "unit": "", **not_measured("not measured for this model")}
    kept = ("value", "low", "high", "n", "unit", "chance_level", "note", "no_interval", "data", "backgrounds", "images", "map")
    return {**about, **{key: chosen[0][key] for key in kept if key in chosen[0]}}


def averaged(item: Item, rows: Rows) -> Rows:
    """One row over layers (and heads): means of values and of edges, an interval wider than that of the mean."""
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


# The table and the page


def table(rows: Rows) -> tuple[list[str], list[tuple[Item, Rows]]]:
    """The labels of the models, and for every item that any model has a row per model."""
    models = latest(rows)
    lines = []
    for item in ITEMS:
        cells = [next(row for row in of_model if row["measure"] == item.key) for of_model in models.values()]
        if any(plain(row["value"]) is not None for row in cells):
            lines.append((item, cells))
    return list(models), lines


def draw(rows: Rows, folder: Path) -> list[Path]:
    """profile.html and profile.md."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    html, text = folder / "profile.html", folder / "profile.md"
    write_text(html, page(rows))
    write_text(text, markdown(rows))
    return [html, text]


def markdown(rows: Rows) -> str:
    """A table with a line per item and a column per model."""
    models, lines = table(rows)
    text = [f"| | {' | '.join(models)} |", f"|---{'|---:' * len(models)}|"]
    text += [f"| {item.title} | {' | '.join(estimate({**row, 'note': None}) for row in cells)} |" for item, cells in lines]
    return "\n".join(text) + "\n"


def print_profile(rows: Rows, console: Console) -> None:
    """The same in the terminal."""
    from rich import box
    from rich.table import Table as TerminalTable

    models, lines = table(rows)
    printed = TerminalTable(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 2, 0, 0))
    printed.add_column("profile", overflow="fold")
    for name in models:
        printed.add_column(name, justify="right", overflow="fold")
    for item, cells in lines:
        printed.add_row(item.title, *(estimate({**row, "note": None}) for row in cells))
    console.print(printed)


def item_chart(item: Item, cells: Rows, models: list[str]) -> Chart:
    """A row per model with its interval, from zero; a dashed line at the chance level."""
    found = [(number, name, row) for number, (name, row) in enumerate(zip(models, cells, strict=True)) if known(row)]
    unit = found[0][2]["unit"]
    top = max([row.get("high") or row["value"] for *_, row in found] + [1.0 if unit == "share" else 0.0]) or 1.0
    edges, ticks = (-0.4, len(found) - 0.5), [(0.0, "0"), (top, measured(top, unit))]
    level = next((row["chance_level"] for *_, row in found if row.get("chance_level")), None)
    series, names = [], []
    if level is not None:
        series.append(Series("reference", "random", [level, level], edges, hover=[f"random: {measured(level, unit)}"] * 2))
        ticks.insert(1, (level, "random"))
    for index, (number, name, row) in enumerate(found):
        y, text = float(len(found) - 1 - index), f"{name}: {measured(row['value'], unit)}"
        low, high = (row["value"] if plain(row.get(edge)) is None else row[edge] for edge in ("low", "high"))
        series.append(Series("across", name, [row["value"]], [y], number, [low], [high], [f"{name}\n{estimate(row)}"]))
        names.append((y, text))
    return Chart(
        key=item.key,
        title=item.title,
        series=series,
        x=Axis(range=(0.0, top), ticks=ticks),
        y=Axis(range=edges, ticks=names, categories=True),
        alt=f"{item.title}: {'; '.join(text for _, text in names)}",
        height=60 + 36 * len(found),
    )


def known(row: Row) -> bool:
    return plain(row["value"]) is not None


def item_cell(row: Row) -> Cell:
    """A value, with its interval or the reason why there is none below it."""
    edges = measured_interval(row["low"], row["high"], row["unit"])
    return Cell(measured(row["value"], row["unit"]), (f"({edges})",) if edges else (row["note"],) if row.get("note") else ())


def page(rows: Rows) -> str:
    models, lines = table(rows)
    groups: dict[str, list[tuple[Item, Rows]]] = {}
    for item, cells in lines:
        groups.setdefault(item.group, []).append((item, cells))
    order = [name for name in dict.fromkeys(item.group for item in ITEMS[1:]) if name in groups]
    sections = []
    for name in order:
        body = [[Cell(item.title, (item.reads,) if item.reads else ()), *map(item_cell, cells)] for item, cells in groups[name]]
        charts = [item_chart(item, cells, models) for item, cells in groups[name]] if len(models) > 1 else []
        sections.append({"name": name, "table": Table(name, name, ["measure", *models], body), "charts": charts})
    first = {row["model"]: row for row in rows}
    facts = {
        name: "; ".join(dict.fromkeys(str(row[name]) for row in rows if row.get(name))) for name in ("data", "backgrounds")
    }
    return render(
        "profile.html.jinja",
        models=models,
        sections=sections,
        untrained=[model_label(row) for row in first.values() if row["weights"].startswith("untrained")],
        facts_of_data=facts,
        version=__version__,
    )
