"""results/: verdicts are counted right, links lead somewhere, packed studies make their reports again, as scipy has them."""

import html
import re
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
CLAIMS = sorted((RESULTS / "claims").glob("*.md"))
VERDICTS = ("holds", "does not hold", "cannot be said yet")
MOST_BYTES = 20e6


def parts(page: Path) -> dict[str, str]:
    """The text under every heading of the second level, and what stands before the first."""
    texts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": texts[0], **dict(zip(texts[1::2], texts[2::2], strict=True))}


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def anchor(heading: str) -> str:
    """The name under which pages of a repository find a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def verdict(text: str) -> str:
    return re.match(r"\s*\*\*(.*?)\*\*", text).group(1).lower()


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d.,]*\d|\d", text))


def test_the_summary_counts_the_verdicts():
    found = parts(RESULTS / "README.md")
    assert len(rows(found[""])) == len(CLAIMS)
    for name, *counts in rows(found[""]):
        verdicts = Counter(verdict(cells[-1]) for cells in rows(found[name]))
        assert set(verdicts) <= set(VERDICTS)
        assert [int(count) for count in counts] == [verdicts.total(), *(verdicts[one] for one in VERDICTS)], name


@pytest.mark.parametrize("page", CLAIMS, ids=lambda page: page.stem)
def test_a_row_says_in_short_what_its_claim_has_in_full(page):
    index, claims = parts(RESULTS / "README.md"), parts(page)
    title = re.match("# (.*)", claims.pop("")).group(1)
    found = [re.match(r"\[(.*)\]\((.*)\)$", cells[0]).groups() for cells in rows(index[title])]
    assert found == [(claim, f"claims/{page.name}#{anchor(claim)}") for claim in claims]
    for cells, (claim, text) in zip(rows(index[title]), claims.items(), strict=True):
        assert verdict(cells[-1]) == verdict(text), claim
        assert numbers(" ".join(cells[1:])) <= numbers(text), claim


@pytest.mark.parametrize("page", [*sorted(RESULTS.glob("*.md")), *CLAIMS], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert heading in map(anchor, headings), f"{link}#{heading}"


def test_the_evidence_is_small():
    assert PACKED and sum(path.stat().st_size for path in PACKED) < MOST_BYTES


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_of_the_evidence_can_be_read(path):
    assert StudySpec.from_dict(read_yaml(path, "the study")).name == path.stem


@pytest.mark.parametrize("path", PACKED, ids=lambda path: path.stem)
def test_a_packed_study_names_no_path_of_a_machine(path):
    with unpacked(path) as folder:
        texts = [file for file in folder.rglob("*") if file.suffix in (".json", ".yaml", ".jsonl", ".csv")]
        assert len(texts) > 2
        for file in texts:
            assert not re.search(rb"/(home|root|tmp|work|Users)/", file.read_bytes()), file.relative_to(folder)


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
