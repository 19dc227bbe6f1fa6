"""The intervals that results/claims and docs/paper.md quote are those of the packed studies that they name."""

import functools
import importlib.util
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats

from softbias.study.archive import unpacked
from softbias.study.report.results import gather

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "results" / "evidence"
PAGES = [*sorted((ROOT / "results" / "claims").glob("*.md")), ROOT / "docs" / "paper.md"]
QUOTED = re.compile(r"([+−]?\d+\.\d) \[(−?\d+\.\d), (−?\d+\.\d)\]")
ROUNDING = 0.0501  # points

DISTANCE = tuple(f"distance, layer {layer}" for layer in range(4))
STYLE = tuple(f"style, layer {layer}" for layer in range(4))
CONTRASTS = {  # means over several arms: those that are added, and those that are taken off
    "arvit-nano": [(DISTANCE, ("base",)), (STYLE, ("base",)), (STYLE, DISTANCE)],
    "locality-nano": [
        (tuple(f"{layers} gated, α = 2" for layers in (1, 3)), tuple(f"{layers} gated, α = 0.5" for layers in (1, 3))),
        (tuple(f"3 gated, α = {alpha}" for alpha in (0.5, 1, 2)), tuple(f"1 gated, α = {alpha}" for alpha in (0.5, 1, 2))),
    ],
}
ELSEWHERE = {  # quoted with a study, but no differences of its scores
    "accuracy on rotations": ["+0.2 [−0.5, 0.9]", "+0.9 [0.1, 1.6]"],
    "accuracy on held-out pictures after the first epoch": ["+5.2 [−11.0, 21.4]", "+2.1 [−0.8, 5.1]", "+0.7 [−0.7, 2.1]"],
    "the curve of head-start-nano": ["+2.3 [0.8, 3.7]", "2.3 [0.8, 3.7]", "−0.7 [−1.4, 0.0]", "+0.3 [−0.1, 0.7]"],
    "accuracy on training pictures": ["+6.0 [4.5, 7.5]", "6.0 [4.5, 7.5]"],
    "scenes of eth-nano.csv": ["−0.2 [−1.6, 1.1]", "−1.0 [−1.9, −0.1]", "+1.0 [0.1, 1.9]", "+1.3 [0.7, 1.9]"],
}


def blocks(page: Path) -> Iterator[tuple[list[str], str]]:
    """The paragraphs and entries of lists that name packed studies: their names, and the text on one line."""
    start = r"\n(?=\*\*\d+\.)" if page.stem == "paper" else r"\n(?=- |\n)"
    for block in re.split(start, page.read_text(encoding="utf-8")):
        names = [name for name in re.findall(r"[a-z][a-z0-9-]+", block) if (EVIDENCE / f"{name}.zip").is_file()]
        if names:
            yield sorted(set(names)), " ".join(block.split())


def number(text: str) -> float:
    return float(text.replace("−", "-"))


@functools.cache
def measured(study: str) -> np.ndarray:
    """Mean and interval over seeds of all scores, differences of two arms, and differences of these, in points.  # (n, 3)"""
    with unpacked(EVIDENCE / f"{study}.zip") as folder:
        runs = gather([folder]).runs
    cells = {key: cell.set_index("seed")["value"] * 100 for key, cell in runs.groupby(["data", "amount", "arm"])}
    pairs: dict[tuple[str, str, str], dict[float, pd.Series]] = {}
    for (data, amount, arm), (other_data, other_amount, other) in itertools.permutations(cells, 2):
        if (data, amount) == (other_data, other_amount):
            difference = cells[data, amount, arm] - cells[data, amount, other]
            pairs.setdefault((data, arm, other), {})[amount] = difference
    found = [*cells.values(), *(one for over in pairs.values() for one in over.values())]
    found += [a - b for over in pairs.values() for a, b in itertools.permutations(over.values(), 2)]
    for data, amount in {key[:2] for key in cells}:
        for plus, minus in CONTRASTS.get(study, []):
            if all((data, amount, arm) in cells for arm in (*plus, *minus)):
                means = [sum(cells[data, amount, arm] for arm in arms) / len(arms) for arms in (plus, minus)]
                found.append(means[0] - means[1])
    rows = []
    for values in (one.dropna() for one in found):
        if len(values) >= 3 and values.std() > 0:
            rows.append((values.mean(), *stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))))
    table = np.array(rows)
    return np.concatenate([table, -table[:, [0, 2, 1]]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_quoted_interval_is_that_of_its_study(page):
    missing = []
    for studies, block in blocks(page):
        known = np.concatenate([measured(study) for study in studies])
        for quoted in QUOTED.findall(block):
            text = "{} [{}, {}]".format(*quoted)
            row = [number(one) for one in quoted]
            if not (np.abs(known - row) < ROUNDING).all(1).any() and text not in itertools.chain(*ELSEWHERE.values()):
                missing.append((studies, text))
    assert missing == []


def test_a_changed_digit_is_caught():
    known = measured("sample-efficiency")
    assert (np.abs(known - [7.4, 6.4, 8.5]) < ROUNDING).all(1).any()
    assert not (np.abs(known - [7.5, 6.4, 8.5]) < ROUNDING).all(1).any()


@pytest.mark.slow
def test_the_figure_of_the_evidence_is_that_of_the_studies():
    spec = importlib.util.spec_from_file_location("draw_evidence", ROOT / "scripts" / "draw_evidence.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawn = Image.open(ROOT / "docs" / "evidence.png").info["Description"]
    assert drawn == script.as_text(script.tables()), "run python scripts/draw_evidence.py"
