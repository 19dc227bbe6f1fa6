"""Bias profiles of the finished runs of a study: <study>/probes/profile.json.

    softbias probe studies/mine --probes profile

The report draws the score by every number of the profile that is not a score itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from softbias.files import write_text
from softbias.json_file import MOST_BYTES_OF_TABLES, read_json
from softbias.probes.profile import ITEMS, Item
from softbias.probes.rows import Rows
from softbias.schema import from_plain

FOLDER, FILE = "probes", "profile.json"
SCORES = ("accuracy", "top4_matching")


class ProfileRow(TypedDict):
    """The entries of a row that its readers rely on. model: the name of the run's folder."""

    model: str
    measure: str
    value: float | None


def bias_items() -> list[Item]:
    """The lines of a profile that say where a model looks and what keeps its answer, without those that are scores."""
    return [item for item in ITEMS if item.where.get("measure") not in SCORES and item.probe not in ("combined", "background")]


def read_profiles(study: Path) -> Rows:
    """The rows of all profiles; none where no run was measured."""
    path = study / FOLDER / FILE
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = from_plain(list[dict[str, Any]], read_json(path, MOST_BYTES_OF_TABLES), str(path))
    for number, row in enumerate(rows):
        from_plain(ProfileRow, row, f"{path}, row {number}")
    return rows


def of_runs(rows: Rows, names: Mapping[str, str]) -> Rows:
    """The numbers of the runs that are named, under their new names, and without what tells about files."""
    kept = ("weights", "probe", "measure", "title", "value", "low", "high", "n", "unit")
    return [{"model": names[row["model"]], **{key: row.get(key) for key in kept}} for row in rows if row["model"] in names]


def write_profiles(rows: Rows, study: Path) -> None:
    """Each run once, as it was measured last; no file without rows."""
    last = {(row["model"], row["measure"]): row for row in rows}
    if last:
        (study / FOLDER).mkdir(parents=True, exist_ok=True)
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in last.values())
        write_text(study / FOLDER / FILE, f"[\n{text}\n]\n")
