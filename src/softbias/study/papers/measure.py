"""A named study from start to end, and what the measurements on its finished runs share: files, charts, and speed.

Measurements are written to <study>/extra; extra.json lists them for the report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas
import torch

from softbias import environment
from softbias.bench.measuring import interleaved, ratio
from softbias.bench.regularization import STEPS, Candidate, random_images
from softbias.bench.throughput import Setting, side_by_side
from softbias.errors import describe_error
from softbias.files import write_text
from softbias.models import create_model
from softbias.pages.charts import Axis, Chart, Series
from softbias.pages.html import frame_csv
from softbias.pages.static import save, sheet
from softbias.runs.run import Run
from softbias.stats import t_interval
from softbias.study.arms import Arm
from softbias.study.compare import Comparison, make_report, run_study
from softbias.study.comparison import metric_of, prepare
from softbias.study.frame import runs_frame
from softbias.study.papers.named import Measurement, NamedStudy, Scale
from softbias.study.progress import StudyDisplay
from softbias.study.report.provenance import MEASUREMENTS, MeasurementRow
from softbias.study.scores import EXTRA, Score, Scores, write_scores
from softbias.study.spec import StudySpec, read_study


def reproduce(
    named: NamedStudy,
    scale: Scale,
    spec: StudySpec,
    out: str | Path | None = None,
    *,
    report: bool = True,
    dry_run: bool = False,
    device: str = "auto",
    display: StudyDisplay | None = None,
    **settings: Any,
) -> Comparison:
    """`run_study` for a named study: the measurements on its finished runs come before the report."""
    display = display or StudyDisplay()
    for sentence in (*spec.warnings, *spec.notes):
        display.message(sentence)
    done = run_study(spec, out, report=False, dry_run=dry_run, device=device, display=display, **settings)
    if dry_run or not len(done.runs):
        return done
    if named.after is not None and done.failed:
        display.message("some runs failed, so nothing is measured on the others; the same command tries them again")
    elif named.after is not None:
        measure(named.after, scale, done.path, device, display)
    frame = runs_frame(done.path)
    made = make_report(done.path, display) if report else None
    return replace(done, runs=frame, report=made, metric=metric_of(frame, spec))


def measure(
    after: Callable[[Path, Scale, str], list[Measurement]], scale: Scale, folder: Path, device: str, display: StudyDisplay
) -> None:
    """Measure the finished runs, and list the results. The runs took long, so an error here must not hide them."""
    try:
        measured = after(folder, scale, environment.find_device(device))
    except Exception as error:
        if environment.variable("SOFTBIAS_DEBUG"):
            raise
        display.message(f"nothing could be measured on the runs ({describe_error(error)}); the same command tries it again")
        return
    rows = [
        MeasurementRow(
            title=one.title, about=one.about, figures=relative(one.figures, folder), tables=relative(one.tables, folder)
        )
        for one in measured
    ]
    (folder / EXTRA).mkdir(parents=True, exist_ok=True)
    write_text(folder / EXTRA / MEASUREMENTS, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    for one in measured:
        files = ", ".join(relative((*one.figures, *one.tables), folder))
        display.message(f"measured: {one.title} ({files})")


def relative(paths: Sequence[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def compared_runs(folder: Path) -> pandas.DataFrame:
    """The finished runs of a study that are compared, without pre-trainings."""
    return prepare(runs_frame(folder))


def arms_in_order(folder: Path, frame: pandas.DataFrame) -> list[Arm]:
    """The arms of a study that have finished runs."""
    return [arm for arm in read_study(folder).arms if arm.name in set(frame["arm"])]


def write_table(table: pandas.DataFrame, folder: Path, name: str) -> Path:
    path = folder / EXTRA / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, frame_csv(table))
    return path


@dataclass(frozen=True)
class ArmValue:
    """A value of an arm with its interval, and the published one."""

    arm: str
    value: float | None
    low: float | None = None
    high: float | None = None
    published: float | None = None

    @staticmethod
    def over_seeds(arm: str, values: Sequence[float], published: float | None = None) -> ArmValue:
        """The mean with its 95 % t interval; nan with a single seed."""
        return ArmValue(arm, sum(values) / len(values), *t_interval(values), published)


def draw_beside(
    panels: Mapping[str, Sequence[ArmValue]],
    path: Path,
    title: str,
    *,
    chance_level: float | None = None,
    log: bool = False,
    whose: tuple[str, str] = ("ours", "published"),
) -> Path:
    """A panel per title, a line per arm: our value as a dot with its interval, the published one as an open diamond.

    whose   the names of both in the legend, which say on what data or machine they were taken
    """
    edges = [chance_level] + [
        edge for ones in panels.values() for one in ones for edge in (one.value, one.low, one.high, one.published)
    ]
    x = Axis(title, log=log, range=with_margin([edge for edge in edges if edge is not None and math.isfinite(edge)], log))
    charts = []
    for name, values in panels.items():
        rows = {one.arm: float(len(values) - 1 - index) for index, one in enumerate(values)}
        series = []
        for one in values:
            if one.value is not None:
                low, high = (None if edge is None else [edge] for edge in (one.low, one.high))
                series.append(Series("across", whose[0], [one.value], [rows[one.arm]], 0, low, high))
            if one.published is not None:
                series.append(Series("published", whose[1], [one.published], [rows[one.arm]], 1))
        if chance_level is not None:
            series.append(Series("reference", "random", [chance_level] * 2, [-0.6, len(values) - 0.4]))
        ticks = [(row, arm) for arm, row in rows.items()]
        y = Axis(range=(-0.6, len(values) - 0.4), ticks=ticks, categories=True)
        charts.append(Chart(path.stem, name, series, x, y, names=whose))
    most = max(map(len, panels.values()))
    return save(sheet(charts, width=4.6, height=1.1 + 0.32 * most), path.parent, path.stem)


def with_margin(values: Sequence[float], log: bool) -> tuple[float, float]:
    """The range of the values with a margin on both sides.

    >>> with_margin([1.0, 3.0], False), with_margin([1.0, 4.0], True)
    ((0.9, 3.1), (0.9, 4.444))
    """
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.05
    return (0.9 * low, round(high / 0.9, 3)) if log else (low - margin, high + margin)


def machine(device: str) -> str:
    about = environment.describe_machine(device)
    return f"{about['hardware']} ({about['device']}, torch {about['torch']}, threads: {about['threads']})"


def image_side(frame: pandas.DataFrame) -> int:
    return int(Run(frame["run"].iloc[0]).summary()["img_size"][0])


def inference_speed(
    folder: Path, device: str, batch: int, rounds: int, published: Mapping[str, float], whose: str
) -> Measurement:
    """Images per second of every arm's model, and relative to the first arm's."""
    frame = compared_runs(folder)
    arms, side = arms_in_order(folder, frame), image_side(frame)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    setting = Setting("inference", batch, side, torch.device(device), dtype)
    first = arms[0].name
    rows: list[dict[str, Any]] = []
    for row in side_by_side({arm.name: builder(arm, side) for arm in arms}, setting, rounds, against=first):
        speed = published.get(row.what)
        low, high = row.quartiles or (1.0, 1.0)
        rows.append(
            {"arm": row.what, "images_per_second": row.value, "spread": row.spread, "relative": row.ratio or 1.0}
            | {"low": low, "high": high, "published": speed}
            | {"published_relative": speed / published[first] if speed else None}
            | {"how": str(setting), "hardware": machine(device)}
        )
    values = [ArmValue(row["arm"], row["relative"], row["low"], row["high"], row["published_relative"]) for row in rows]
    title = f"images/s at inference, relative to {first}"
    picture = draw_beside(
        {str(setting): values}, folder / EXTRA / "speed.png", title, log=True, whose=("ours, here", "published, other hardware")
    )
    about = f"Medians and quartiles over {rounds} interleaved rounds on {machine(device)}. Open diamonds: {whose}."
    return Measurement("Speed at inference", about, (picture,), (write_table(pandas.DataFrame(rows), folder, "speed"),))


def builder(arm: Arm, side: int) -> Callable[[], torch.nn.Module]:
    return lambda: create_model(arm.model, num_classes=1000, img_size=side, **arm.model_options)


def step_time(
    folder: Path, device: str, batch: int, rounds: int, published: Mapping[str, float], base: str, whose: str
) -> Measurement:
    """Milliseconds of a training step of every arm, and relative to the base's."""
    frame = compared_runs(folder)
    arms, side = arms_in_order(folder, frame), image_side(frame)
    images, labels = random_images(batch, side, torch.device(device))
    rows: list[dict[str, Any]] = []
    panels: dict[str, list[ArmValue]] = {}
    for mode in ("eager", "compiled, recorded") if device == "cuda" else ("eager",):
        prepared = {
            arm.name: Candidate(
                arm.model, next(iter(arm.recipe.get("regularize", ())), None), True, images, labels, mode, **arm.model_options
            )
            for arm in arms
        }
        steps = {name: each.steps for name, each in prepared.items()}
        timings = interleaved(steps, torch.device(device), rounds=rounds, warmup=2)
        how = f"{mode}, batch {batch}, {side} px"
        for name, timing in timings.items():
            middle, low, high = ratio(timings[base], timing)  # the time of this arm over the base's
            document = published[name] / published[base] if name in published else None
            rows.append(
                {"arm": name, "how": how, "milliseconds": 1e3 * timing.median / STEPS, "relative": middle}
                | {"low": low, "high": high, "memory": prepared[name].memory}
                | {"published_epoch_seconds": published.get(name), "published_relative": document, "hardware": machine(device)}
            )
            panels.setdefault(how, []).append(ArmValue(name, middle, low, high, document))
        for each in prepared.values():
            each.close()
        del prepared
        torch.compiler.reset()
    title = f"time of a training step, relative to {base}"
    picture = draw_beside(
        panels, folder / EXTRA / "step_time.png", title, log=True, whose=("ours, here", "published, other hardware")
    )
    how, values = next(iter(panels.items()))
    timed = {one.arm: Score(one.value, one.low, one.high) for one in values if one.value is not None}
    runs = {id: timed[arm] for id, arm in zip(frame["id"], frame["arm"], strict=True) if arm in timed}
    write_scores(Scores("step_time", runs, f"Relative to {base}, {how}, {rounds} interleaved rounds of {STEPS} steps."), folder)
    about = (
        f"Forward, backward and AdamW on synthetic pictures, all arms in turn, medians and quartiles over {rounds} rounds of "
        f"{STEPS} steps on {machine(device)}. Open diamonds: {whose}."
    )
    files = (write_table(pandas.DataFrame(rows), folder, "step_time"),)
    return Measurement("Time of a training step", about, (picture,), files)
