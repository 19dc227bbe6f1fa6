"""What the tests of reports share."""

import io
from pathlib import Path

import pytest
from PIL import Image

from softbias.study.report import write_report

from .handmade import make_study


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> Path:
    more = {
        "title": "Which bias <helps>?", "question": "Does it?", "source": "Somebody 2021, table 1",
        "warnings": ["cifar10 is absent: the embedded set fashion takes its place"],
        "published": [
            {"data": "fashion", "arm": "deit_nano", "train_fraction": 0.1, "metric": "accuracy", "value": 61.25,
             "note": "table 1"},
            {"data": "imagenet", "arm": "resnet", "train_fraction": 1, "metric": "accuracy", "value": 0.7, "note": "table 2"},
        ],
    }  # fmt: skip
    folder = make_study(tmp_path_factory.mktemp("study"), study=more)
    write_report(folder)
    return folder


@pytest.fixture
def quick_charts(monkeypatch):
    """Drawing is the slow part of a report; where the test is about words, one white picture stands for all."""
    white = io.BytesIO()
    Image.new("RGB", (2, 2), "white").save(white, "PNG")
    monkeypatch.setattr("softbias.study.report.png", lambda chart: white.getvalue())
