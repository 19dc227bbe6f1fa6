"""From runs to report.html and figures/: gather, compute, draw, fill the template."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.pages.html import TEMPLATES, data_uri, template
from softbias.study.comparison import ALL_PAIRS_UP_TO, compare_arms, summarize
from softbias.study.headline import RULES, each, headline
from softbias.study.learning_curve import curve_fits, matching_data
from softbias.study.report import figures, figures_of_runs, tables
from softbias.study.report.chart import COLORS, PALETTE, Chart, color_of, dash_of, marker_of, shortened
from softbias.study.report.efficiency import efficiency
from softbias.study.report.examples import example_section
from softbias.study.report.gathering import Material, gather
from softbias.study.report.interactive import plotly
from softbias.study.report.measured import measured_after
from softbias.study.report.provenance import commands, facts, notes, notices, run_rows
from softbias.study.report.static import png, size_on_page
from softbias.study.report.tables import Table, latex

METRICS = ("accuracy", "top1", "top-1")
SHARES = (*METRICS, "top5", "top-5")
SYMBOLS = {  # the markers of plotly as SVG paths in a box of 12 × 12
    "circle": "M6 1a5 5 0 1 0 .01 0z", "square": "M1.5 1.5h9v9h-9z",
    "triangle-up": "M6 1 11.5 10.5H.5z", "diamond": "M6 0 12 6 6 12 0 6z",
    "triangle-down": "M.5 1.5h11L6 11z", "cross": "M4 1h4v3h3v4H8v3H4V8H1V4h3z",
    "x": "M3 1 6 4 9 1l2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z",
    "star": "M6 .5 7.5 4.3l4 .3-3.1 2.6 1 3.9L6 9l-3.4 2.1 1-3.9L.5 4.6l4-.3z",
}  # fmt: skip
STROKES = {"solid": "none", "dash": "3.5 2", "dashdot": "4 1.5 1 1.5", "dot": "1 1.5"}  # dashes of a piece of 9


def make_report(places: Sequence[Path], out: Path | None) -> Path:
    material = gather(places)
    page = (out or material.folder or Path("report")) / "report.html"
    if out is not None and out.suffix == ".html":
        page = out
    folder = page.parent / "figures"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SoftbiasError(f"the report cannot be written to {page.parent}: {error.strerror}; choose another --out") from error
    summary = summarize(material.frame)
    comparisons = compare_arms(material.frame, reference=material.study.get("reference"))
    published = read_published(material)
    fits, matching = curve_fits(material.frame), matching_data(material.frame, comparisons)
    sections = [section(material, summary, comparisons, published, fits, matching, data) for data in material.sets]
    extra = [tables.published_table(material, published, summary)] if len(published) else []
    charts = [chart for one in sections for chart in one["charts"]]
    for chart in charts:
        chart.table.to_csv(folder / f"{chart.key}.csv", index=False)
        (folder / f"{chart.key}.png").write_bytes(png(chart))
    for table in [table for one in sections for table in one["tables"]] + extra:
        write_text(folder / f"{figures.slug(table.key)}.tex", latex(table))
    summary.to_csv(folder / "summary.csv", index=False)
    comparisons.to_csv(folder / "differences.csv", index=False)
    material.frame.to_csv(folder / "runs.csv", index=False)
    write_text(page, render(material, sections, extra, comparisons, summary, folder))
    return page


def section(
    material: Material,
    summary: pd.DataFrame,
    comparisons: pd.DataFrame,
    published: pd.DataFrame,
    fits: dict[Any, Any],
    matching: pd.DataFrame,
    data: str,
) -> dict[str, Any]:
    """Everything about one data set. `charts` and `tables` hold them all once more, for writing them to files."""
    fractions = material.fractions(data)
    theirs = published[published["metric"].isin(METRICS)]
    same = theirs[theirs["data"] == data]  # those of sets that are not here stand beside a set that has none of its own
    near = same if len(same) else theirs[~theirs["data"].isin(material.sets)]
    main = efficiency(material, summary, near, data)
    fitted = figures.fitted(material, fits, data)
    forest = figures.differences(material, comparisons, data)
    learning = figures_of_runs.learning(material, data)
    costs = figures_of_runs.costs(material, summary, data)
    ends = list(dict.fromkeys([fractions[-1], fractions[0]]))
    classes = [chart for chart in (figures_of_runs.per_class(material, data, fraction) for fraction in ends) if chart]
    made: dict[str, Any] = {
        "data": data, "slug": figures.slug(data), "main": main, "fitted": fitted, "forest": forest, "learning": learning,
        "costs": costs, "classes": classes, "train_fraction": fractions[-1], "fractions": fractions,
        "accuracy_table": tables.accuracy_table(material, summary, data),
        "difference_table": tables.difference_table(comparisons, data),
        "matching_table": tables.matching_table(matching, data),
        "fit_table": tables.fit_table(material, fits, data),
        "cost_table": tables.cost_table(material, summary, data),
        "class_tables": [tables.class_table(material, chart.table, data) for chart in classes],
        "examples": example_section(material, data, fractions[-1]),
        "n_test": int(summary[summary["data"] == data]["n_test"].max()),
    }  # fmt: skip
    made["charts"] = [chart for chart in (main, fitted, forest, *learning, *costs, *classes) if chart is not None]
    own = [made[name] for name in ("accuracy_table", "difference_table", "matching_table", "fit_table", "cost_table")]
    made["tables"] = [table for table in (*own, *made["class_tables"]) if table.rows]
    return made


def read_published(material: Material) -> pd.DataFrame:
    """data, arm, fraction, metric, value in percent, note; and printed: the value with all of its digits."""
    rows = []
    for number in material.study.get("published") or []:
        value, metric = float(number["value"]), str(number.get("metric", "accuracy"))
        value = 100 * value if metric in SHARES and value <= 1 else value
        rows.append(
            {
                "data": number.get("data", ""),
                "arm": number.get("arm", ""),
                "train_fraction": float(number.get("train_fraction", 1)),
            }
            | {"metric": metric, "value": value, "note": str(number.get("note", ""))}
        )
    table = pd.DataFrame(rows, columns=["data", "arm", "train_fraction", "metric", "value", "note"])
    digits = {metric: max(map(decimals, cell["value"])) for metric, cell in table.groupby("metric")}
    return table.assign(printed=[f"{row.value:.{digits[row.metric]}f}" for row in each(table)])


def decimals(value: float) -> int:
    """How many digits a number has behind the point, four at most; a table gives all of its numbers the same.

    >>> decimals(83.13), decimals(70.0), decimals(100 * 0.123)
    (2, 0, 1)
    """
    return len(f"{value:.4f}".rstrip("0").split(".")[1])


def render(
    material: Material,
    sections: list[dict[str, Any]],
    extra: list[Table],
    comparisons: pd.DataFrame,
    summary: pd.DataFrame,
    folder: Path,
) -> str:
    from plotly.offline import get_plotlyjs

    charts = [chart for one in sections for chart in one["charts"]]
    drawn = {"palette": PALETTE, "charts": {chart.key: plotly(chart) for chart in charts}}
    html = template("report.html.jinja").render(
        toggle=True,
        colors=COLORS,
        short=lambda name: shortened(name, 34),
        breakable=breakable,
        title=material.study.get("title") or material.study.get("name") or f"{len(material.runs)} runs compared",
        question=material.study.get("question") or "",
        source=material.study.get("source") or "",
        headline=headline(comparisons),
        rules=RULES,
        notes=notes(material),
        notices=notices(material),
        told=told(material, summary),
        arms=[
            {"name": arm, "color": color_of(place), "path": SYMBOLS[marker_of(place)], "dash": STROKES[dash_of(place)]}
            for place, arm in enumerate(material.arms)
        ],
        sections=sections,
        extra=extra,
        measured=measured_after(material.folder),
        facts=facts(material),
        commands=commands(material),
        runs=run_rows(material),
        study_file=study_file(material),
        reference=material.arms[0] if len(material.arms) > ALL_PAIRS_UP_TO else "",
        seeds=int(summary["n"].max()),
        family=int(comparisons["family"].max()) if len(comparisons) else 0,
        theme_css=Markup(theme_css()),
        still=lambda chart: still(chart, folder),
        csv=lambda chart: "data:text/csv;base64," + base64.b64encode((folder / f"{chart.key}.csv").read_bytes()).decode(),
        slugged=figures.slug,
    )
    for text in (" %", "n = ", "p = ", " ± "):  # no line begins with a percent sign, none ends in the middle of "n = 3"
        html = html.replace(text, text.replace(" ", "\N{NO-BREAK SPACE}"))
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    numbers = json.dumps(drawn, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    parts = {"@@PLOTLY@@": get_plotlyjs().replace("</script", "<\\/script"), "@@NUMBERS@@": numbers, "@@SCRIPT@@": script}
    for mark, text in parts.items():
        before, after = html.split(mark)
        html = before + text + after
    return html


def breakable(text: str) -> Markup:
    """A name that a narrow column may break after "_", "@" and "/", and nowhere else.

    >>> str(breakable("deit_nano@lr=1e-3<"))
    'deit_<wbr>nano@<wbr>lr=1e-3&lt;'
    """
    return Markup("<wbr>").join(re.split(r"(?<=[_@/])", text))


def study_file(material: Material) -> str:
    file = (material.folder or Path()) / "study.yaml"
    return file.read_text(encoding="utf-8") if material.folder is not None and file.is_file() else ""


def told(material: Material, summary: pd.DataFrame) -> str:
    """The size of the study, in one line."""
    most, least = int(summary["n"].max()), int(summary["n"].min())
    seeds = f"{most} seed{'s' if most > 1 else ''}" if most == least else f"{least} to {most} seeds"
    amounts = sorted({float(fraction) for fraction in summary["train_fraction"]})
    parts = [
        f"{len(material.runs)} runs",
        f"{len(material.arms)} model{'s' if len(material.arms) > 1 else ''}",
        ", ".join(material.sets),
    ]
    return " · ".join([*parts, f"{', '.join(f'{100 * value:g}' for value in amounts)} % of the training data", f"{seeds} each"])


def still(chart: Chart, folder: Path) -> dict[str, Any]:
    """The picture of a chart as it stands in the page."""
    width, height = size_on_page(chart)
    return {"uri": data_uri((folder / f"{chart.key}.png").read_bytes()), "width": width, "height": height}


def theme_css() -> str:
    """The colors of the arms as variables, in both themes."""
    colors = {
        theme: " ".join(f"--{name}: {value};" for name, value in table.items() if name[:3] == "arm")
        for theme, table in PALETTE.items()
    }
    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {colors['dark']} }} }}"
    return f":root {{ {colors['light']} }}\n{dark}\n@media screen {{ :root[data-theme=dark] {{ {colors['dark']} }} }}"
