"""The report of a study made by hand: what stands in it, and what lies beside it."""

import json
import re
from html import escape

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from softbias.cli import main
from softbias.pages.charts import Chart, Series
from softbias.runs.predictions import Predictions
from softbias.study.report import CHARTS, write_report
from softbias.study.report.examples import Votes, answers_of, disagreements
from softbias.study.report.matching import matching_table
from softbias.study.report.results import ReportBlock

from .handmade import groups_of, html_of, make_run, make_study, text_of


def test_the_report_and_every_figure_as_csv_and_png_and_every_table_as_latex(study):
    keys = re.findall(r'data-chart="([^"]+)"', html_of(study / "report.html"))
    assert len(keys) == len(set(keys)) == 1 + 1 + 1 + 6 + 4 + 2 + 1  # the last: published on another set
    for key in keys:
        assert len(pd.read_csv(study / "figures" / f"{key}.csv")), key
        assert Image.open(study / "figures" / f"{key}.png").width > 700, key
    tables = {file.stem for file in (study / "figures").glob("*.tex")}
    assert tables == {
        "accuracy-fashion", "classes-fashion-10", "classes-fashion-100", "cost-fashion", "differences-fashion",
        "fitted-fashion", "matching-fashion", "published",
    }  # fmt: skip
    for table in tables:
        assert r"\toprule" in (study / "figures" / f"{table}.tex").read_text()


def test_the_numbers_are_those_of_the_runs(study):
    cells = {}
    for summary in study.glob("runs/*/summary.json"):
        row = json.loads(summary.read_text())
        cells.setdefault((row["model"], row["train_fraction"]), []).append(row["test"]["accuracy"])
    table = pd.read_csv(study / "figures" / "sample-efficiency-fashion.csv")
    ours = table[table["kind"] == "measured"].set_index(["arm", "amount"])
    assert len(ours) == len(cells) == 9
    text = text_of(study / "report.html")
    for (arm, fraction), values in cells.items():
        assert ours.loc[(arm, fraction), "accuracy"] == pytest.approx(np.mean(values))
        assert f"{100 * np.mean(values):.1f} ± " in text
    for part in (
        "27 runs · 3 models · fashion · 10, 30, 100 % of the training data · 3 seeds each", "Does it?",
        "Somebody 2021, table 1",
        "cifar10 is absent: the embedded set fashion takes its place", "equal steps",
        "torch 2.15", "x (cpu, threads: 1)", "git abc", "5 min 38 s of training in all", "softbias report",
        "corrected by Holm over 9 comparisons", "With 10 % of the data, ibit_nano beats deit_nano by", "n = 3 seeds",
        "raw-pixel baseline", "Over seeds:", "Over test pictures:", "none: every arm was trained with the same recipe",
        "adamw, learning rate 0.001 (cosine), weight decay 0.05, batch 256, 100 steps",
    ):  # fmt: skip
        assert part in text, part
    assert "below a logistic regression" not in text


def test_the_command_of_the_page_continues_the_study_in_its_own_folder(study, monkeypatch, tmp_path):
    from softbias.study.report.provenance import commands
    from softbias.study.report.results import gather

    monkeypatch.chdir(study.parent)
    command = commands(gather([study]))[0].split()
    assert command[:2] == ["softbias", "study"]
    asked = []
    monkeypatch.setattr("softbias.cli.compare.run", lambda spec, options: asked.append(options.out) or 0)
    assert main(command[1:]) == 0 and asked[0].resolve() == study.resolve()


def test_models_below_the_baseline_are_not_praised_in_silence(tmp_path, quick_charts):
    text = text_of(write_report(make_study(tmp_path, ("deit_nano", "ibit_nano"), (0.1, 1.0), seeds=1, baseline=0.75)))
    best = {  # ibit_nano
        row["train_fraction"]: row["test"]["accuracy"]
        for row in (json.loads(file.read_text()) for file in tmp_path.glob("runs/ibit*/summary.json"))
    }
    assert best[0.1] < 0.75 < best[1.0]
    sentence = f"below a logistic regression on raw pixels, with 10 % of the data {100 * best[0.1]:.1f} against 75.0 %: these"
    assert sentence in text  # and nothing about all the data, where one model is above it


def test_published_numbers_are_marked_and_strangers_are_named(study):
    page = study / "report.html"
    ((_, points),) = groups_of(page, "sample-efficiency-fashion", "published")  # the other number is of another set
    text = text_of(page)
    assert "cannot be compared" not in text and "61.25 %" in points[0][2].replace("\xa0", " ")
    assert "accuracy 61.25 " in text and "accuracy 70.00 –" in text  # all the digits


@pytest.mark.parametrize(
    ("data", "fraction", "amounts"), [("imagenet", 1, (0.1, 1.0)), ("imagenet", 1, (1.0,)), ("fashion", 1, (0.1,))]
)
def test_no_axis_has_ours_and_a_published_number_of_another_set_or_amount(tmp_path, quick_charts, data, fraction, amounts):
    published = {"data": data, "arm": "deit_nano", "train_fraction": fraction, "value": 0.7, "note": "t. 2"}
    page = write_report(make_study(tmp_path, ("deit_nano",), amounts, seeds=1, study={"published": [published]}))
    assert groups_of(page, "sample-efficiency-fashion", "published") == []
    ((_, points),) = groups_of(page, f"published-{data}", "published")
    assert "70 %" in points[0][2].replace("\xa0", " ") and f"published on {data}" in text_of(page)
    assert groups_of(page, f"published-{data}", "across") == groups_of(page, f"published-{data}", "line") == []


def test_numbers_of_a_set_that_is_not_here_come_with_a_warning(tmp_path, quick_charts):
    published = {"data": "imagenet", "arm": "deit_nano", "train_fraction": 1, "value": 0.7, "note": "t. 2"}
    page = write_report(make_study(tmp_path, ("deit_nano",), (1.0,), seeds=1, study={"published": [published]}))
    (notice,) = [text for text in re.findall(r'<p class="verdict below">(.*?)</p>', page.read_text()) if "imagenet" in text]
    assert "fashion" in notice


def test_a_study_for_choosing_says_that_no_test_picture_was_looked_at(tmp_path, quick_charts):
    chosen = write_report(make_study(tmp_path / "a", ("deit_nano",), (1.0,), seeds=1, study={"data_options": {"score": "val"}}))
    plain = write_report(make_study(tmp_path / "b", ("deit_nano",), (1.0,), seeds=1))
    assert "validation accuracy" in chosen.read_text() and "validation accuracy" not in plain.read_text()
    assert "no test picture was looked at" in text_of(chosen) and "no test picture was looked at" not in text_of(plain)


@pytest.mark.parametrize("name", ["@@PLOTLY@@ @@NUMBERS@@", "</script><b>", "{{ title }} {% raw %}", "\\u003c $x$ &amp;"])
def test_a_title_may_hold_anything(tmp_path, quick_charts, name):
    page = write_report(make_study(tmp_path, ("deit_nano",), (1.0,), seeds=1, study={"title": name}))
    assert f"<h1>{escape(name, quote=False)}</h1>" in html_of(page).replace("\xa0", " ")
    assert page.read_text().count("</script>") == 1


def test_a_chart_is_a_function_and_a_line_in_the_registry(tmp_path, quick_charts, monkeypatch):
    def blocks(results, data):
        table = pd.DataFrame({"x": [1.0], "y": [2.0]})
        return [
            ReportBlock([Chart(f"mine-{data}", "My chart", [Series("dots", "s", [1.0], [2.0], 0)], table=table)], "My words.")
        ]

    monkeypatch.setitem(CHARTS, "mine", ("My section", blocks))
    page = write_report(make_study(tmp_path, ("deit_nano",), (1.0,), seeds=1))
    assert 'href="#mine"' in html_of(page) and 'data-chart="mine-fashion"' in html_of(page) and "My words." in text_of(page)
    assert (tmp_path / "figures" / "mine-fashion.csv").is_file() and (tmp_path / "figures" / "mine-fashion.png").is_file()


def test_the_page_has_the_images_on_which_models_disagree(study):
    html = html_of(study / "report.html").split('id="examples"')[1].split("</section>")[0]
    assert "Only ibit_nano is right" in html and html.count('<figure class="card">') == html.count("<img") > 6


def test_a_run_has_a_link_to_its_page_or_the_command_that_draws_it(tmp_path, quick_charts):
    study = make_study(tmp_path, seeds=1, fractions=(1.0,), val=False)
    runs = sorted(path.parent for path in study.glob("runs/*/summary.json"))
    (runs[0] / "report.html").write_text("<p>a page</p>")
    rows = html_of(write_report(study)).split('aria-label="All runs"')[1].split("</table>")[0]
    assert f'href="runs/{runs[0].name}/report.html"' in rows
    assert rows.count("<code>softbias report ") == len(runs) - 1 and f"{runs[1].name}</code>" in rows


def test_nothing_is_asked_from_outside_and_names_are_escaped(study):
    html = html_of(study / "report.html")
    assert "<helps>" not in html and "Which bias &lt;helps&gt;?" in html
    assert not re.search(r"https?://|url\(|@import|<iframe|<object", html)
    addresses = re.findall(r'(?:src|href|srcset)="([^"]*)"', html)
    assert len(addresses) > 30 and all(address.startswith(("data:", "#")) for address in addresses)
    images = sum(len(uri) for uri in addresses if uri.startswith("data:image"))
    assert (study / "report.html").stat().st_size - images < 1_000_000


def test_with_one_seed_the_report_claims_nothing(tmp_path, quick_charts):
    text = text_of(write_report(make_study(tmp_path, seeds=1, fractions=(0.1, 1.0), val=False)))
    assert "One seed per model: nothing is claimed" in text and "beats" not in text and "ahead of" not in text
    assert not re.search(r"\bt test|\bt interval|Holm|bootstrap over seeds|supported|power of|No test|p <", text)
    assert "No curve is fitted" in text and "Training accuracy · 10 %" in text and "Validation accuracy" not in text


def test_with_two_seeds_the_report_claims_nothing_and_says_why(tmp_path, quick_charts):
    text = text_of(write_report(make_study(tmp_path, ("deit_nano", "ibit_nano"), (1.0,), seeds=2)))
    assert "2 seeds are too few to show one" in text and "± 12.7 standard errors" in text and "beats" not in text
    assert "Accuracy with all data" in text


def test_without_the_data_the_cards_name_the_images_and_the_reason(tmp_path, quick_charts):
    page = write_report(make_study(tmp_path, ("deit_nano", "ibit_nano"), (1.0,), seeds=1, data="gone/pictures"))
    text = text_of(page)
    assert re.search(r"The pictures are not shown, because the data set could not be read: .*gone/pictures", text)
    assert "picture 50" in text and "Only ibit_nano is right" in text


@pytest.mark.parametrize(("test_curve", "column"), [(False, "val_accuracy"), (True, "test_accuracy")])
def test_accuracy_on_held_out_images_is_drawn_over_epochs_and_that_on_test_images_only_where_asked(
    tmp_path, quick_charts, test_curve, column
):
    make_study(tmp_path, ("deit_nano", "convit_nano"), (1.0,), seeds=1, study={"test_curve": test_curve})
    for file in tmp_path.glob("runs/*/metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**row, "test_accuracy": 0.01 * row["epoch"]}) + "\n" for row in rows))
    page = write_report(tmp_path)
    (drawn,) = (tmp_path / "figures").glob("learning-*-accuracy.csv")
    table = pd.read_csv(drawn)
    wanted = [{"val_accuracy": 0.15, "test_accuracy": 0.01}[column] * epoch for epoch in (1, 2, 3, 4)]
    assert table[table["arm"] == "deit_nano"][column].tolist() == pytest.approx(wanted)
    assert table[table["arm"] == "deit_nano"]["epoch"].tolist() == [1, 2, 3, 4]
    assert ("it chose nothing" in text_of(page)) == test_curve


def test_loose_runs_make_a_report_elsewhere_and_missing_ones_are_counted(tmp_path, quick_charts):
    runs = [make_run(tmp_path, model, 0.1, seed) for model, seed in (("deit_nano", 0), ("deit_nano", 1), ("ibit_nano", 0))]
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "new")]) == 0
    text = text_of(tmp_path / "new" / "report.html")
    assert "1 of 4 runs are missing" in text and "3 runs compared" in text and not (tmp_path / "report.html").exists()


def test_a_report_of_nothing_is_a_mistake_in_one_line(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    assert main(["report", str(tmp_path)]) == 2 and "no finished run" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2 and "nowhere" in capsys.readouterr().err


def test_disagreements_are_found():
    right = np.array([[1, 0, 1, 0, 0.3], [0, 0, 1, 0.6, 1], [0.4, 0, 1, 1, 1]])  # three arms, five pictures
    tested = Predictions(np.arange(5), np.zeros(5, np.int64), np.zeros((5, 3), np.float32))
    counts, groups = disagreements(Votes(["a", "b", "c"], tested, right, np.zeros((3, 5), np.int64), ["x"], ""))
    assert counts == {"all are right": 1, "all are wrong": 1, "they disagree": 3}
    found = {title: list(order) for title, order in groups}
    assert found["Only a is right"] == [0] and found["Only a is wrong"] == [4, 3]  # the clearer one first
    assert found["Only b is right"] == found["Only c is wrong"] == []


def test_an_arm_that_is_wrong_is_quoted_with_a_wrong_answer():
    table, labels = np.array([[2, 1, 0], [2, 0, 1], [0, 2, 2]]), np.array([2, 2, 2])  # three seeds, three pictures
    assert answers_of(table, labels).tolist() == [2, 0, 0]  # two of three are right; a tie of wrong ones; the same


def test_data_to_match_is_a_bound_where_it_was_not_reached_and_has_edges_of_two_digits():
    row = {"data": "d", "arm": "a", "other": "b", "n": 3, "target": 0.7, "low": 0.4693, "smallest": 0.05, "largest": 1.0}
    rows = [
        row | {"amount": 0.05, "needed": np.inf, "high": np.inf},
        row | {"amount": 0.2, "needed": 0.6336, "high": 0.997},
    ]
    unreached, reached = ([cell.main for cell in line] for line in matching_table(pd.DataFrame(rows), "d").rows)
    assert unreached[-3:] == ["> 100 %", "47 % to > 100 %", "> 20 ×"]
    assert reached[-3:] == ["63.4 %", "47 % to 99.7 %", "3.2 ×"]


def test_captions_in_latex_say_what_the_intervals_are(study):
    accuracy, differences = ((study / "figures" / f"{name}-fashion.tex").read_text() for name in ("accuracy", "differences"))
    assert r"$\pm$ is the 95 \% t interval over n seeds" in accuracy and "(Wilson)" in accuracy
    assert "9 comparisons" in differences
