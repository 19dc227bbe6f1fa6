"""One page about a study: charts, tables, pictures and how the numbers were made, in one file that opens offline.

From runs to report.html and figures/: gather, compute, draw, fill the template. A new chart is a function (Results, data set)
-> blocks, and a line in CHARTS, which names the section where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from softbias.errors import SoftbiasError
from softbias.files import require_writable, write_bytes, write_text
from softbias.pages.charts import Chart, Table, latex
from softbias.pages.format import count
from softbias.pages.html import frame_csv, render
from softbias.pages.static import png
from softbias.study.headline import Headline, headline, rules_for, timed_headline
from softbias.study.report.bias import bias_blocks
from softbias.study.report.costs import class_blocks, cost_blocks
from softbias.study.report.differences import differences_blocks
from softbias.study.report.examples import example_section
from softbias.study.report.learning import fitted_blocks, learning_blocks
from softbias.study.report.main_metric import metric_blocks
from softbias.study.report.matching import matching_blocks
from softbias.study.report.one_table import one_table
from softbias.study.report.provenance import commands, damage_text, facts, measured_after, notices, run_rows
from softbias.study.report.published import published_blocks
from softbias.study.report.results import Material, ReportBlock, Results, gather, slug
from softbias.study.report.training import training_blocks

CHARTS: dict[str, tuple[str, Callable[[Results, str], list[ReportBlock]]]] = {  # name: title of the section, drawing function
    "accuracy": ("{metric}", metric_blocks),
    "matching": ("{metric}", matching_blocks),
    "fitted": ("{metric}", fitted_blocks),
    "differences": ("Paired differences", differences_blocks),
    "learning": ("Learning curves", learning_blocks),
    "training": ("Through training", training_blocks),
    "bias": ("Bias and score", bias_blocks),
    "cost": ("Cost", cost_blocks),
    "classes": ("Classes", class_blocks),
}


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    message: Callable[[str], None] | None = None,
) -> Path:
    """Write report.html about a study or any finished runs, and its charts and tables as files under figures/.

    runs      a study's folder, or folders of runs
    out       the folder to write to; a study's own folder if not given, and `report` for loose runs
    message   gets a sentence that says how many runs are damaged

    Returns the path of the page.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    material = gather([Path(path) for path in given])
    page = (Path(out) if out is not None else material.folder or Path("report")) / "report.html"
    if out is not None and Path(out).suffix == ".html":
        page = Path(out)
    require_writable(page.parent)
    results = Results.of(material)
    sections = make_sections(results)
    published = published_blocks(results)
    write_files(page.parent / "figures", results, [*sections, {"blocks": {"": published}}])
    write_text(page, render_report(results, sections, published))
    if message is not None:
        for text in damage_text(material):
            message(text)
    return page


def make_sections(results: Results) -> list[dict[str, Any]]:
    """Every section with its anchor, its title, and its blocks for each data set; the first chart's name is the anchor.

    "{metric}" in a title is the main metric. One table of all sets, where there is one, is the first thing on the page.
    """
    sections: dict[str, dict[str, Any]] = {}
    for name, (title, draw) in CHARTS.items():
        title = title.replace("{metric}", results.metric.heading)
        section = sections.setdefault(title, {"anchor": name, "title": title, "blocks": {}})
        if not sections.keys() - {title} and results.in_one_table and not section["blocks"]:
            section["blocks"]["all sets"] = [ReportBlock(tables=[one_table(results)])]
        for data in results.material.sets:
            section["blocks"].setdefault(data, []).extend(draw(results, data))
    return [section for section in sections.values() if any(section["blocks"].values())]


def write_files(folder: Path, results: Results, sections: Iterable[dict[str, Any]]) -> None:
    """Every chart as CSV and PNG, every table as LaTeX, and the statistics as CSV."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the report cannot be written to {folder.parent}: {error.strerror}; choose another --out"
        raise SoftbiasError(message) from error
    blocks = [block for section in sections for blocks in section["blocks"].values() for block in blocks]
    charts: list[Chart] = [chart for block in blocks for chart in block.charts]
    tables: list[Table] = [table for block in blocks for table in block.tables if table.rows]
    for chart in charts:
        assert chart.table is not None
        write_text(folder / f"{chart.key}.csv", frame_csv(chart.table))
        write_bytes(folder / f"{chart.key}.png", png(chart))
    for table in tables:
        write_text(folder / f"{slug(table.key)}.tex", latex(table))
    frames = {"summary": results.summary, "differences": results.comparisons, "runs": with_short_paths(results.material)}
    for name, frame in frames.items():
        write_text(folder / f"{name}.csv", frame_csv(frame))


def with_short_paths(material: Material) -> pd.DataFrame:
    """The table of the runs; those of a study are named from its folder on, so that the table can be given away."""
    folder = material.folder
    if folder is None:
        return material.frame
    paths = map(Path, material.frame["run"])
    return material.frame.assign(run=[str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in paths])


def render_report(results: Results, sections: list[dict[str, Any]], published: list[ReportBlock]) -> str:
    material = results.material
    study = material.study
    return render(
        "report.html.jinja",
        title=(study.title or study.name) if study else f"{len(material.runs)} runs compared",
        question=study.question if study else "",
        source=study.source if study else "",
        headline=first_sentence(results),
        rules=rules_for(results.seeds) if results.metric.repeated == "seeds" else (),
        metric=results.metric,
        seeds=results.seeds if results.metric.repeated == "seeds" else 1,
        notes=study.notes if study else (),
        notices=notices(material),
        size=size_of(results),
        arms=material.arms,
        sections=sections,
        published=published,
        examples={data: example_section(material, data, material.amounts(data)[-1]) for data in material.sets},
        measured=measured_after(material.folder),
        facts_of_runs=facts(material),
        commands=commands(material),
        runs=run_rows(material),
        study_file=study_file(material),
    )


def first_sentence(results: Results) -> Headline:
    """What the report says first, about its main metric."""
    study, metric = results.material.study, results.metric
    if metric.repeated == "rounds":
        return timed_headline(results.summary, metric)
    return headline(results.comparisons, results.summary, study.arms[0].name if study else None, metric)


def size_of(results: Results) -> str:
    """The size of the study, in one line."""
    most, least = results.seeds, int(results.summary["n"].min())
    seeds = count(most, "seed") if most == least else f"{least} to {most} seeds"
    amounts = sorted({float(value) for value in results.summary["amount"]})
    shares = ", ".join(f"{100 * value:g}" for value in amounts if value <= 1)
    numbers = ", ".join(f"{value:.0f}" for value in amounts if value > 1)
    material = results.material
    parts = [f"{len(material.runs)} runs", count(len(material.arms), "model"), ", ".join(material.sets)]
    parts += [f"{shares} % of the training data"] if shares else []
    parts += [f"{numbers} training pictures per class"] if numbers else []
    return " · ".join([*parts, f"{seeds} each"])


def study_file(material: Material) -> str:
    file = (material.folder or Path()) / "study.yaml"
    return file.read_text(encoding="utf-8") if material.folder is not None and file.is_file() else ""
