"""One page about a finished run, report.html, which opens offline, with confusion.png; and its charts: learning curves, the
score beside the baseline, calibration, confusions.

The weaknesses of a model come as early as its strengths: the baseline beside the accuracy, the worst classes first, the most
confident mistakes, the labels worth checking.

Shapes: n test pictures, K classes.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.files import write_bytes, write_text
from softbias.notes import Note
from softbias.pages.charts import Axis, Chart, Series, linear_levels
from softbias.pages.format import duration, interval, memory, percent, share, short_number, shortened
from softbias.pages.html import data_uri, render
from softbias.pages.static import confusion_png
from softbias.pages.theme import DPI, PALETTE
from softbias.pages.wording import epochs_in_words, text
from softbias.runs.galleries import draw_maps, galleries, recorded
from softbias.runs.neighbors import neighbors_section
from softbias.runs.printed import cost_rows, next_steps, run_title, score_rows, verdict, worst_first
from softbias.runs.run import Run
from softbias.runs.start import Start, describe
from softbias.schema import from_plain
from softbias.stats import wilson
from softbias.terminal import counted
from softbias.training.evaluate import Labels, Probabilities

VERSIONS = ("softbias", "python", "torch", "torchvision", "timm", "numpy")


def write_page(run: Run, summary: Mapping[str, Any], data: Dataset | None = None) -> Path:
    """Write report.html, and confusion.png where there are test scores, into the folder of a finished run with this summary.

    data   the run's set, for its pictures; without it the galleries name the pictures but do not show them
    """
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
        task=summary.get("task"),
        vote=summary.get("neighbors"),
        neighbors=neighbors_section(run.neighbors_path, data),
        next_steps=next_steps(summary, run.path),
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
    side = summary.get("train_size")
    smaller = f", {side} × {side} in training" if side else ""
    part = f", {share(summary['train_fraction'])} of the training pictures" if summary["train_fraction"] < 1 else ""
    part = f", {summary['per_class']} training pictures per class" if summary.get("per_class") else part
    steps = counted(summary["steps"], "step")
    balanced = ", the loss makes up for classes of different sizes" if summary.get("class_weights") else ""
    rows = [
        ("Model", f"{summary['model']}, {summary['parameters']:,} parameters"),
        ("Start", describe(from_plain(Start, summary.get("start", {}), "summary.json: start"))),
        *([("Attention", f"converted to {summary['convert']}")] if summary.get("convert") else []),
        ("Data", f"{summary['data']}{part}"),
        ("Pictures", f"{', '.join(f'{n:,} {split}' for split, n in counts.items())}; {size} pixels{smaller}"),
        ("Objective", f"{summary['objective']}{balanced}"),
        *([("Regularizers", ", ".join(summary["regularize"]))] if summary.get("regularize") else []),
        ("Seed", str(summary["seed"])),
        ("Training", f"{steps}, {epochs_in_words(summary['epochs'])} in {duration(summary['seconds'])}"),
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


QUARTERS = [(tick, f"{tick:.0%}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]


def curves(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Charts of loss, accuracy, learning rate and the terms of regularizers over the epochs."""
    wanted: dict[str, dict[str, str]] = {
        "Loss": {"training": "loss", "validation": "val_loss"},
        "Accuracy": {"training": "accuracy", "validation": "val_accuracy"},
        "Learning rate": {"learning rate": "lr"},
    }
    if any("task_loss" in row for row in rows):  # the terms of a regularized loss, each before its weight
        wanted["Task loss alone"] = {"term": "task_loss"}
    for key in dict.fromkeys(key for row in rows for key in row if key.endswith("_active")):
        name = key.removesuffix("_active")
        wanted[f"{name} loss, unweighted"] = {"term": f"{name}_loss"}
        wanted[f"Pictures with {name} loss > 0"] = {"share": key}
    made = []
    for title, lines in wanted.items():
        found = {name: points_of(rows, key) for name, key in lines.items()}
        found = {name: points for name, points in found.items() if points}
        if found:
            made.append(curve_chart(title, found, shares=title == "Accuracy" or "share" in lines))
    return made


def points_of(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """The epochs at which a value was recorded, with the value."""
    return [(row["epoch"], row[key]) for row in rows if row.get(key) is not None and np.isfinite(row[key])]


def curve_chart(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], *, shares: bool = False) -> Chart:
    """Lines over the epochs, from zero upward; up to 25 epochs have markers."""

    def words(value: float) -> str:
        return percent(value) if shares else f"{value:.3g}"

    series = []
    for number, (name, points) in enumerate(lines.items()):
        hover = [f"{name}, epoch {x:g}\n{words(y)}" for x, y in points]
        xs, ys = zip(*points, strict=True)
        series.append(Series("line" if len(points) < 25 else "curve", name, xs, ys, number, hover=hover))
    highest = max(max(one.y) for one in series)
    top = 1.0 if highest <= 0 or (shares and highest > 0.8) else 1.04 * highest
    levels = linear_levels(0, top, 4)
    ends = "; ".join(f"{one.name} {words(one.y[0])} at first, {words(one.y[-1])} at last" for one in series)
    return Chart(
        key="".join(letter if letter.isalnum() else "-" for letter in title.lower()),
        title=title,
        series=series,
        x=Axis("epoch", whole=True),
        y=Axis(range=(0, top), ticks=[(level, f"{level:.0%}" if shares else f"{level:.3g}") for level in levels]),
        alt=f"{title} by epoch: {ends}",
        names=list(lines),
        height=250,
    )


def score_chart(test: Mapping[str, Any], baseline: Mapping[str, Any]) -> Chart:
    """The accuracy of the model above that of the baseline, with 95 % intervals."""
    rows = {"this model": test, baseline["name"]: baseline}
    series = []
    for number, (name, row) in enumerate(rows.items()):
        low, high = row["accuracy_interval"]
        hover = [f"{name}\n{percent(row['accuracy'])}\n95 % interval {interval(row['accuracy_interval'])}"]
        series.append(Series("across", name, [row["accuracy"]], [1.0 - number], number, [low], [high], hover))
    ticks = [(1.0 - number, f"{name}: {percent(row['accuracy'])}") for number, (name, row) in enumerate(rows.items())]
    alt = f"Accuracy with 95 % intervals: {'; '.join(text for _, text in ticks)}"
    y = Axis(ticks=[(level, shortened(text, 60)) for level, text in ticks], range=(-0.4, 1.5), categories=True)
    return Chart("score", "Test accuracy", series, Axis(range=(0, 1), ticks=QUARTERS), y, alt, height=150)


@dataclass(frozen=True)
class Reliability:
    """bins: bin, confidence, accuracy, low, high and n of every bin that has pictures; width: of a bin; mean: confidence."""

    bins: list[dict[str, Any]]
    width: float
    mean: float
    word: str

    def charts(self) -> list[Chart]:
        """Accuracy against confidence, and the number of pictures by confidence."""
        xs, ys = ([row[name] for row in self.bins] for name in ("confidence", "accuracy"))
        low, high = ([row[name] for row in self.bins] for name in ("low", "high"))
        hover = [
            f"{percent(row['accuracy'])} right\nmean confidence {percent(row['confidence'])}, n = {row['n']:,}\n"
            f"95 % interval {interval((row['low'], row['high']))}"
            for row in self.bins
        ]
        ideal = Series("reference", "ideal", [0, 1], [0, 1])
        x = Axis("confidence of the prediction", range=(0, 1), ticks=QUARTERS)
        alt = "Reliability diagram: accuracy against confidence in ten bins; the table beside it has the numbers"
        right = Series("upright", "accuracy", xs, ys, 0, low, high, hover)
        y = Axis("accuracy", range=(0, 1), ticks=QUARTERS)
        centers, counts = [self.width * (row["bin"] + 0.5) for row in self.bins], [row["n"] for row in self.bins]
        hover = [
            f"{percent(x - self.width / 2)} to {percent(x + self.width / 2)}\nn = {n:,}"
            for x, n in zip(centers, counts, strict=True)
        ]
        bars = Series("columns", "pictures", centers, counts, hover=hover)
        levels = [(level, short_number(level)) for level in linear_levels(0, max(counts), 2, whole=True)]
        return [
            Chart("reliability", "Accuracy by confidence", [ideal, right], x, y, alt, height=330),
            Chart(
                "confidence",
                "Pictures by confidence",
                [bars],
                x,
                Axis("pictures", range=(0, max(counts)), ticks=levels),
                height=150,
            ),
        ]


def reliability(probabilities: Probabilities, labels: Labels, bins: int = 10) -> Reliability:
    """How often the model is right, by its confidence.  # (n, K), (n,)"""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = []
    for number in np.unique(bin_of):
        chosen = bin_of == number
        n, hits = int(chosen.sum()), int(right[chosen].sum())
        low, high = wilson(hits, n)
        rows += [{"bin": int(number), "confidence": float(confidence[chosen].mean()), "accuracy": hits / n, "n": n}]
        rows[-1] |= {"low": low, "high": high}
    gap = float(confidence.mean() - right.mean())
    word = "about right on average" if abs(gap) < 0.02 else "too sure of itself" if gap > 0 else "not sure enough of itself"
    return Reliability(rows, 1 / bins, float(confidence.mean()), word)


def confusions(matrix: NDArray[np.int64], names: Sequence[str], most: int = 12) -> list[dict[str, Any]]:
    """The most frequent mistakes: true class, predicted class, how many, of how many.  # (K, K)"""
    wrong = matrix - np.diag(np.diag(matrix))
    order = [index for index in np.argsort(-wrong, axis=None, kind="stable")[:most] if wrong.flat[index]]
    pairs = [divmod(int(index), len(names)) for index in order]
    return [{"true": names[a], "predicted": names[b], "n": int(wrong[a, b]), "of": int(matrix[a].sum())} for a, b in pairs]
