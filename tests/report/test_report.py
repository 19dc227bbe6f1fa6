"""The report of a study made by hand: what stands in it, what lies beside it, and how it behaves in a real browser."""

import io
import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from softbias.cli import main
from softbias.report import write_report
from softbias.report.chart import COLORS, DASHES, MARKERS, PALETTE, color_of, dash_of, marker_of
from softbias.report.examples import Votes, answers_of, disagreements
from softbias.report.gathering import Answers
from softbias.report.page import STROKES, SYMBOLS
from softbias.report.tables import Cell, Table, latex, matching_table
from softbias.training.recipe import Recipe
from softbias.training.run import RunSpec, write_config
from softbias.training.scores import score

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
SKILL = {"deit_nano": 0.55, "convit_nano": 0.60, "ibit_nano": 0.70}
ENVIRONMENT = {
    "softbias": "0.1.0",
    "git": "abc",
    "python": "3.11",
    "torch": "2.15",
    "device": "cpu",
    "hardware": "x",
    "threads": 1,
}
TESTED = np.arange(5000, 5200)  # pictures of the embedded set, of class k mod 10


def make_run(folder, model, fraction, seed, *, data="fashion", n=200, names=CLASSES, val=True, pixels=0.5):
    """A run directory as `fit` would leave it, with predictions as good as the model's skill."""
    generator = np.random.default_rng([len(model), int(fraction), seed])
    index = TESTED[:n]
    labels = index % 10
    skill = SKILL.get(model, 0.5) + 0.08 * np.log10(fraction / 10) + 0.005 * seed
    hard = np.random.default_rng(7).random(n)  # the same pictures are hard for all
    right = hard + generator.normal(0, 0.1, n) < skill
    predicted = np.where(right, labels, (labels + generator.integers(1, 10, n)) % 10)
    probabilities = (0.9 * np.eye(10)[predicted] + 0.01).astype(np.float32)
    spec = RunSpec(data, model, Recipe(), seed=seed, fraction=fraction)
    run = folder / f"{model}-{fraction:g}-{seed}-{spec.id}"
    run.mkdir(parents=True)
    summary = {
        "status": "finished", "id": spec.id, "data": data, "model": model, "seed": seed, "fraction": fraction,
        "objective": "supervised", "parameters": 200_000 + len(model), "macs": 3_600_000, "steps": 100, "epochs": 4.0,
        "pictures": {"train": int(50 * fraction), "val": 0}, "img_size": [32, 32], "seconds": 12.5,
        "images_per_second": 900.0 + len(model), "peak_memory": 2**29 + len(model) * 2**20, "notes": [],
        "test": score(probabilities, labels, names),
        "baseline": {"name": "pixels", "accuracy": pixels, "accuracy_interval": [pixels - 0.05, pixels + 0.05]},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    rows = [{"event": "epoch", "epoch": e, "step": 25 * e, "loss": 2 / e, "accuracy": 0.2 * e} for e in (1, 2, 3, 4)]
    rows = [row | ({"val_accuracy": 0.15 * row["epoch"]} if val else {}) for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (run / "config.yaml").write_text(write_config(spec))
    table = {"index": index, "label": labels, "predicted": predicted} | {f"p{k}": probabilities[:, k] for k in range(10)}
    pd.DataFrame(table).to_parquet(run / "predictions.parquet")
    return run


def make_study(folder, models=tuple(SKILL), fractions=(10.0, 30.0, 100.0), seeds=3, study=None, **options):
    for model in models:
        for fraction in fractions:
            for seed in range(seeds):
                make_run(folder / "runs", model, fraction, seed, **options)
    plain = {"name": "mine", "data": [options.get("data", "fashion")], "arms": list(models), "fractions": list(fractions)}
    plain |= {"seeds": seeds, "budget": "steps", **(study or {})}
    (folder / "study.yaml").write_text(yaml.safe_dump(plain))
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    more = {
        "title": "Which bias <helps>?", "question": "Does it?", "source": "Somebody 2021, table 1",
        "notes": ["cifar10 is absent: the embedded set fashion takes its place"],
        "published": [
            {"data": "fashion", "arm": "deit_nano", "fraction": 10, "metric": "accuracy", "value": 61.25, "note": "table 1"},
            {"data": "imagenet", "arm": "resnet", "fraction": 100, "metric": "accuracy", "value": 0.7, "note": "table 2"},
        ],
    }  # fmt: skip
    folder = make_study(tmp_path_factory.mktemp("study"), study=more)
    write_report(folder)
    return folder


@pytest.fixture
def quick_pictures(monkeypatch):
    """Drawing is the slow part of a report; where the test is about words, one white picture stands for all."""
    white = io.BytesIO()
    Image.new("RGB", (2, 2), "white").save(white, "PNG")
    monkeypatch.setattr("softbias.report.page.png", lambda chart: white.getvalue())


def html_of(page: Path) -> str:
    """The page without plotly's own text."""
    return re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)


def text_of(page: Path) -> str:
    """What a reader sees, with simple spaces."""
    bare = re.sub(r"<style>.*?</style>|<script.*?</script>|<[^>]+>", " ", html_of(page), flags=re.S)
    return re.sub(r"\s+", " ", unescape(bare))


def test_the_report_and_every_figure_as_csv_and_png_and_every_table_as_latex(study):
    keys = re.findall(r'data-chart="([^"]+)"', html_of(study / "report.html"))
    assert len(keys) == len(set(keys)) == 1 + 1 + 1 + 6 + 4 + 2
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
        cells.setdefault((row["model"], row["fraction"]), []).append(row["test"]["accuracy"])
    table = pd.read_csv(study / "figures" / "sample-efficiency-fashion.csv")
    ours = table[table["kind"] == "measured"].set_index(["arm", "fraction"])
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
    from softbias.report.gathering import gather
    from softbias.report.provenance import commands

    monkeypatch.chdir(study.parent)
    command = commands(gather([study]))[0].split()
    assert command[:2] == ["softbias", "study"]
    asked = []
    monkeypatch.setattr("softbias.cli.study.run", lambda spec, options: asked.append(options.out) or 0)
    assert main(command[1:]) == 0 and asked[0].resolve() == study.resolve()


def test_models_below_a_logistic_regression_on_pixels_are_not_praised_in_silence(tmp_path, quick_pictures):
    text = text_of(write_report(make_study(tmp_path, ("deit_nano", "ibit_nano"), (10.0, 100.0), seeds=1, pixels=0.75)))
    best = {  # ibit_nano
        row["fraction"]: row["test"]["accuracy"]
        for row in (json.loads(file.read_text()) for file in tmp_path.glob("runs/ibit*/summary.json"))
    }
    assert best[10.0] < 0.75 < best[100.0]
    told = f"below a logistic regression on raw pixels, with 10 % of the data {100 * best[10.0]:.1f} against 75.0 %: these"
    assert told in text  # and nothing about all the data, where one model is above it


def test_published_numbers_are_marked_and_strangers_are_named(study):
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', (study / "report.html").read_text(), re.S)[1])
    traces = numbers["charts"]["sample-efficiency-fashion"]["data"]
    theirs = [trace for trace in traces if trace.get("name", "").startswith("published")]
    assert [(trace["x"], trace["y"]) for trace in theirs] == [([10.0], [61.25])]  # the other is of another set
    assert {trace["marker"]["symbol"] for trace in theirs} == {"diamond-open"}
    text = text_of(study / "report.html")
    assert "cannot be compared" not in text
    assert "accuracy 61.25 " in text and "accuracy 70.00 –" in text  # all the digits
    assert "61.25 %" in str(theirs[0])


def test_numbers_of_a_set_that_is_not_here_stand_beside_ours_with_a_warning(tmp_path, quick_pictures):
    theirs = [{"data": "imagenet", "arm": "deit_nano", "fraction": 100, "metric": "accuracy", "value": 0.7, "note": "table 2"}]
    page = write_report(make_study(tmp_path, ("deit_nano",), (10.0, 100.0), seeds=1, study={"published": theirs}))
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', page.read_text(), re.S)[1])
    traces = numbers["charts"]["sample-efficiency-fashion"]["data"]
    assert [trace["y"] for trace in traces if trace.get("name", "").startswith("published")] == [[70.0]]
    assert "published numbers are of imagenet, ours of fashion" in text_of(page)


def test_the_pictures_on_which_models_disagree_are_shown(study):
    html = html_of(study / "report.html").split('id="examples"')[1].split("</section>")[0]
    assert "Only ibit_nano is right" in html and html.count('<figure class="card">') == html.count("<img") > 6


def test_nothing_is_asked_from_outside_and_names_are_escaped(study):
    html = html_of(study / "report.html")
    assert "<helps>" not in html and "Which bias &lt;helps&gt;?" in html
    assert not re.search(r"https?://|url\(|@import|<iframe|<object", html)
    places = re.findall(r'(?:src|href|srcset)="([^"]*)"', html)
    assert len(places) > 30 and all(place.startswith(("data:", "#")) for place in places)
    assert (study / "report.html").stat().st_size < 8_000_000


def test_with_one_seed_the_report_claims_nothing(tmp_path, quick_pictures):
    text = text_of(write_report(make_study(tmp_path, seeds=1, fractions=(10.0, 100.0), val=False)))
    assert "One seed per model: nothing is claimed" in text and "beats" not in text and "ahead of" not in text
    assert "No curve is fitted" in text and "Training accuracy · 10 %" in text and "Validation accuracy" not in text


def test_with_two_seeds_the_report_claims_nothing_and_says_why(tmp_path, quick_pictures):
    text = text_of(write_report(make_study(tmp_path, ("deit_nano", "ibit_nano"), (100.0,), seeds=2)))
    assert "2 seeds are too few to show one" in text and "± 12.7 standard errors" in text and "beats" not in text
    assert "Accuracy with all data" in text


def test_without_the_data_the_cards_name_the_pictures_and_the_reason(tmp_path, quick_pictures):
    page = write_report(make_study(tmp_path, ("deit_nano", "ibit_nano"), (100.0,), seeds=1, data="gone/pictures"))
    text = text_of(page)
    assert re.search(r"The pictures are not shown, because the data set could not be read: .*gone/pictures", text)
    assert "picture 50" in text and "Only ibit_nano is right" in text


def test_loose_runs_make_a_report_elsewhere_and_missing_ones_are_counted(tmp_path, quick_pictures):
    runs = [make_run(tmp_path, model, 10.0, seed) for model, seed in (("deit_nano", 0), ("deit_nano", 1), ("ibit_nano", 0))]
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "new")]) == 0
    text = text_of(tmp_path / "new" / "report.html")
    assert "1 of 4 runs are missing" in text and "3 runs compared" in text and not (tmp_path / "report.html").exists()


def test_a_report_of_nothing_is_a_mistake_in_one_line(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    assert main(["report", str(tmp_path)]) == 2 and "no finished run" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2 and "nowhere" in capsys.readouterr().err


def test_disagreements_are_found():
    right = np.array([[1, 0, 1, 0, 0.3], [0, 0, 1, 0.6, 1], [0.4, 0, 1, 1, 1]])  # three arms, five pictures
    tested = Answers(np.arange(5), np.zeros(5, np.int64), np.zeros(5, np.int64), None)
    told, groups = disagreements(Votes(["a", "b", "c"], tested, right, np.zeros((3, 5), np.int64), ["x"], ""))
    assert told == {"all are right": 1, "all are wrong": 1, "they disagree": 3}
    found = {title: list(places) for title, places in groups}
    assert found["Only a is right"] == [0] and found["Only a is wrong"] == [4, 3]  # the clearer one first
    assert found["Only b is right"] == found["Only c is wrong"] == []


def test_an_arm_that_is_wrong_is_quoted_with_a_wrong_answer():
    table, labels = np.array([[2, 1, 0], [2, 0, 1], [0, 2, 2]]), np.array([2, 2, 2])  # three seeds, three pictures
    assert answers_of(table, labels).tolist() == [2, 0, 0]  # two of three are right; a tie of wrong ones; the same


def test_latex_is_escaped_and_has_every_cell():
    made = latex(Table("t", "50 % & more", ["a_b", "c"], [[Cell("x#1"), Cell("1.0 ± 2.0", ("n = 3",))]]))
    assert r"\caption{50 \% \& more}" in made and r"a\_b & c \\" in made and r"x\#1 & 1.0 $\pm$ 2.0 (n = 3) \\" in made


def test_data_to_match_is_told_as_a_bound_where_it_was_not_reached_and_drawn_edges_with_two_digits():
    row = {"data": "d", "arm": "a", "other": "b", "n": 3, "target": 0.7, "low": 46.93, "smallest": 5.0, "largest": 100.0}
    rows = [row | {"fraction": 5.0, "needed": np.inf, "high": np.inf}, row | {"fraction": 20.0, "needed": 63.36, "high": 99.7}]
    unreached, reached = ([cell.main for cell in line] for line in matching_table(pd.DataFrame(rows), "d").rows)
    assert unreached[-3:] == ["> 100 %", "47 % to > 100 %", "> 20 ×"]
    assert reached[-3:] == ["63.4 %", "47 % to 99.7 %", "3.2 ×"]


def test_captions_in_latex_say_what_the_intervals_are(study):
    accuracy, differences = ((study / "figures" / f"{name}-fashion.tex").read_text() for name in ("accuracy", "differences"))
    assert r"$\pm$ is the 95 \% t interval over n seeds" in accuracy and "(Wilson)" in accuracy
    assert "paired t test over seeds, corrected by Holm over 9 comparisons" in differences


def linear(hexadecimal: str) -> np.ndarray:
    parts = np.array([int(hexadecimal[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", PALETTE)
def test_names_of_arms_can_be_read_on_their_paper(theme):
    bright = {name: float(linear(value) @ [0.2126, 0.7152, 0.0722]) for name, value in PALETTE[theme].items()}
    for name in [f"arm{number}" for number in range(COLORS)] + ["ink", "soft"]:
        for paper in ("paper", "panel"):
            dark, light = sorted((bright[name], bright[paper]))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, paper)


def test_no_two_of_32_arms_look_alike_as_points_or_as_lines():
    assert len({(color_of(arm), marker_of(arm)) for arm in range(32)}) == 32
    assert len({(color_of(arm), dash_of(arm)) for arm in range(32)}) == 32
    assert {dash_of(arm) for arm in range(COLORS)} == {"solid"} and set(SYMBOLS) == set(MARKERS) and set(STROKES) == set(DASHES)


def opened(browser, page, width, **options):
    """The page in a browser without network, and what it complained about and asked for."""
    context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **options)
    view, complaints, requests = context.new_page(), [], []
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on("request", lambda request: requests.append(request.url))
    view.goto(page.as_uri())
    if options.get("java_script_enabled", True):
        view.wait_for_selector("html[data-drawn=all]", timeout=120_000)
    return view, complaints, [url for url in requests if not url.startswith(("data:", "blob:"))]


LINES = "[...document.querySelectorAll('figure[data-chart]')].map(f => f.querySelectorAll('.scatterlayer .trace').length)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
BROKEN = """th => {  // pieces of names that stand on two lines although nothing in them invites to break
  const found = [], walker = document.createTreeWalker(th, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode())
    for (const piece of node.data.matchAll(/[\\w@=.]+/g)) {
      range.setStart(node, piece.index); range.setEnd(node, piece.index + piece[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) found.push(piece[0]);
    }
  return found;
}"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_a_browser_draws_every_chart_offline_without_complaint_or_overflow(browser, study, width, scheme):
    page = study / "report.html"
    view, complaints, requests = opened(browser, page, width, color_scheme=scheme)
    assert complaints == [] and requests == [page.as_uri()]
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert len(view.evaluate(LINES)) == 15 and all(view.evaluate(LINES))
    shares = "l => l.querySelector('svg').getBoundingClientRect().width / l.clientWidth"
    assert min(view.evaluate(f"[...document.querySelectorAll('.live')].map({shares})")) > 0.9
    assert view.evaluate("[...document.querySelectorAll('.still')].every(i => i.naturalWidth > 0 && !i.checkVisibility())")
    assert view.evaluate(BACKGROUND) == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    view.emulate_media(media="print")
    assert view.evaluate("[...document.querySelectorAll('.still')].every(i => i.checkVisibility())")
    assert min(view.evaluate("[...document.querySelectorAll('.still')].map(i => i.getBoundingClientRect().height)")) > 80
    assert not view.evaluate("[...document.querySelectorAll('.live')].some(i => i.checkVisibility())")
    assert view.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    view.context.close()


def test_a_reader_hides_an_arm_everywhere_and_changes_the_theme(browser, study):
    view, complaints, _ = opened(browser, study / "report.html", 1280, color_scheme="light")
    before = view.evaluate(LINES)
    view.evaluate("delete document.documentElement.dataset.drawn")
    view.locator("input[data-arm='0']").click()
    view.wait_for_selector("html[data-drawn=all]")
    assert all(now < then for now, then in zip(view.evaluate(LINES), before, strict=True))
    view.evaluate("delete document.documentElement.dataset.drawn")
    view.locator("#theme").click()
    view.wait_for_selector("html[data-drawn=all]")
    assert view.evaluate(BACKGROUND) == "rgb(20, 23, 27)" and complaints == []
    assert "rgb(20, 23, 27)" in view.evaluate("document.querySelector('.live .main-svg').style.background")
    view.context.close()


def test_many_arms_with_long_names_on_two_sets_fit_a_phone(browser, tmp_path, quick_pictures):
    for number in range(10):
        model = f"deit_nano_with_a_very_long_name_{number}_and_more_of_it"
        for data in ("fashion", "a/folder/of/pictures/somewhere/deep"):
            make_run(tmp_path, model, 100.0, 0, data=data)
    page = write_report(sorted(tmp_path.glob("deit*")), tmp_path / "out")
    view, complaints, _ = opened(browser, page, 375)
    assert complaints == [] and view.evaluate("document.documentElement.scrollWidth") <= 375
    assert len(view.evaluate(LINES)) == 2 * (1 + 1 + 2 + 4 + 1) and all(view.evaluate(LINES))
    assert text_of(page).count("One seed per model") == 1
    assert view.evaluate("document.querySelectorAll('tbody th wbr').length") > 100
    assert view.evaluate(f"[...document.querySelectorAll('section:not(#run) tbody th')].flatMap({BROKEN})") == []
    titles = "t => t.getBoundingClientRect().right <= t.ownerSVGElement.getBoundingClientRect().right + 1"
    assert view.evaluate(f"[...document.querySelectorAll('.xtitle')].every({titles})")
    view.context.close()


def test_fourteen_arms_are_told_apart_in_charts_legend_and_tables(browser, tmp_path, quick_pictures):
    page = write_report(make_study(tmp_path, [f"arm_{number:02}" for number in range(14)], (100.0,), seeds=1))
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', page.read_text(), re.S)[1])
    points = [trace["marker"] for trace in numbers["charts"]["cost-fashion-macs"]["data"]]
    assert len({(marker["color"], marker["symbol"]) for marker in points}) == 14
    curves = [trace["line"] for trace in numbers["charts"]["learning-fashion-100-loss"]["data"]]
    assert len({(line["color"], line["dash"]) for line in curves}) == 14
    view, complaints, _ = opened(browser, page, 1280)
    legend = view.evaluate("[...document.querySelectorAll('#arms .mark')].map(m => m.outerHTML)")
    table = view.evaluate("[...document.querySelectorAll('#accuracy table .mark')].map(m => m.outerHTML)")
    assert len(set(legend)) == 14 and legend == table and complaints == []
    inside = "n => n.getBoundingClientRect().right <= innerWidth && n.getBoundingClientRect().bottom <= innerHeight"
    view.evaluate("document.getElementById('cost').scrollIntoView()")
    assert view.evaluate(f"[...document.querySelectorAll('#arms label')].every({inside})")  # all names stay in sight
    below = "document.querySelector('#cost h2').getBoundingClientRect().top"
    assert view.evaluate(f"{below} >= document.getElementById('arms').getBoundingClientRect().bottom")
    view.context.close()
    view, _, _ = opened(browser, page, 375)
    assert view.evaluate("document.documentElement.scrollWidth") <= 375
    assert view.evaluate("document.getElementById('arms').getBoundingClientRect().height") < 200
    view.context.close()


def test_without_a_script_the_page_shows_pictures(browser, study):
    view, complaints, _ = opened(browser, study / "report.html", 375, java_script_enabled=False)
    assert view.locator(".still").first.is_visible() and not view.locator(".live").first.is_visible() and complaints == []
    assert not view.locator("#theme").is_visible() and not view.locator("input[data-arm]").first.is_visible()
    view.context.close()
