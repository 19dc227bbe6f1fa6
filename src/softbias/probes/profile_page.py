"""The page of a bias profile, in the look of a run's page: one file, no script, no outside request."""

from __future__ import annotations

from typing import Any

from softbias.pages.html import template
from softbias.probes.drawing import label, latest
from softbias.probes.profile import ITEMS
from softbias.probes.rows import Row, Rows, plain
from softbias.probes.writing import estimate, number


def table(rows: Rows) -> tuple[list[str], list[dict[str, Any]]]:
    """The models' labels, and a line per item that any model has, with a cell per model."""
    models = latest(rows)
    lines = []
    for item in ITEMS:
        cells = []
        for of_model in models.values():
            (row,) = [row for row in of_model if row["measure"] == item.key]
            cells.append(row)
        if any(plain(row["value"]) is not None for row in cells):
            lines.append({"item": item, "cells": cells})
    return list(models), lines


def interval(row: Row) -> str:
    """
    >>> interval({"low": 0.41, "high": 0.52, "unit": "share"}), interval({"low": None, "high": None, "unit": "pixels"})
    ('41.0 to 52.0', '')
    """
    if plain(row.get("low")) is None:
        return ""
    return " to ".join(number(row[edge], row["unit"]).removesuffix(" %") for edge in ("low", "high"))


def markdown(rows: Rows) -> str:
    """Models down, items across would be too wide: items down, models across."""
    models, lines = table(rows)
    text = [f"| | {' | '.join(models)} |", f"|---{'|---:' * len(models)}|"]
    for line in lines:
        cells = [
            f"{number(row['value'], row['unit'])}{f' ({interval(row)})' if interval(row) else ''}" for row in line["cells"]
        ]
        text.append(f"| {line['item'].title} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def print_profile(rows: Rows, console: Any) -> None:
    """Items down, models across."""
    from rich import box
    from rich.table import Table

    models, lines = table(rows)
    shown = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 2, 0, 0))
    shown.add_column("profile", overflow="fold")
    for name in models:
        shown.add_column(name, justify="right", overflow="fold")
    for line in lines:
        shown.add_row(line["item"].title, *(estimate({**row, "note": None}) for row in line["cells"]))
    console.print(shown)


def chart(line: dict[str, Any], models: list[str]) -> dict[str, Any]:
    """Dots with whiskers on one axis from 0, in the coordinates of an SVG."""
    cells = [(name, row) for name, row in zip(models, line["cells"], strict=True) if plain(row["value"]) is not None]
    top = max([row.get("high") or row["value"] for _, row in cells] + [1.0 if cells[0][1]["unit"] == "share" else 0.0])
    top = top if top > 0 else 1.0
    left, span = 8, 340

    def across(value: float) -> float:
        return round(left + span * max(value, 0.0) / top, 1)

    marks = []
    for place, (name, row) in enumerate(cells):
        low, high = (row["value"] if plain(row.get(edge)) is None else row[edge] for edge in ("low", "high"))
        marks.append(
            {"name": name, "y": 30 + 34 * place, "x": across(row["value"]), "low": across(low), "high": across(high),
             "said": number(row["value"], row["unit"])}
        )  # fmt: skip
    chance = next((row["chance"] for _, row in cells if row.get("chance")), None)
    ends = [(left, "0"), (left + span, number(top, cells[0][1]["unit"]))]
    height = 34 * len(cells) + 34
    return {"marks": marks, "height": height, "chance": None if chance is None else across(chance), "ends": ends}


def page(rows: Rows) -> str:
    from softbias._version import __version__

    models, lines = table(rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        cells = [
            {"value": number(row["value"], row["unit"]), "interval": interval(row), "note": row.get("note"), "n": row.get("n")}
            for row in line["cells"]
        ]
        shown = {"item": line["item"], "cells": cells, "chart": chart(line, models)}
        groups.setdefault(line["item"].group, []).append(shown)
    order = dict.fromkeys(item.group for item in ITEMS[1:])
    untrained = [label(row) for row in {row["model"]: row for row in rows}.values() if row["weights"].startswith("untrained")]
    facts = {
        name: "; ".join(dict.fromkeys(str(row[name]) for row in rows if row.get(name))) for name in ("data", "backgrounds")
    }
    return template("profile.html.jinja").render(
        models=models,
        groups={name: groups[name] for name in order if name in groups},
        untrained=untrained,
        facts=facts,
        version=__version__,
    )
