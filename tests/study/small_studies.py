"""Settings of runs that take a moment, and what must be the same of two studies."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SHORT = {"steps": 6, "batch_size": 16, "epochs": 1}


def outcome(study: Path) -> dict[str, tuple[Any, ...]]:
    """Run id -> the weights' hash, the rows of training without times, and the scores."""
    found = {}
    for summary_file in sorted(study.glob("runs/*/summary.json")):
        folder, summary = summary_file.parent, json.loads(summary_file.read_text())
        weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        rows = [{name: value for name, value in row.items() if name not in ("seconds", "images_per_second")} for row in rows]
        found[summary["id"]] = (weights, rows, summary["test"], summary["steps"], summary.get("baseline"))
    return found
