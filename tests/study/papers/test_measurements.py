"""Measurements on the finished runs of a named study, and the report that lists them."""

import base64
from dataclasses import replace

import numpy as np
import pandas
import pytest
from PIL import Image

from softbias.study import progress
from softbias.study.compare import Comparison
from softbias.study.estimate import StudyPlan
from softbias.study.papers import Measurement, find_study, measure
from softbias.study.papers.measure import ArmValue
from softbias.study.report.provenance import measured_after


class Heard(progress.StudyDisplay):
    def __init__(self):
        super().__init__()
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def finished_study(monkeypatch, tmp_path, **more):
    """A named study whose runs are there at once, and what happens after them, in order."""
    happened = []
    outcome = Comparison(tmp_path, StudyPlan((), (), {}, {}), pandas.DataFrame({"arm": ["a"]}), **more)
    monkeypatch.setattr(measure, "run_study", lambda *_, **settings: happened.append(settings["report"]) or outcome)
    monkeypatch.setattr(measure, "make_report", lambda folder, _: happened.append("report") or folder / "report.html")
    return happened


def test_measurements_come_after_the_runs_and_before_the_report_which_lists_them(monkeypatch, tmp_path):
    happened = finished_study(monkeypatch, tmp_path)
    (tmp_path / "extra").mkdir()
    Image.new("RGB", (8, 4)).save(tmp_path / "extra" / "a.png")
    (tmp_path / "extra" / "a.csv").write_text("arm\n1\n")

    def after(folder, scale, device):
        happened.append((scale, device))
        return [Measurement("A thing", "in words", (folder / "extra" / "a.png",), (folder / "extra" / "a.csv",))]

    named = replace(find_study("convit-sizes"), after=after)
    done = measure.reproduce(named, "smoke", named.build("paper"), tmp_path, device="cpu")
    assert happened == [False, ("smoke", "cpu"), "report"] and done.report == tmp_path / "report.html"
    (one,) = measured_after(tmp_path)
    assert one["title"] == "A thing" and one["about"] == "in words"
    assert one["pictures"][0]["uri"].startswith("data:image/png;base64,") and one["pictures"][0]["width"] == 8
    assert base64.b64decode(one["tables"][0]["uri"].split(",")[1]) == b"arm\n1\n"
    assert measured_after(None) == measured_after(tmp_path / "elsewhere") == []


def test_a_measurement_that_fails_is_reported_and_hides_neither_runs_nor_report(monkeypatch, tmp_path):
    happened = finished_study(monkeypatch, tmp_path)

    def after(folder, scale, device):
        raise RuntimeError("out of memory")

    named = replace(find_study("convit-sizes"), after=after)
    heard = Heard()
    done = measure.reproduce(named, "smoke", named.build("paper"), tmp_path, device="cpu", display=heard)
    assert done.report is not None and happened == [False, "report"]
    assert any("RuntimeError: out of memory" in text for text in heard.messages)


def test_nothing_is_measured_where_runs_failed(monkeypatch, tmp_path):
    happened = finished_study(monkeypatch, tmp_path, failed=(("a", "why"),))
    named = replace(find_study("convit-sizes"), after=lambda *_: happened.append("measured"))
    heard = Heard()
    measure.reproduce(named, "smoke", named.build("paper"), tmp_path, device="cpu", display=heard)
    assert happened == [False, "report"] and any("some runs failed" in text for text in heard.messages)


def test_the_interval_over_seeds_is_student_s():
    found = ArmValue.over_seeds("a", [1.0, 2.0, 3.0])
    assert found.value == 2 and found.high - 2 == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert found.low == pytest.approx(4 - found.high)
    assert ArmValue.over_seeds("a", [5.0]).value == 5 and np.isnan(ArmValue.over_seeds("a", [5.0]).low)


@pytest.mark.parametrize("content", [b"", b'[{"title": 1}]', b"\xff"])
def test_a_damaged_list_of_measurements_costs_its_part_of_the_report(tmp_path, content):
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "extra.json").write_bytes(content)
    (part,) = measured_after(tmp_path)
    assert "extra.json" in part["about"] and part["pictures"] == part["tables"] == []
