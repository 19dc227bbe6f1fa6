"""The main metric of a study: which score of its runs the headline, tables, differences and published numbers are about.

A run's own scores are `accuracy`, `top5`, `balanced_accuracy` and `macro_f1`. The others are measured on finished runs, by a
named study, and kept in its folder (`study.scores`). Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from softbias.errors import unknown_name
from softbias.pages.format import NONE


@dataclass(frozen=True)
class Metric:
    """A score of runs, and how it is printed.

    name      its column in the frame of a study's runs
    title     in sentences; axis: on an axis
    share     a share of one, which is printed in percent; its differences are percentage points
    unit      what a difference is counted in
    digits    after the point, as printed
    higher    whether more is better
    over      what an interval of a single run is over
    repeated  "seeds": runs that differ in their seed are repetitions; "rounds": each arm was timed several times instead
    """

    name: str
    title: str
    axis: str
    share: bool = True
    unit: str = "points"
    digits: int = 1
    higher: bool = True
    over: str = "test pictures"
    repeated: str = "seeds"

    @property
    def heading(self) -> str:
        """
        >>> ACCURACY.heading
        'Accuracy'
        """
        return self.title[0].upper() + self.title[1:]

    @property
    def factor(self) -> float:
        """From values to printed numbers."""
        return 100.0 if self.share else 1.0

    @property
    def suffix(self) -> str:
        """After a printed value."""
        return " %" if self.share else "" if self.unit == "classes" else f" {self.unit}"

    @property
    def measured(self) -> bool:
        """Whether it is measured on finished runs, and not one of their own scores."""
        return self.name not in OWN

    def number(self, value: float, sign: bool = False) -> str:
        """
        >>> ACCURACY.number(0.7241), METRICS["top4_matching"].number(-0.2, sign=True), ACCURACY.number(float("nan"))
        ('72.4', '−0.20', '–')
        """
        if not math.isfinite(value):
            return NONE
        return f"{self.factor * value:{'+' if sign else ''}z.{self.digits}f}".replace("-", "−")

    def value(self, value: float) -> str:
        """
        >>> ACCURACY.value(0.7241), METRICS["top4_matching"].value(2.09), METRICS["step_time"].value(1.1)
        ('72.4 %', '2.09', '1.10 ×')
        """
        return f"{self.number(value)}{self.suffix}" if math.isfinite(value) else NONE

    def span(self, low: float, high: float, sign: bool = False) -> str:
        """
        >>> ACCURACY.span(-0.02, 0.031, sign=True)
        '−2.0 to +3.1'
        """
        return f"{self.number(low, sign)} to {self.number(high, sign)}" if math.isfinite(low) else NONE

    def plus_minus(self, value: float, low: float, high: float) -> str:
        """
        >>> ACCURACY.plus_minus(0.7241, 0.71, 0.738), ACCURACY.plus_minus(0.7, float("nan"), float("nan"))
        ('72.4 ± 1.4', '70.0')
        """
        half = (high - low) / 2
        return f"{self.number(value)} ± {self.number(half)}" if math.isfinite(half) else self.number(value)

    def difference(self, value: float, half: float) -> str:
        """The size of a difference in a sentence, with half of its interval.

        >>> ACCURACY.difference(-0.021, 0.005), METRICS["top4_matching"].difference(0.2, 0.05)
        ('2.1 ± 0.5 points', '0.20 ± 0.05 classes of Top-4 matching')
        """
        text = f"{self.number(abs(value))} ± {self.number(half)} {self.unit}"
        return text if self.name == "accuracy" else f"{text} of {self.title}"

    def for_choosing(self) -> Metric:
        """The same score of validation pictures.

        >>> ACCURACY.for_choosing().axis, METRICS["macro_f1"].for_choosing().axis
        ('validation accuracy', 'macro F1 on validation pictures')
        """
        axis, over = (words.replace("test", "validation") for words in (self.axis, self.over))
        return replace(self, axis=axis, over=over)

    def better(self, difference: float) -> bool:
        """Whether the first of two is the better one, given first minus second."""
        return difference >= 0 if self.higher else difference <= 0


OWN = ("accuracy", "top5", "balanced_accuracy", "macro_f1")  # scores that every run with test images has
METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric("accuracy", "accuracy", "test accuracy"),
        Metric("top5", "top-5 accuracy", "top-5 test accuracy"),
        Metric("balanced_accuracy", "balanced accuracy", "balanced test accuracy"),
        Metric("macro_f1", "macro F1", "macro F1 on test pictures"),
        Metric(
            "top4_matching", "Top-4 matching", "classes matched of four, mean",
            share=False, unit="classes", digits=2, over="scenes",
        ),
        Metric("background_accuracy", "accuracy on backgrounds", "accuracy on large backgrounds", over="scenes"),
        Metric(
            "step_time", "time of a training step", "time of a step, relative",
            share=False, unit="×", digits=2, higher=False, over="rounds", repeated="rounds",
        ),
    )
}  # fmt: skip
ACCURACY = METRICS["accuracy"]
ALIASES = {"top1": "accuracy", "top-1": "accuracy", "top-5": "top5"}  # names that published numbers may have


def find_metric(name: str) -> Metric:
    if name not in METRICS:
        raise unknown_name("metric", name, METRICS)
    return METRICS[name]
