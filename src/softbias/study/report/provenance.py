"""How the numbers of a report were made: data, hardware, time, versions, commands; and what a reader must know first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd
from PIL import Image

from softbias.errors import SoftbiasError
from softbias.json_file import read_json
from softbias.pages.format import amount_text, count, duration, listed
from softbias.pages.html import data_uri
from softbias.runs.page import VERSIONS
from softbias.runs.run import Run
from softbias.runs.start import describe
from softbias.schema import from_plain
from softbias.study.headline import each, with_amount
from softbias.study.metric import find_metric
from softbias.study.report.results import Material
from softbias.study.scores import EXTRA

MEASUREMENTS = "extra.json"  # the list of measurements on the runs of a study, in its folder `EXTRA`
BUDGETS = {
    "steps": "equal steps: every run takes as many steps as one on all the data",
    "epochs": "equal epochs: runs on less data take fewer steps",
    "flops": "equal computation: runs of costlier models take fewer steps",
}


class MeasurementRow(TypedDict):
    """What extra.json says about a measurement; files are relative to the study's folder."""

    title: str
    about: str
    figures: list[str]
    tables: list[str]


def notices(material: Material) -> list[str]:
    """What a reader must know first: data sets that were replaced, published numbers of other sets, missing runs."""
    found = list(material.study.warnings) if material.study else []
    if material.study and material.study.data_options.get("score") == "val":
        found.append("These runs are for choosing: validation pictures are scored here, and no test picture was looked at.")
    if material.study and material.study.metric != material.metric.name:
        wanted = find_metric(material.study.metric).title
        found.append(f"This study is about {wanted}, which no finished run has; {material.metric.title} is shown instead.")
    published = {number["data"] for number in material.study.published} if material.study else set()
    foreign = sorted(published - set(material.sets))
    without = [data for data in material.sets if data not in published]
    if foreign and without and material.metric.repeated == "seeds":  # times are relative, whatever the pictures are
        found.append(f"The published numbers are for {listed(foreign)}, ours for {listed(without)}: they cannot be compared.")
    found += below_baseline(material) if material.metric.repeated == "seeds" else []
    found += damage_text(material)
    missing = incomplete(material)
    if missing:
        found.append(missing)
    left_out = len(material.frame[~material.frame["pretext"].astype(bool)]) - len(material.runs)
    if left_out > 0:
        verb = "are" if left_out > 1 else "is"
        found.append(f"{count(left_out, 'finished run')} {verb} left out: without a test score, or a repetition.")
    return found


def damage_text(material: Material) -> list[str]:
    """How many runs are damaged, and what that costs, in a sentence; none where all are whole."""
    runs, out = len({one.run for one in material.damage}), len({one.run for one in material.left_out})
    if not runs:
        return []
    whole = len(material.frame) + out
    cost = f"{out} {'is' if out == 1 else 'are'} left out of every comparison" if out else "all scores are compared"
    reasons = "the table of all runs has the reasons"
    return [f"{runs} of {count(whole, 'finished run')} {'is' if runs == 1 else 'are'} damaged: {cost}; {reasons}."]


def below_baseline(material: Material) -> list[str]:
    """A sentence for every set on which no model is as good as a logistic regression on pixels."""
    found = []
    for data in material.sets:
        below = []
        for amount in material.amounts(data):
            cell = material.runs[(material.runs["data"] == data) & (material.runs["amount"] == amount)]
            baseline = pd.to_numeric(cell["baseline_accuracy"]).mean()  # nan without a baseline, which compares as false
            best = cell.groupby("arm")["accuracy"].mean().max()
            below += [f"{with_amount(amount)} {100 * best:.1f} against {100 * baseline:.1f} %"] if best < baseline else []
        if below:
            below = below if len(below) < 4 else [below[0], f"so on to {below[-1]}"]
            found.append(
                f"On {data} the best model is below a logistic regression on raw pixels, {listed(below)}: these models were "
                "trained too briefly, or on too few pictures, and their differences may not hold after better training."
            )
    return found


def incomplete(material: Material) -> str | None:
    """A sentence where arms lack seeds or amounts that others have."""
    counts = material.runs.groupby(["data", "amount", "arm"]).size()
    wanted = material.runs.groupby("data")["seed"].nunique()
    whole = sum(int(wanted[data]) * len(material.amounts(data)) * len(material.arms) for data in material.sets)
    absent = whole - int(counts.sum())
    if absent <= 0:
        return None
    return f"The study is not complete: {absent} of {whole} runs are missing. Arms are compared over the seeds that both have."


def facts(material: Material) -> list[tuple[str, str]]:
    """Name and value: runs, time, budget, hardware, versions."""
    frame = material.frame
    before = frame[frame["pretext"].astype(bool)]
    environments = [environment_of(run) for run in frame["run"]]
    seconds = float(pd.to_numeric(frame["seconds"]).sum())
    rows = [("Runs", f"{len(material.runs)} compared" + (f", {len(before)} pre-trainings" if len(before) else ""))]
    rows += [("Training", f"{duration(seconds)} of training in all, {duration(seconds / len(frame))} a run")]
    sizes = [
        f"{data}: {int(runs['n_train'].max()):,} training and {int(runs['n_test'].max()):,} test pictures"
        for data, runs in material.runs.groupby("data", sort=False)
    ]
    rows += [("Data", "; ".join(sizes))]
    if material.study:
        trials = f"{material.study.tune} trials for each arm on a validation part of the training data, never the test split"
        rows += [("Budget", BUDGETS[material.study.budget])]
        rows += [("Tuning", trials if material.study.tune else "none: every arm was trained with the same recipe")]
    rows += [("Recipe", text) for text in [recipes(material)] if text]
    rows += [("Start", text) for text in [starts(material)] if text]
    hardware = distinct(
        f"{one.get('hardware')} ({one.get('device')}, threads: {one.get('threads')})" for one in environments if one
    )
    rows += [("Hardware", hardware)] if hardware else []
    rows += [("Platform", text) for text in [distinct(one.get("platform") for one in environments)] if text]
    versions = [f"{tool} {distinct(one.get(tool) for one in environments)}" for tool in VERSIONS]
    rows += [("Versions", ", ".join(text for text in versions if not text.endswith(" ")))]
    rows += [("Source", f"git {text}") for text in [distinct(one.get("git") for one in environments)] if text]
    return rows


def environment_of(run: str) -> dict[str, Any]:
    with suppress(OSError, SoftbiasError):  # `Material.damage` has the reason
        return Run(run).environment()
    return {}


def recipes(material: Material) -> str:
    """The recipes of the compared runs, with their steps."""
    found = dict[str, list[int]]()
    for row in each(material.runs):
        try:
            one = Run(row.run).spec.recipe
        except SoftbiasError:  # a config of another version: the report is about the scores
            continue
        text = f"{one.optimizer}, learning rate {one.peak_lr():.3g} ({one.schedule}), weight decay {one.weight_decay:g}"
        found.setdefault(f"{text}, batch {one.batch_size}", []).append(int(row.steps))
    ends = [(text, min(steps), max(steps)) for text, steps in found.items()]
    return "; ".join(f"{text}, {low:,}{f' to {high:,}' if high > low else ''} steps" for text, low, high in ends)


def starts(material: Material) -> str:
    """The pretrained weights that arms began with, and their licenses; nothing where all began with fresh ones."""
    found = dict[str, dict[str, None]]()
    for row in each(material.runs):
        with suppress(SoftbiasError):  # a config of another version: the report is about the scores
            start = Run(row.run).spec.start
            if start.kind == "pretrained":
                found.setdefault(describe(start), {})[row.arm] = None
    return "; ".join(f"{', '.join(arms)}: {text}" for text, arms in found.items())


def distinct(values: Iterable[Any]) -> str:
    """Every value once: a reader should see that hardware or versions differ."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value))


def commands(material: Material) -> list[str]:
    """The commands that make this page again."""
    if material.folder is None:
        first = " ".join(typed(folder) for folder in material.given[:3])
        return [f"softbias report {first}{' …' if len(material.given) > 3 else ''}"]
    folder = typed(material.folder)
    again = [f"softbias study {folder}"] if (material.folder / "study.yaml").is_file() else []
    return [*again, f"softbias report {folder}"]


def typed(folder: Path) -> str:
    """A path as a user would type it in the working directory."""
    if folder.resolve().is_relative_to(Path.cwd()):
        return folder.resolve().relative_to(Path.cwd()).as_posix()
    return folder.name


def run_rows(material: Material) -> list[dict[str, str]]:
    """A row per run, with the address of its page, or with the command that draws it."""
    base = material.folder
    reasons = dict[str, list[str]]()
    for one in material.damage:
        reasons.setdefault(one.run, []).append(one.reason)
    empty = dict.fromkeys(("data", "amount", "seed", "steps", "time", "href", "command"), "")
    empty |= {"arm": "damaged", "accuracy": "–"}
    made = [{**empty, "id": Path(one.run).name, "damage": one.reason} for one in material.left_out]
    for row in each(material.runs):
        page = Run(row.run).page_path
        inside = base is not None and page.is_file() and page.resolve().is_relative_to(base.resolve())
        made.append(
            {
                "id": str(row.id),
                "arm": row.arm,
                "data": row.data,
                "amount": amount_text(row.amount),
                "seed": str(row.seed),
            }
            | {"steps": f"{row.steps:,}", "time": duration(row.seconds), "accuracy": material.metric.value(row.value)}
            | {"damage": "; ".join(reasons.get(row.run, []))}
            | {"href": Path(os.path.relpath(page, base)).as_posix() if inside and base is not None else ""}
            | {"command": "" if page.is_file() else f"softbias report {shlex.quote(typed(Path(row.run)))}"}
        )
    return made


def measured_after(folder: Path | None) -> list[dict[str, Any]]:
    """The measurements of a named study on its finished runs: title, text, pictures and tables of each."""
    path = (folder or Path()) / EXTRA / MEASUREMENTS
    if folder is None or not path.is_file():
        return []
    try:
        rows = from_plain(list[MeasurementRow], read_json(path), str(path))
    except (OSError, SoftbiasError) as error:  # it costs this part, and not the report
        return [{"title": "Measurements on the runs", "about": f"They cannot be shown: {error}", "pictures": [], "tables": []}]
    made = []
    for row in rows:
        figures, tables = ([folder / name for name in row[kind] if (folder / name).is_file()] for kind in ("figures", "tables"))
        made.append(
            {
                "title": row["title"],
                "about": row["about"],
                "pictures": [whole_picture(file, row["title"]) for file in figures],
                "tables": [
                    {"name": file.name, "uri": data_uri(file.read_bytes(), "text/csv")} for file in tables if file.is_file()
                ],
            }
        )
    return made


def whole_picture(file: Path, title: str) -> dict[str, Any]:
    with Image.open(file) as image:
        width, height = image.size
    alt = f"{title}: {file.stem.replace('_', ' ')}"
    return {"uri": data_uri(file.read_bytes()), "width": width, "height": height, "alt": alt}
