"""Scores in the terminal, of a finished run or of an evaluation. A run's scores stand beside those of the baseline.

The page of the run uses the same rows, so that the two never disagree.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.pages import wording
from softbias.pages.format import duration, interval, memory, percent
from softbias.terminal import counted, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from softbias.runs.inference import Evaluation

PROBED = "logistic regression on frozen features, without augmentation"
TOP5_FROM = 11  # classes: with ten or fewer, the first five would be half of them or more
MOST_ROWS = 20  # of the table of classes; all of them are in summary.json and on the page

FILES = {"page": "report.html", "confusion": "confusion.png", "model": "model", "scores": "summary.json"}


def worst_first(classes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of classes by F1, the lowest first; classes without an F1 come last."""
    return sorted(classes, key=lambda row: (row["f1"] is None, row["f1"] or 0.0, row["name"]))


def verdict(summary: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Whether the model is above the baseline (features: above random ones), and a sentence about it; None without one."""
    test, baseline = summary.get("test"), summary.get("baseline")
    if (summary.get("neighbors") or {}).get("random_weights") is not None:
        return verdict_on_features(summary["neighbors"])
    if not test or not baseline or "accuracy_interval" not in test:
        return None
    gap = test["accuracy"] - baseline["accuracy"]
    (low, high), (its_low, its_high) = test["accuracy_interval"], baseline["accuracy_interval"]
    overlap = low <= its_high and its_low <= high
    doubt = " The two intervals overlap, so the difference may be random." if overlap else ""
    points = f"{abs(100 * gap):.1f} percentage points"
    if gap == 0:
        return False, "The model is exactly as good as a logistic regression on raw pixels, which is a far simpler method."
    if gap > 0:
        return True, f"The model is {points} above a logistic regression on raw pixels.{doubt}"
    advice = "" if overlap else " A far simpler method does better on these pictures."
    return False, f"The model is {points} below a logistic regression on raw pixels.{doubt}{advice}"


def verdict_on_features(found: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether features that were learned without labels are better than those of random weights."""
    gap, (low, _) = 100 * (found["accuracy"] - found["random_weights"]), found["accuracy_interval"]
    if gap <= 0:
        return False, "The features are no better than those of random weights: more epochs, or another objective, may help."
    doubt = "" if low > found["random_weights"] else " The difference may be random; more epochs may help."
    return not doubt, f"By their neighbors, the features are {gap:.1f} percentage points above those of random weights.{doubt}"


def print_summary(summary: Mapping[str, Any], path: Path, console: Console | None = None) -> None:
    """Print the scores of a finished run; without a terminal as plain text, one fact a line."""
    from rich.text import Text

    console = console or make_console()
    rows = score_rows(summary) + cost_rows(summary)
    width = max(len(name) for name, _, _ in rows)
    line(console, Text(run_title(summary), style="bold"))
    for name, value, aside in rows:
        style = "bold" if name in ("Accuracy", "Neighbors") else ""
        line(console, Text.assemble("  ", name.ljust(width + 2), (value, style), (f"  {aside}" if aside else "", "dim")))
    found = verdict(summary)
    if found:
        line(console, Text(found[1], style="green" if found[0] else "bold yellow"))
    if (summary.get("test") or {}).get("classes"):
        print_classes(summary["test"]["classes"], console)
    for label, file in FILES.items():
        if (path / file).exists():
            line(console, Text.assemble("  ", label.ljust(11), f"{path / file}{'/' if (path / file).is_dir() else ''}"))
    line(console, Text.assemble("  ", "next".ljust(11), ", ".join(next_steps(summary, path))))


def print_evaluation(found: Evaluation) -> None:

    console = make_console()
    for text in (*map(wording.text, found.notes), found.title):
        console.print(text, soft_wrap=True)
    width = max(len(name) for name, _, _ in found.rows)
    for name, value, aside in found.rows:
        console.print(f"  {name:{width}}  {value}  {aside}", soft_wrap=True)
    print_classes(found.scores["classes"], console)


def run_title(summary: Mapping[str, Any]) -> str:
    return f"{summary['data']} · {summary['model']} · seed {summary['seed']}"


def line(console: Console, text: Any) -> None:
    """One line; a narrow terminal wraps it, but a path is never cut."""
    console.print(text, soft_wrap=True)


def score_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and remark of every score of the run."""
    test, baseline = summary.get("test"), summary.get("baseline")
    if "neighbors" in summary:
        return neighbor_rows(summary)
    if not test:
        return without_test(summary)
    if "task" in test:  # of pre-training
        remark = f"{test['task']}, n = {test['n']:,}; the chance level is {percent(test['chance_level'])}"
        return [("Accuracy", percent(test["accuracy"]), remark)]
    remark = f"95 % interval {interval(test['accuracy_interval'])}, n = {test['n']:,} {test.get('what', 'test pictures')}"
    rows = [("Accuracy", percent(test["accuracy"]), remark)]
    if baseline:
        remark = f"{interval(baseline['accuracy_interval'])}, {baseline['name']}"
        rows += [("Baseline", percent(baseline["accuracy"]), remark)]
    for row in summary.get("probes") or ():
        rows += [(f"Probe, {row['backbone']}", percent(row["accuracy"]), f"{interval(row['accuracy_interval'])}, {PROBED}")]
    if test.get("top5") is not None and len(test.get("classes", ())) >= TOP5_FROM:
        rows += [("Top-5", percent(test["top5"]), "")]
    rows += [("Balanced accuracy", percent(test["balanced_accuracy"]), "mean recall of the classes")]
    rows += [("Macro-F1", percent(test["macro_f1"]), "")]
    rows += [("Calibration error", percent(test["calibration_error"]), "mean gap between confidence and accuracy (ECE)")]
    return rows


def neighbor_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Of a run that learned features alone: how often the nearest pictures have the same class."""
    found = summary["neighbors"]
    if found is None:
        return [("Neighbors", "no score", "the pictures have no classes; the page shows the nearest pictures of some")]
    remark = (
        f"95 % interval {interval(found['accuracy_interval'])}, n = {found['n']:,} {found['split']} pictures, by vote of the "
        f"{found['neighbors']} nearest training pictures; no label was used for training"
    )
    rows = [("Neighbors", percent(found["accuracy"]), remark)]
    if found["random_weights"] is not None:
        rows += [("Untrained", percent(found["random_weights"]), "the same with the features of random weights")]
    return [*rows, ("Guessing", percent(found["most_frequent"]), "always naming the most frequent class")]


def next_steps(summary: Mapping[str, Any], path: Path) -> list[str]:
    """The commands that go on from a finished run."""
    run = shlex.quote(str(path))
    if not summary["pretext"]:
        return [f"softbias predict {run} PICTURES", f"softbias app {run}"]
    unlabeled = "neighbors" in summary and summary["neighbors"] is None
    start = f"softbias fit {'PICTURES' if unlabeled else shlex.quote(str(summary['data']))} --start {run}"
    return [start, f"{start} --finetune linear{' --head-start logistic' if 'neighbors' in summary else ''}"]


def without_test(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    chosen = summary.get("validation_accuracy")
    if chosen is None:
        return [("Accuracy", "unknown", "there are neither test nor validation pictures")]
    n = summary["pictures"]["val"]
    return [("Validation", percent(chosen), f"n = {n:,}; not a test score: it is the best of all epochs on these pictures")]


def cost_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    speed, steps = f"{summary['images_per_second']:,.0f} images/s", summary["steps"]
    length = f"{counted(steps, 'step')}, {wording.epochs_in_words(summary['epochs'])}"
    rows = [("Speed", speed, f"{length} in {duration(summary['seconds'])}")]
    if summary.get("peak_memory"):
        rows += [("Peak memory", memory(summary["peak_memory"]), f"of {summary.get('peak_memory_of', 'the device')}")]
    return rows


def print_classes(classes: Sequence[Mapping[str, Any]], console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    worst = worst_first(classes)[:MOST_ROWS]
    rest = f", {len(worst)} of {len(classes)}" if len(worst) < len(classes) else ""
    line(console, Text(f"Classes, lowest F1 first{rest}"))
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 2, 0, 0))
    table.add_column("class", overflow="fold")
    for heading in ("n", "recall", "precision", "F1"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in worst:
        shares = (percent(row[share]) for share in ("recall", "precision", "f1"))
        table.add_row(Text(row["name"]), f"{row['n']:,}", *shares)
    console.print(table)
