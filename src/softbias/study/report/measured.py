"""What a named study measured on its finished runs (<study>/extra/extra.json), for the page: pictures and links to tables."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from PIL import Image

from softbias.pages.html import data_uri

LIST = Path("extra") / "extra.json"


def measured_after(folder: Path | None) -> list[dict[str, Any]]:
    """Title, words, pictures and tables of each measurement; files that are gone are left out."""
    if folder is None or not (folder / LIST).is_file():
        return []
    rows = json.loads((folder / LIST).read_text(encoding="utf-8"))
    return [
        {
            "title": row["title"],
            "about": row["about"],
            "pictures": [picture(folder / name, row["title"]) for name in row["figures"] if (folder / name).is_file()],
            "tables": [table(folder / name) for name in row["tables"] if (folder / name).is_file()],
        }
        for row in rows
    ]


def picture(path: Path, title: str) -> dict[str, Any]:
    with Image.open(path) as image:
        width, height = image.size
    return {
        "uri": data_uri(path.read_bytes()),
        "width": width,
        "height": height,
        "alt": f"{title}: {path.stem.replace('_', ' ')}",
    }


def table(path: Path) -> dict[str, str]:
    return {"name": path.name, "uri": "data:text/csv;base64," + base64.b64encode(path.read_bytes()).decode()}
