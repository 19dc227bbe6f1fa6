"""The first sentence about a study, under rules that are fixed before any number is seen.

1. With one seed per arm nothing is claimed, not even which arm is ahead.
2. With two seeds the differences are stated with their intervals, but none is called supported: a spread that is estimated
   from two numbers has one degree of freedom, and a t test with it is unreliable.
3. With three or more seeds a difference counts as supported if both sources of variation agree: the paired t test over
   seeds gives p < 0.05 after Holm's correction over all comparisons of the study, and the 95 % interval of the paired
   bootstrap over test images leaves out zero (where the runs have predictions).
4. Of several supported differences the sentence names the largest of the first arm, which the study is about; if it has none,
   the largest of all.
5. Otherwise the sentence says that no difference could be shown, and how large one would have had to be.
6. A single arm has nothing to differ from: the sentence states its score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from softbias.pages.format import listed, of_the_data, p_value
from softbias.study.metric import ACCURACY, Metric

ALPHA = 0.05
LEAST_SEEDS = 3
RULES = (
    "With one seed per model nothing is claimed, not even which is ahead.",
    "With two seeds differences are stated with their intervals, but none is called supported: two numbers "
    "estimate a spread poorly.",
    "With three or more seeds a difference counts as supported if both sources of variation agree: the paired t test over "
    "seeds has p < 0.05 after Holm’s correction over all comparisons of the study, and the 95 % interval over test pictures "
    "leaves out zero.",
    "Of several supported differences the first sentence names the largest of the first model.",
)


def rules_for(seeds: int) -> tuple[str, ...]:
    """The rules for a study with at most that many seeds per arm: with one seed no test is made, and none is mentioned."""
    return RULES[:1] if seeds == 1 else RULES


@dataclass(frozen=True)
class Headline:
    """text: the sentence; supported: whether it states a supported difference; more: a sentence per other amount."""

    text: str
    supported: bool
    more: tuple[str, ...] = ()


def headline(comparisons: pd.DataFrame, summary: pd.DataFrame, about: str | None = None, metric: Metric = ACCURACY) -> Headline:
    """The sentence for a table of `compare_arms`: the first supported difference, from little data to much.

    summary   a row per arm and amount of data (`comparison.summarize`)
    about     the arm that the study is about, its first one; None: any
    metric    what the table compares
    """
    if not len(comparisons):
        return alone(summary, metric)
    most = int(comparisons["n"].max())
    if most == 0:
        return Headline("The models share no seed, so that their differences cannot be paired: nothing is claimed.", False)
    if most == 1:
        return Headline("One seed per model: nothing is claimed. Add seeds to compare them.", False)
    several = comparisons["data"].nunique() > 1
    sentences: list[tuple[str, bool]] = []
    for key, cell in comparisons.groupby(["data", "amount"], sort=False):
        data, amount = cast("tuple[str, float]", key)
        where = f"{with_amount(amount)}{f' of {data}' if several else ''}"
        found = sentence(cell[cell["n"] > 1], where[0].upper() + where[1:], about, metric)
        sentences += [] if found is None else [found]
    first = next((index for index, (_, supported) in enumerate(sentences) if supported), None)
    if first is None:
        return Headline(nothing_supported(comparisons, metric), False, tuple(text for text, _ in sentences))
    text, supported = sentences.pop(first)
    return Headline(text, supported, tuple(other for other, _ in sentences))


def alone(summary: pd.DataFrame, metric: Metric) -> Headline:
    """The score of a single arm, with all its data first."""
    texts = []
    for row in sorted(each(summary), key=lambda one: -one.amount):
        score = f"{metric.plus_minus(row.value, row.seeds_low, row.seeds_high)}{metric.suffix} {metric.title}"
        seeds = "one seed" if row.n == 1 else f"n = {row.n} seeds"
        texts.append(f"{row.arm} has {score} on {row.data} {with_amount(row.amount)} ({seeds}).")
    return Headline(f"{texts[0]} There is no other model to compare it with.", False, tuple(texts[1:]))


def timed_headline(summary: pd.DataFrame, metric: Metric) -> Headline:
    """The sentence about a metric whose repetitions are rounds of one measurement: its values, for the first data set."""
    rows = [row for row in each(summary) if row.data == summary["data"].iloc[0]]
    texts = [f"{row.arm} {metric.value(row.value)} ({metric.span(row.images_low, row.images_high)})" for row in rows[1:]]
    if not texts:
        return Headline("There is one model only: nothing to compare.", False)
    title = f"{metric.heading}, relative to {rows[0].arm}, median (quartiles)"
    return Headline(f"{title}: {listed(texts)}.", False)


def each(table: pd.DataFrame) -> list[Any]:
    """The rows, with columns as attributes."""
    return list(table.itertuples(index=False))


def with_amount(amount: float) -> str:
    """
    >>> with_amount(0.1), with_amount(1.0), with_amount(5.0)
    ('with 10 % of the data', 'with all the data', 'with 5 pictures per class')
    """
    return "with all the data" if amount == 1 else f"with {of_the_data(amount)}"


def sentence(cell: pd.DataFrame, where: str, about: str | None, metric: Metric) -> tuple[str, bool] | None:
    """About one data set at one amount: the largest supported difference of an arm, or of any, or else the largest of all."""
    if not len(cell):
        return None
    supported = cell[cell["supported"]]
    own = supported[(supported["arm"] == about) | (supported["other"] == about)]
    rows = own if len(own) else supported if len(supported) else cell
    row = max(each(rows), key=lambda one: abs(one.difference))
    better, worse = map(quoted, (row.arm, row.other) if metric.better(row.difference) else (row.other, row.arm))
    points = metric.difference(row.difference, (row.seeds_high - row.seeds_low) / 2)
    if row.supported:
        rest = others(supported, row)
        return f"{where}, {better} beats {worse} by {points} (n = {row.n} seeds, {p_value(row.p_holm)}){rest}.", True
    if row.n < LEAST_SEEDS:
        measured = f"{better} was {points} ahead of {worse}" if row.difference else f"{better} and {worse} scored the same"
        return f"{where}, {measured} over {row.n} seeds: too few seeds to call it supported.", False
    largest = f"the largest, {points} between {better} and {worse}, may be random (n = {row.n} seeds, {p_value(row.p_holm)})"
    if len(cell) == 1:
        return f"{where}, no difference between {better} and {worse} could be shown: {points}, n = {row.n} seeds.", False
    return f"{where}, no difference could be shown: {largest}.", False


def quoted(name: str) -> str:
    """The name of an arm inside a sentence, where a comma would divide it.

    >>> quoted("deit_nano"), quoted("IBiT, softmax")
    ('deit_nano', '“IBiT, softmax”')
    """
    return f"“{name}”" if "," in name else name


def others(supported: pd.DataFrame, row: Any) -> str:
    rest = len(supported) - 1
    return "" if rest <= 0 else f"; {rest} more {'pair differs' if rest == 1 else 'pairs differ'}"


def nothing_supported(comparisons: pd.DataFrame, metric: Metric) -> str:
    most, arms = int(comparisons["n"].max()), arms_of(comparisons)
    if most < LEAST_SEEDS:
        return f"No difference between {arms} is claimed: {most} seeds are too few to show one."
    needed = comparisons[comparisons["n"] >= LEAST_SEEDS]["detectable_family"].dropna()
    least = f"{metric.number(float(np.median(needed)))} {metric.unit}" if len(needed) else ""
    size = f" Only a difference of about {least} or more would probably have been found." if least else ""
    what = "" if metric.name == "accuracy" else f" in {metric.title}"
    return f"No difference{what} between {arms} could be shown with {most} seeds.{size}"


def arms_of(comparisons: pd.DataFrame) -> str:
    names = list(dict.fromkeys(map(quoted, [*comparisons["other"], *comparisons["arm"]])))
    return listed(names) if len(names) <= 4 else f"the {len(names)} models"
