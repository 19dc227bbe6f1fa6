"""Tidy rows: one number a row, with what it is, its interval and its n; written to files and shown as a short table.

    {"model": "convit_nano", "weights": "trained", "probe": "locality", "measure": "distance", "unit": "pixels",
     "layer": 0, "head": 2, "value": 6.1, "low": 6.0, "high": 6.2, "n": 1000}

Intervals are 95 %: Wilson's for shares, the normal one for means over images. A number without an interval says why in the
column `no_interval`; a number that could not be measured is empty and says why in the column `note`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from softbias.classifier import Classifier
from softbias.files import csv_cell, write_text
from softbias.pages.format import measured, measured_interval
from softbias.stats import wilson

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]
Rows = list[Row]
Z = 1.959964
FROM_WEIGHTS = "read off the weights"

# Numbers


def mean_of(values: Tensor) -> Row:
    """value, low, high and n of a mean over images."""
    values = values.double().flatten()
    n = len(values)
    mean = float(values.mean())
    if n == 1:
        return {"value": mean, "low": math.nan, "high": math.nan, "n": n, "no_interval": "one image"}
    half = Z * float(values.std()) / math.sqrt(n)
    return {"value": mean, "low": mean - half, "high": mean + half, "n": n}


def share_of(hits: Tensor) -> Row:
    """value, low, high and n of the share of images that are hits."""
    count, n = int(hits.sum()), hits.numel()
    low, high = wilson(count, n)
    value = count / n
    return {"value": value, "low": min(low, value), "high": max(high, value), "n": n}  # min and max: edges are rounded


def clustered_share(hits: Tensor, source: Tensor) -> Row:
    """A mean over trials that share images: its interval is that of the images where they vary more than the trials.

    hits     (t,) the result of each trial
    source   (t,) the index of the image that the trial was made from

    The variance of the sum is the sum over images of the squared sum of residuals (cluster-robust), and never less than
    that of independent trials.
    """
    hits = hits.double()
    n, mean = len(hits), float(hits.mean())
    residual = hits - mean
    count = int(source.max()) + 1
    sums = torch.zeros(count, dtype=torch.double).index_add_(0, source.cpu(), residual.cpu())
    variance = max(float(sums.square().sum()), float(residual.square().sum())) / n**2
    half = Z * math.sqrt(variance)
    return {"value": mean, "low": mean - half, "high": mean + half, "n": n, "images": int(source.unique().numel())}


def without_interval(value: float, reason: str = FROM_WEIGHTS) -> Row:
    return {"value": float(value), "low": None, "high": None, "n": None, "no_interval": reason}


def not_measured(reason: object) -> Row:
    return {"value": None, "low": None, "high": None, "n": 0, "note": str(reason)}


def labeled(classifier: Classifier, probe: str, rows: Iterable[Row], **more: Any) -> Rows:
    """The rows with the model and the probe in front."""
    return [{**classifier.about(), "probe": probe, **more, **row} for row in rows]


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become null."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_row(row: Row) -> Row:
    return {key: plain(value) for key, value in row.items()}


# Files

FIRST = ("model", "weights", "epoch", "step", "probe", "measure", "layer", "head")
LAST = ("value", "low", "high", "n", "unit")


def columns_of(rows: Rows) -> list[str]:
    """All columns: the model and the measure first, the number and its interval last."""
    found = dict.fromkeys(name for row in rows for name in row)
    middle = [name for name in found if name not in FIRST and name not in LAST]
    return [*(name for name in FIRST if name in found), *middle, *(name for name in LAST if name in found)]


def write_rows(rows: Rows, folder: Path, name: str) -> list[Path]:
    """<name>.csv and <name>.json in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table, records = folder / f"{name}.csv", folder / f"{name}.json"
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, columns_of(rows), restval="")
    writer.writeheader()
    writer.writerows(
        {column: csv_cell(value) if isinstance(value, str) else value for column, value in plain_row(row).items()}
        for row in rows
    )
    write_text(table, stream.getvalue())
    lines = ",\n".join(json.dumps(plain_row(row), ensure_ascii=False) for row in rows)
    write_text(records, f"[\n{lines}\n]\n")
    return [table, records]


def append_rows(rows: Rows, file: Path) -> None:
    """One line of JSON a row, at the end of a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(plain_row(row), ensure_ascii=False) + "\n")


# Tables

ONLY_IN_FILES = ("mask", "field", "histogram", "center_row", "center_column")
MOST_ROWS = 40  # of a table in the terminal; the files have them all
NO_COLUMN = {*LAST, "probe", "step", "epoch", "data", "map", "chance_level", "images", "backgrounds", "note", "no_interval"}
NO_COLUMN |= {"weights", "head", "input"}


def headline(rows: Rows) -> Rows:
    """The most telling rows: the latest of every model, averaged over heads where the probe has no such row itself."""
    last = {name: max(row.get("step") or 0 for row in rows if row["model"] == name) for name in {row["model"] for row in rows}}
    chosen = [row for row in rows if row["measure"] not in ONLY_IN_FILES and (row.get("step") or 0) == last[row["model"]]]
    chosen = [row for row in chosen if row.get("row") is None and row.get("distance") is None]  # cells and curves are drawn
    chosen = [row for row in chosen if not row["measure"].endswith(" curve")]
    overall = [row for row in chosen if row.get("head") is None]
    return overall or over_heads(chosen)


def over_heads(rows: Rows) -> Rows:
    """Means over heads, without an interval."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["measure"], row.get("layer")), []).append(row)
    found = []
    for of_group in groups.values():
        values = [row["value"] for row in of_group if plain(row["value"]) is not None]
        first = {key: value for key, value in of_group[0].items() if key != "head"}
        found.append({**first, "value": sum(values) / len(values) if values else None, "low": None, "high": None})
    return found


def model_label(row: Row) -> str:
    """The name of a model in tables and figures, with the state of its weights where they were not trained."""
    return str(row["model"]) if row["weights"] in ("trained", "unknown") else f"{row['model']} ({row['weights']})"


def estimate(row: Row) -> str:
    """A value with its interval.

    >>> estimate({"value": 0.5, "low": 0.4, "high": 0.6, "unit": "share"})
    '50.0 % (40.0 to 60.0)'
    """
    value, edges = measured(row["value"], row["unit"]), measured_interval(row["low"], row["high"], row["unit"])
    if plain(row["value"]) is None:
        return f"{value} ({row['note']})" if row.get("note") else value
    return f"{value} ({edges})" if edges else value


def print_table(name: str, rows: Rows, console: Console) -> None:
    """The headline of a probe as a table."""
    from rich import box
    from rich.table import Table

    chosen = headline(rows)
    if not chosen:
        return
    columns = [
        column
        for column in columns_of(chosen)
        if column in ("model", "measure") or (column not in NO_COLUMN and len({row.get(column) for row in chosen}) > 1)
    ]
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 2, 0, 0), title=name, title_justify="left")
    for column in [*columns, "value (95 % interval)", "n"]:
        table.add_column(column, justify="left" if column in ("model", "measure") else "right", overflow="fold")
    for row in chosen[:MOST_ROWS]:
        cells = [cell_text(row, column) for column in columns]
        table.add_row(*cells, estimate(row), "–" if row.get("n") is None else f"{row['n']:,}")
    console.print(table)
    if len(chosen) > MOST_ROWS:
        console.print(f"… and {len(chosen) - MOST_ROWS} rows more in the file")


def cell_text(row: Row, column: str) -> str:
    value = row.get(column)
    if column == "model":
        return model_label(row)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
