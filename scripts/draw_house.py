"""Draw docs/house.png: who imports whom, from the data that import-linter checks.

    python scripts/draw_house.py [FILE]

A row is a room, with the number of its modules that import from each column. Rooms stand in the order of the layers contract
in pyproject.toml, the first floor first: all numbers stay left of the diagonal. The file also holds the names of the rooms as
text, so that a test can compare them with the contract.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from pathlib import Path

import grimp
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

ROOT = Path(__file__).parents[1]


def rooms() -> list[str]:
    """The rooms from the first floor up."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [room.strip() for layer in reversed(layers) for room in layer.replace("|", ":").split(":")]


def imports(names: list[str]) -> Counter[tuple[str, str]]:
    """How many modules of one room import from another."""
    graph = grimp.build_graph("softbias", exclude_type_checking_imports=True)

    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    pairs = {(a, room(b)) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)}
    return Counter((room(a), b) for a, b in pairs if room(a) in names and b in names and room(a) != b)


def draw(path: Path) -> None:
    names = rooms()
    counts = imports(names)
    n = len(names)
    figure = Figure((9.2, 8.2), dpi=144, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row, a in enumerate(names):
        axes.add_patch(Rectangle((row - 0.5, row - 0.5), 1, 1, color="#d8dee6"))
        for column, b in enumerate(names):
            count = counts[a, b]
            if count:
                color = to_rgba("#0b5cad" if column < row else "#c24e00", 0.12 + 0.88 * min(1, count / 20))
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=color))
                axes.text(
                    column, row, str(count), ha="center", va="center", fontsize=7, color="white" if count > 9 else "black"
                )
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(-0.5, n - 0.5)
    axes.set_xticks(range(n), names, rotation=60, ha="right")
    axes.set_yticks(range(n), names)
    axes.set_xlabel("is imported")
    axes.set_ylabel("imports")
    axes.set_aspect("equal")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, metadata={"Software": None, "Description": json.dumps(names)})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "house.png")
