"""What the measurements after a study's runs share: its runs, its folder for them, and a chart with published numbers "
"beside."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.files import write_text
from softbias.study.frame import runs_frame
from softbias.study.papers.named import Measured

if TYPE_CHECKING:
    import pandas

FOLDER, LIST = "extra", "extra.json"


def compared_runs(folder: Path) -> pandas.DataFrame:
    """The finished runs of a study that are compared: not those that others start from."""
    frame = runs_frame(folder)
    return frame[~frame["pretext"].astype(bool)].reset_index(drop=True)


def arms_in_order(frame: pandas.DataFrame) -> list[str]:
    return list(dict.fromkeys(frame["arm"]))


def write_table(table: pandas.DataFrame, folder: Path, name: str) -> Path:
    path = folder / FOLDER / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    return path


def write_list(measured: Sequence[Measured], folder: Path) -> Path:
    """extra/extra.json: title, words, figures and tables of what was measured, files seen from the study's folder."""
    rows = [
        {"title": one.title, "about": one.about, "figures": inside(one.figures, folder), "tables": inside(one.tables, folder)}
        for one in measured
    ]
    path = folder / FOLDER / LIST
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return path


def inside(paths: Sequence[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval; no interval of a single seed."""
    from scipy import stats

    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, math.nan, math.nan
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = float(stats.t.ppf(0.975, n - 1)) * spread
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Point:
    """A value of ours with its interval, and the document's."""

    arm: str
    value: float | None
    low: float | None = None
    high: float | None = None
    published: float | None = None


def draw_beside(
    panels_of: Mapping[str, Sequence[Point]], path: Path, title: str, *, chance: float | None = None, said: str = "published",
    log: bool = False,
) -> Path:  # fmt: skip
    """A panel per title, a line per arm: ours as a dot with its interval, the document's as an open diamond."""
    from softbias.pages.static import hue, panels, save

    most = max(len(points) for points in panels_of.values())
    figure, grid = panels(len(panels_of), side=4.6, height=1.1 + 0.32 * most)
    for axes, (name, points) in zip(grid, panels_of.items(), strict=True):
        axes.grid(axis="x", color="#dddddd", lw=0.6)
        axes.set_axisbelow(True)
        for row, point in enumerate(points):
            if point.value is not None:
                reach = interval(point)
                axes.errorbar(
                    point.value, row, xerr=reach, fmt="o", color=hue(0), ms=5, capsize=2, label="ours" if not row else None
                )
            if point.published is not None:
                axes.plot(point.published, row, "D", color=hue(1), mfc="none", ms=6)
        axes.plot([], [], "D", color=hue(1), mfc="none", ms=6, label=said)
        if chance is not None:
            axes.axvline(chance, color="#777777", lw=1, ls=":", label="random")
        axes.set_yticks(range(len(points)), [point.arm for point in points], fontsize=8)
        axes.set_ylim(len(points) - 0.5, -0.5)
        if log:
            from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

            axes.set_xscale("log", subs=range(2, 10))
            axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(title, fontsize=8)
    edges = [axes.get_xlim() for axes in grid]
    for place, axes in enumerate(grid):
        axes.set_xlim(min(low for low, _ in edges), max(high for _, high in edges))
        axes.tick_params(labelleft=not place)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    return save(figure, path.parent, path.stem)


def interval(point: Point) -> Any:
    if point.low is None or point.high is None or point.value is None or not math.isfinite(point.low):
        return None
    return [[point.value - point.low], [point.high - point.value]]
