"""What came of a run or a study, so that two of them can be compared."""

from __future__ import annotations

import json
from pathlib import Path

from attacks.workshop import digests


def outcome(run: Path) -> dict[str, str]:
    """The files of a run; those that a repeated run must give again with their content, the others with an empty text."""
    same = ("model/model.safetensors", "model/config.json", "config.yaml", "split.csv")
    found = {name: digest if name in same else "" for name, digest in digests(run).items()}
    if "summary.json" in found:
        try:
            summary = json.loads((run / "summary.json").read_bytes())
            found["summary.json"] = json.dumps([summary.get("test"), summary.get("steps"), summary.get("best_epoch")])
        except (ValueError, AttributeError):
            found["summary.json"] = "unreadable"
    return found


def outcomes(folder: Path) -> dict[str, str]:
    """The outcome of a run, or of all runs of a study."""
    if (folder / "config.yaml").is_file():
        return outcome(folder)
    found = {}
    for run in sorted(path for path in folder.glob("runs/*") if (path / "config.yaml").is_file()):
        found |= {f"{run.name}/{name}": digest for name, digest in outcome(run).items()}
    found |= {name: "" for name in ("report.html", "study.yaml") if (folder / name).is_file()}
    return found
