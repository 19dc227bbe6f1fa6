"""Draw docs/house.png: the floors of the package and who imports whom, from the data that import-linter checks.

    python scripts/draw_house.py [FILE]

A row is a line of the layers contract in pyproject.toml, the first floor at the bottom. A line between two rooms is as thick
as the number of imports between them; all lines lead down.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

import grimp
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]


def floors() -> list[list[str]]:
    """The rooms of each floor, from top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[room.strip() for room in layer.replace("|", ":").split(":")] for layer in layers]


def imports(rooms: set[str]) -> Counter[tuple[str, str]]:
    """How many modules of one room import a module of another."""
    graph = grimp.build_graph("softbias", exclude_type_checking_imports=True)

    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    pairs = ((room(a), room(b)) for a in graph.modules for b in graph.find_modules_directly_imported_by(a))
    return Counter((a, b) for a, b in pairs if a != b and {a, b} <= rooms)


def draw(path: Path) -> None:
    rows = floors()
    position = {
        room: (column - (len(row) - 1) / 2, -level) for level, row in enumerate(rows) for column, room in enumerate(row)
    }
    figure = Figure((9, 0.62 * len(rows) + 0.6), dpi=144, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    for (a, b), count in sorted(imports(set(position)).items()):
        (x, y), (u, v) = position[a], position[b]
        bend = 0.02 * (y - v - 1) + 0.06 * (x - u)
        color = "#0b5cad" if v < y else "#c24e00"
        arrow = {"arrowstyle": "-", "color": color, "alpha": 0.45, "connectionstyle": f"arc3,rad={bend:.3f}"}
        axes.annotate("", (u * 2, v), (x * 2, y), arrowprops=arrow | {"linewidth": 0.4 + 0.25 * count**0.7})
    for room, (x, y) in position.items():
        style = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#1b1f24", "linewidth": 0.8}
        axes.text(x * 2, y, room, ha="center", va="center", fontsize=10, bbox=style)
    axes.set_xlim(-6, 6)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.axis("off")
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "house.png")
