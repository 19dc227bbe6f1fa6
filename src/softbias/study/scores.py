"""Scores that were measured on the finished runs of a study: <study>/extra/scores.json, by the id of the run.

A named study writes them after its runs; the frame of its runs has them as columns, so that everything that reads runs can be
about them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from softbias.bounds import Finite, LongText, ShortText
from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.json_file import MOST_BYTES_OF_TABLES, read_json
from softbias.schema import Checked, from_plain
from softbias.study.metric import find_metric

EXTRA, SCORES = "extra", "scores.json"


@dataclass(frozen=True)
class Score(Checked):
    """A value with the 95 % interval of its own measurement, such as that over scenes."""

    value: Finite
    low: Finite | None = None
    high: Finite | None = None


@dataclass(frozen=True)
class Scores(Checked):
    """The scores of a study's runs.

    metric       its name (`study.metric`)
    setting      how it was measured, in a few words
    chance_level the value of random answers
    runs         by the id of the run
    """

    metric: ShortText
    runs: Mapping[str, Score] = field(default_factory=dict)
    setting: LongText = ""
    chance_level: Finite | None = None


def write_scores(scores: Scores, folder: Path) -> None:
    path = folder / EXTRA / SCORES
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asdict(scores), indent=1) + "\n")


def read_scores(folder: Path) -> Scores | None:
    """The measured scores of a study; None where nothing was measured, or what was measured cannot be read."""
    path = folder / EXTRA / SCORES
    if not path.is_file():
        return None
    try:
        found: Scores = from_plain(Scores, read_json(path, MOST_BYTES_OF_TABLES), str(path))
        find_metric(found.metric)
    except (OSError, SoftbiasError):  # the report then names the metric that it lacks
        return None
    return found


def columns_of(scores: Scores, id: str) -> dict[str, Any]:
    """The columns of a run in the frame: the metric and the edges of its interval; nothing for a run that was not measured."""
    found = scores.runs.get(id)
    if found is None:
        return {}
    return {scores.metric: found.value, f"{scores.metric}_low": found.low, f"{scores.metric}_high": found.high}
