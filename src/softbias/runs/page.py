"""One page about a finished run: report.html, which opens offline, and confusion.png.

The weaknesses of a model come as early as its strengths: the baseline beside the accuracy, the worst classes first, the most
confident mistakes, the labels worth checking.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.files import write_bytes, write_text
from softbias.notes import Note
from softbias.pages.format import duration, memory, percent, share
from softbias.pages.html import data_uri, render
from softbias.pages.static import confusion_png
from softbias.pages.theme import DPI, PALETTE
from softbias.pages.wording import text
from softbias.runs.charts import confusions, curves, reliability, score_chart
from softbias.runs.galleries import galleries
from softbias.runs.maps import draw_maps, recorded
from softbias.runs.printed import cost_rows, run_title, score_rows, verdict, worst_first
from softbias.runs.run import Run
from softbias.schema import from_plain

VERSIONS = ("softbias", "python", "torch", "torchvision", "timm", "numpy")


def write_page(run_path: str | Path, data: Dataset | None = None) -> Path:
    """Write report.html, and confusion.png where there are test scores, into the folder of a finished run.

    data   the run's set, for its pictures; without it the galleries name the pictures but do not show them
    """
    run = Run(Path(run_path))
    summary = run.summary()
    names = [row["name"] for row in (summary.get("test") or {}).get("classes", [])]  # none: a pretext task, or no test
    predictions = run.predictions() if names else None
    test, baseline = summary.get("test"), summary.get("baseline")
    html = render(
        "run.html.jinja",
        summary=summary,
        test=test,
        score=score_chart(test, baseline) if test and baseline and not summary["pretext"] else None,
        verdict=verdict(summary),
        scores=score_rows(summary),
        facts_of_run=facts(summary, run.environment()),
        config=run.config_path.read_text(encoding="utf-8") if run.begun else "",
        curves=curves(run.metrics()),
        classes=worst_first((summary.get("test") or {}).get("classes", [])),
        confusion=confusion_section(run.path, summary["test"]["confusion"], names) if names else None,
        reliability=None if predictions is None else reliability(predictions.probabilities, predictions.labels),
        maps=maps_section(run.path),
        galleries=[] if predictions is None else galleries(predictions, names, data),
        model_path=str(run.model_folder),
        run_path=shlex.quote(str(run.path)),
        notes=notes_in_words(summary),
    )
    write_text(run.path / "report.html", html)
    return run.path / "report.html"


def result_html(summary: Mapping[str, Any], run: Run) -> str:
    """The scores of a finished run, for a notebook."""
    return render(
        "result.html.jinja",
        title=run_title(summary),
        scores=[*score_rows(summary), *cost_rows(summary)],
        verdict=verdict(summary),
        notes=notes_in_words(summary),
        run=run,
    )


def notes_in_words(summary: Mapping[str, Any]) -> list[str]:
    return [text(note) for note in from_plain(tuple[Note, ...], summary.get("notes", []), "summary.json: notes")]


def confusion_section(folder: Path, counts: list[list[int]], names: list[str]) -> dict[str, Any]:
    """The matrix as a picture in both themes, and the most frequent mistakes; the light picture is saved as confusion.png."""
    matrix = np.array(counts, np.int64)
    drawings = {theme: confusion_png(matrix, names, theme) for theme in PALETTE}
    write_bytes(folder / "confusion.png", drawings["light"])
    return {**themed(drawings), "pairs": confusions(matrix, names)}


def maps_section(folder: Path) -> list[dict[str, Any]]:
    """The pictures of the regularized layers; none for a run without regularizers."""
    return [
        {"name": each.name, "layer": each.layer, "legend": each.legend}
        | themed({theme: draw_maps(folder, each.name, each.layer, theme) for theme in PALETTE})
        for each in recorded(folder)
    ]


def themed(drawings: Mapping[str, bytes]) -> dict[str, Any]:
    """A picture in both themes for the page, with its size in CSS pixels."""
    with Image.open(io.BytesIO(drawings["light"])) as image:
        width, height = (round(side * 96 / DPI) for side in image.size)
    return {"width": width, "height": height, **{theme: data_uri(png) for theme, png in drawings.items()}}


def facts(summary: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was trained, on what, for how long, with what."""
    counts = {split: n for split, n in summary["pictures"].items() if n}
    size = " × ".join(map(str, summary["img_size"]))
    part = f", {share(summary['train_fraction'])} of the training pictures" if summary["train_fraction"] < 1 else ""
    weighted = ", classes weighted because their sizes differ" if summary.get("class_weights") else ""
    rows = [
        ("Model", f"{summary['model']}, {summary['parameters']:,} parameters"),
        ("Data", f"{summary['data']}{part}"),
        ("Pictures", f"{', '.join(f'{n:,} {split}' for split, n in counts.items())}; {size} pixels"),
        ("Objective", f"{summary['objective']}{weighted}"),
        *([("Regularizers", ", ".join(summary["regularize"]))] if summary.get("regularize") else []),
        ("Seed", str(summary["seed"])),
        ("Training", f"{summary['steps']:,} steps, {summary['epochs']:.4g} epochs in {duration(summary['seconds'])}"),
        ("Speed", f"{summary['images_per_second']:,.0f} images/s"),
    ]
    if summary.get("best_epoch"):
        kept = "; the model is the last epoch's" if summary.get("selected") == "last" else "; the model is this epoch's"
        best = f"{summary['best_epoch']}, {percent(summary['validation_accuracy'])} on validation"
        rows += [("Best epoch", best + kept)]
    if summary.get("peak_memory"):
        rows += [("Peak memory", f"{memory(summary['peak_memory'])} of {summary.get('peak_memory_of', 'the device')}")]
    if environment:
        threads = f", threads: {environment.get('threads')}" if environment.get("device") == "cpu" else ""
        where = f"{environment.get('hardware')} ({environment.get('device')}{threads})"
        rows += [("Hardware", ", ".join([where, *([environment["platform"]] if environment.get("platform") else [])]))]
        rows += [("Versions", ", ".join(f"{tool} {environment[tool]}" for tool in VERSIONS if environment.get(tool)))]
        rows += [("Source", f"git {environment['git'][:12]}")] if environment.get("git") else []
    return [*rows, ("Run", str(summary["id"]))]
