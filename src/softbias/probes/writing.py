"""Rows as files: probes/<name>.csv and .json, and figures beside them; read back, and shown as a short table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softbias.probes.rows import Row, Rows, plain

FIRST = ("model", "weights", "epoch", "step", "probe", "measure", "layer", "head")
LAST = ("value", "low", "high", "n", "unit")
QUIET = ("mask", "field", "histogram", "center_row", "center_column")  # for files and figures, not for the table
SHOWN = 40  # rows of a table in the terminal; the files have them all


def columns_of(rows: Rows) -> list[str]:
    """All columns: who and what first, the number and its interval last."""
    found = dict.fromkeys(name for row in rows for name in row)
    middle = [name for name in found if name not in FIRST and name not in LAST]
    return [*(name for name in FIRST if name in found), *middle, *(name for name in LAST if name in found)]


def write_rows(rows: Rows, folder: Path, name: str) -> list[Path]:
    """<name>.csv and <name>.json in a folder."""
    import csv

    folder.mkdir(parents=True, exist_ok=True)
    table, records = folder / f"{name}.csv", folder / f"{name}.json"
    columns = columns_of(rows)
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="")
        writer.writeheader()
        writer.writerows({key: plain(value) for key, value in row.items()} for row in rows)
    lines = ",\n".join(json.dumps({key: plain(value) for key, value in row.items()}, ensure_ascii=False) for row in rows)
    records.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return [table, records]


def append_rows(rows: Rows, file: Path) -> None:
    """A line of JSON per row, at the end of a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps({key: plain(value) for key, value in row.items()}, ensure_ascii=False) + "\n")


def read_rows(file: Path) -> Rows:
    """What `write_rows` or `append_rows` wrote (*.json, *.jsonl)."""
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]


def headline(rows: Rows) -> Rows:
    """Few rows that say the most: the last moment of every model, heads averaged where the probe did not do it itself."""
    last = {name: max(row.get("step") or 0 for row in rows if row["model"] == name) for name in {row["model"] for row in rows}}
    chosen = [row for row in rows if row["measure"] not in QUIET and (row.get("step") or 0) == last[row["model"]]]
    chosen = [row for row in chosen if row.get("row") is None and row.get("distance") is None]  # cells and curves are drawn
    chosen = [row for row in chosen if not row["measure"].endswith(" curve")]
    overall = [row for row in chosen if row.get("head") is None]
    return overall or over_heads(chosen)


def over_heads(rows: Rows) -> Rows:
    """The mean over heads; what only weights say has no interval."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["measure"], row.get("layer")), []).append(row)
    found = []
    for of_group in groups.values():
        values = [row["value"] for row in of_group if plain(row["value"]) is not None]
        first = {key: value for key, value in of_group[0].items() if key != "head"}
        found.append({**first, "value": sum(values) / len(values) if values else None, "low": None, "high": None})
    return found


def number(value: Any, unit: str) -> str:
    """
    >>> number(0.4641, "share"), number(6.123, "pixels"), number(None, "share")
    ('46.4 %', '6.12', '–')
    """
    if plain(value) is None:
        return "–"
    return f"{100 * value:.1f} %" if unit == "share" else f"{value:.3g}"


def estimate(row: Row) -> str:
    """A value with its interval.

    >>> estimate({"value": 0.5, "low": 0.4, "high": 0.6, "unit": "share"})
    '50.0 % (40.0 to 60.0)'
    """
    said = number(row["value"], row["unit"])
    if plain(row.get("low")) is None or plain(row["value"]) is None:
        return said if not row.get("note") else f"– ({row['note']})"
    low, high = (number(row[edge], row["unit"]).removesuffix(" %") for edge in ("low", "high"))
    return f"{said} ({low} to {high})"


def print_table(name: str, rows: Rows, console: Any) -> None:
    """A short rich table of a probe's headline."""
    from rich import box
    from rich.table import Table

    shown = headline(rows)
    if not shown:
        return
    dull = {
        *LAST,
        "probe",
        "step",
        "epoch",
        "data",
        "map",
        "chance",
        "pictures",
        "backgrounds",
        "note",
        "weights",
        "head",
        "input",
    }
    varies: Sequence[str] = [
        column
        for column in columns_of(shown)
        if column not in dull and (column in ("model", "measure") or len({row.get(column) for row in shown}) > 1)
    ]
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 2, 0, 0), title=name, title_justify="left")
    for column in [*varies, "value (95 % interval)", "n"]:
        table.add_column(column, justify="left" if column in ("model", "measure") else "right", overflow="fold")
    for row in shown[:SHOWN]:
        cells = [said(row, column) for column in varies]
        table.add_row(*cells, estimate(row), "–" if row.get("n") is None else f"{row['n']:,}")
    console.print(table)
    if len(shown) > SHOWN:
        console.print(f"… and {len(shown) - SHOWN} rows more in the file", markup=False)


def said(row: Row, column: str) -> str:
    value = row.get(column)
    if column == "model":
        return str(value) if row["weights"] in ("trained", "unknown") else f"{value} ({row['weights']})"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
