"""results/: verdicts are counted right, links lead somewhere, packed studies make their reports again, as scipy has them."""

import html
import re
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from softbias.runs.run import Run
from softbias.study.archive import unpacked
from softbias.study.report import write_report
from softbias.study.report.results import Results, gather
from softbias.study.spec import StudySpec, read_study
from softbias.yaml_file import read_yaml

RESULTS = Path(__file__).parents[1] / "results"
PACKED = sorted((RESULTS / "evidence").glob("*.zip"))
STUDIES = sorted((RESULTS / "evidence").glob("*.yaml"))
VERDICTS = ("holds", "does not hold", "cannot be said yet")
MOST_BYTES = 20e6


def sections() -> dict[str, str]:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_the_summary_counts_the_verdicts():
    found = sections()
    assert len(rows(found[""])) == 5
    for name, *numbers in rows(found[""]):
        section = next(text for title, text in found.items() if title == name)
        verdicts = Counter(re.match(r"\*\*(.*?)\*\*", cells[-1].strip()).group(1) for cells in rows(section))
        assert set(verdicts) <= set(VERDICTS)
        assert [int(number) for number in numbers] == [verdicts.total(), *(verdicts[verdict] for verdict in VERDICTS)], name


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_the_evidence_is_small():
    assert PACKED and sum(path.stat().st_size for path in PACKED) < MOST_BYTES


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_of_the_evidence_can_be_read(path):
    assert StudySpec.from_dict(read_yaml(path, "the study")).name == path.stem


@pytest.mark.parametrize("path", PACKED, ids=lambda path: path.stem)
def test_a_packed_study_names_no_path_of_a_machine(path):
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith((".json", ".yaml", ".jsonl", ".csv")):
                assert not re.search(rb"/(home|root|tmp|work|Users)/", archive.read(name)), name


@pytest.mark.slow
@pytest.mark.parametrize("path", PACKED, ids=lambda path: path.stem)
def test_the_report_of_a_packed_study_is_drawn_again(path, tmp_path):
    with unpacked(path) as folder:
        page, study = write_report(folder, tmp_path), read_study(folder)
    assert study.title in html.unescape(page.read_text(encoding="utf-8"))
    assert len(list((tmp_path / "figures").glob("*.png"))) >= 3


@pytest.mark.parametrize("path", PACKED, ids=lambda path: path.stem)
def test_every_interval_of_the_evidence_is_that_of_scipy(path):
    """Scores are counted again from the answers to single pictures; nothing of the report's own statistics is used."""
    with unpacked(path) as folder:
        results = Results.of(gather([folder]))
        summary, differences, frame = results.summary, results.comparisons, results.material.frame
        frame = frame[frame["arm"].isin(summary["arm"])]  # without pre-trainings, which have no classes
        answers = [Run(run).answers() for run in frame["run"]]
    frame = frame.assign(counted=[float(np.mean(answer.labels == answer.predicted)) for answer in answers])
    cells = {key: cell.set_index("seed")["counted"] for key, cell in frame.groupby(["data", "amount", "arm"])}
    assert len(summary) == len(cells) and bool(len(differences)) == (frame["arm"].nunique() > 1)
    for row in summary.itertuples():
        values = cells[row.data, row.amount, row.arm].to_numpy()
        assert row.n == len(values) >= 3 and row.value == pytest.approx(values.mean())
        spread = stats.sem(values)  # of equal values it is 0, for which scipy has no interval
        expected = stats.t.interval(0.95, len(values) - 1, values.mean(), spread) if spread else (values.mean(),) * 2
        assert (row.seeds_low, row.seeds_high) == pytest.approx(expected)
    for row in differences.itertuples():
        pairs = pd.concat([cells[row.data, row.amount, arm] for arm in (row.arm, row.other)], axis=1, join="inner")
        test = stats.ttest_rel(*pairs.to_numpy().T)
        assert row.n == len(pairs)
        assert row.p == pytest.approx(test.pvalue)
        assert (row.seeds_low, row.seeds_high) == pytest.approx(tuple(test.confidence_interval(0.95)))
