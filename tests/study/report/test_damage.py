"""Reports of runs that are damaged, and of names that try to break a page: one row suffers, and never the page."""

import json
import os
import shutil
from html import unescape

import numpy as np
import pytest

from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.study.frame import read_runs
from softbias.study.report import write_report

from .handmade import CLASSES, html_of, make_run, make_study, text_of


def truncated(file):
    """Cut off in the middle; a config in the middle of its first word, because the first lines alone are a whole config."""
    file.write_bytes(file.read_bytes()[: 3 if file.suffix == ".yaml" else file.stat().st_size // 2])


def junk(file):
    file.write_bytes(b"\xff\x82\xc2 junk {\n" * 99)


def missing(file):
    file.unlink()


def other(file):
    file.write_text('{"a": 1}\n{"event": "epoch", "epoch": "x"}\n')


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("study"), ("deit_nano", "ibit_nano"), (1.0,), seeds=3)


@pytest.mark.parametrize("damage", [truncated, junk, missing, other])
@pytest.mark.parametrize("name", ["predictions.npz", "summary.json", "config.yaml", "metrics.jsonl", "environment.json"])
def test_a_damaged_file_costs_one_row_and_is_counted(small_study, tmp_path, quick_charts, capsys, name, damage):
    folder = tmp_path / "study"
    shutil.copytree(small_study, folder)
    victim = sorted(folder.glob("runs/ibit_nano*"))[1]
    damage(victim / name)
    assert main(["report", str(folder)]) == 0
    text, errors = text_of(folder / "report.html"), capsys.readouterr().err
    frame, found = read_runs(folder)
    torn = damage is truncated and name == "metrics.jsonl"  # a kill tears the last line, which is dropped
    if torn or (damage is missing and name in ("summary.json", "environment.json")):  # not finished, or no hardware is named
        assert found == () and errors == "" and "damaged" not in text
        return
    (one,) = found
    part = name in ("metrics.jsonl", "environment.json") or (damage is missing and name == "predictions.npz")
    assert one.run == str(victim) and one.left_out == (not part) and len(frame) == 5 + part
    assert "1 of 6 finished runs is damaged" in errors and "1 of 6 finished runs is damaged" in text
    assert name in one.reason and str(folder) not in text
    assert one.reason in unescape(html_of(folder / "report.html")).replace("<wbr>", "")


def test_several_damaged_runs_are_all_listed_and_a_report_of_them_alone_is_refused(small_study, tmp_path, quick_charts, capsys):
    folder = tmp_path / "study"
    shutil.copytree(small_study, folder)
    runs = sorted((folder / "runs").iterdir())
    for run in runs[:2]:
        truncated(run / "predictions.npz")
    write_report(folder)
    assert html_of(folder / "report.html").count('class="damaged"') == 2
    for run in runs[2:]:
        truncated(run / "summary.json")
    assert main(["report", str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"label": np.full(200, 10)}, {"label": np.full(200, -1)}, {"label": np.zeros(200)}, {"index": np.zeros((200, 1), int)},
        {"probabilities": np.zeros(200, np.float32)}, {"probabilities": np.array(["x"] * 200)}, {"index": np.array(5)},
    ],
)  # fmt: skip
def test_predictions_that_are_none_are_refused(tmp_path, columns):
    run = make_run(tmp_path, "deit_nano", 1.0, 0)
    with np.load(run / "predictions.npz") as file:
        whole = dict(file)
    np.savez(run / "predictions.npz", **(whole | columns))
    with pytest.raises(SoftbiasError, match=r"predictions\.npz"):
        Run(run).predictions()


NAMES = {
    "markers": "@@PLOTLY@@ @@SCRIPT@@ @@NUMBERS@@ {{ 7 * 7 }} {% raw %} {# #}",
    "markup": "</script></style></pre><b>\"'`&amp;<!-- --><script>alert(1)</script>",
    "directions": "abc\u202egnp.exe\u2066\u061cdef",
    "long": "ab" * 2000,
    "formula": "$\\frac{$ ^_%#~\\",
    "lines": "a\nb\r\tc",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_models_sets_classes_and_files_break_no_page(browser, tmp_path, quick_charts, name):
    classes = (f"{name}0", f"{name}1", *CLASSES[2:])
    for model in ("deit_nano", name):
        made = make_run(tmp_path / "made", "deit_nano", 1.0, 0, data=name, names=classes)
        run = made.rename(tmp_path / f"run-{len(model)}")
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"model": model, "id": f"id{len(model)}"}))
        config = Run(run).config_path
        config.write_text(config.read_text().replace("model: deit_nano", f"model: {json.dumps(model)}"))
        found = Run(run).predictions()
        Predictions(found.index, found.labels, found.probabilities, tuple(f"{name}.png" for _ in found.index)).write(
            run / "predictions.npz"
        )
    runs = sorted(tmp_path.glob("run-*"))
    for page in (write_report(runs, tmp_path / "out"), Run(runs[0]).page()):
        content = page.read_text()
        assert content.count("</script>") == content.count("</style>") == 1 and "\u202e" not in content
        view, complaints = browser.new_page(viewport={"width": 400, "height": 800}), []
        view.on("console", lambda message, complaints=complaints: complaints.append(message.text))
        view.on("dialog", lambda dialog, complaints=complaints: complaints.append(dialog.message) or dialog.dismiss())
        view.goto(page.as_uri())
        view.wait_for_selector("html[data-script]")
        assert complaints == [] and view.evaluate("document.documentElement.scrollWidth") <= 400
        view.close()


def test_unseen_characters_are_replaced_by_a_sign_in_every_page(tmp_path, quick_charts):
    folder = make_study(tmp_path, ("deit_nano",), (1.0,), seeds=1, study={"title": "a\u202eb"})
    assert "<h1>a\ufffdb</h1>" in html_of(write_report(folder))


def test_names_that_are_no_utf8_stand_escaped_in_a_study(tmp_path, quick_charts):
    name = os.fsdecode(b"caf\xe9")
    for number in (0, 1):
        made = make_run(tmp_path / os.fsdecode(b"run\xe9"), "deit_nano", 1.0, number, data=name, names=(name, *CLASSES[1:]))
        config = Run(made).config_path
        config.write_text(config.read_text().replace("model: deit_nano", f"model: {json.dumps(name)}"))
        summary = json.loads((made / "summary.json").read_text())
        (made / "summary.json").write_text(json.dumps(summary | {"model": name}))
    runs = sorted((tmp_path / os.fsdecode(b"run\xe9")).iterdir())
    content = html_of(write_report(runs, tmp_path / "out"))
    assert "caf\\xe9" in content
