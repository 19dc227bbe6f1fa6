"""The page of a finished run, from run directories made by hand; the last tests open it in a real browser."""

import base64
import io
import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.pages.html import script
from softbias.runs import page as run_page
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.training.evaluate import score

NAMES = ("cat", "dog", "owl")
LABELS = np.array([0, 0, 1, 1, 2, 2])
PROBABILITIES = np.array([
    [0.950, 0.030, 0.020],  # right
    [0.005, 0.985, 0.010],  # wrong, and the label is worth checking
    [0.480, 0.300, 0.220],  # wrong, hesitantly
    [0.970, 0.025, 0.005],  # wrong and sure, but the label gets 2.5 %
    [0.335, 0.320, 0.345],  # right, by the smallest margin
    [0.001, 0.009, 0.990],  # right
], np.float32)  # fmt: skip
FILES = ("train/cat/1.png", "train/owl/2.png", *(f"test/photo {i}.jpg" for i in range(6)))
BASELINE = {"name": "logistic regression on raw pixels (C=0.03)", "accuracy": 0.9, "accuracy_interval": [0.815, 0.948]}


def note(sentence: str) -> dict:
    return {"kind": "text", "values": {"text": sentence}}


SUMMARY = {
    "status": "finished", "id": "0123456789", "data": "pets", "model": "convit_nano", "seed": 3, "train_fraction": 0.25,
    "objective": "supervised", "pretext": False, "parameters": 213446, "img_size": [8, 8],
    "pictures": {"train": 400, "val": 40, "test": 6},
    "steps": 1200, "epochs": 3.0, "seconds": 122.7, "images_per_second": 1043.4, "best_epoch": 2,
    "validation_accuracy": 0.725, "class_weights": True, "peak_memory": 3 * 2**29, "notes": [note("the split was made")],
    "baseline": BASELINE,
}  # fmt: skip
NO_VAL = {"val": False, "best_epoch": None, "validation_accuracy": None, "pictures": {"train": 400, "val": 0, "test": 6}}
ROTATION_TEST = {"n": 24, "accuracy": 0.61, "log_loss": 0.9, "task": "telling four rotations apart", "chance_level": 0.25}
ROTATION = {"objective": "rotation", "pretext": True, "test": ROTATION_TEST, "baseline": ...}
ENVIRONMENT = {
    "softbias": "0.1.0", "git": "ddd", "python": "3.11.7", "torch": "2.15.0", "platform": "Linux-6", "device": "cpu",
    "hardware": "x86_64", "threads": 2,
}  # fmt: skip


def color(number: int) -> tuple[int, int, int]:
    return (10 * number, 200, 255 - 10 * number)


def pets() -> Dataset:
    images = np.stack([np.full((8, 8, 3), color(number), np.uint8) for number in range(8)])
    splits = {"train": np.arange(2), "test": np.arange(2, 8)}
    return Dataset("pets", images, np.array([0, 2, *LABELS]), NAMES, splits, FILES)


def make_run(folder, *, names=NAMES, labels=LABELS, probabilities=PROBABILITIES, val=True, files=FILES[2:], **changes):
    """A run directory as `fit` would leave it; ... removes an entry of the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = {**SUMMARY, "test": score(probabilities, labels, tuple(names)), **changes}
    summary = {name: value for name, value in summary.items() if value is not ...}
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [
        {"event": "epoch", "epoch": e, "step": 400 * e, "loss": 2.5 / e, "accuracy": 0.2 * e, "lr": 1e-3 / e} for e in (1, 2, 3)
    ]
    if val:
        rows = [{**row, "val_accuracy": 0.15 * row["epoch"], "val_loss": 2.75 / row["epoch"]} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"event": "step", "step": 7}]))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (folder / "config.yaml").write_text("format: 1\ndata: pets\nmodel: convit_nano\n")
    if "classes" in summary.get("test", {}):
        found = Predictions(np.arange(len(labels)) + 2, labels, probabilities, files if files is None else tuple(files))
        found.write(folder / "predictions.npz")
    return folder


def write_page(folder, data=None) -> Path:
    run = Run(folder)
    return run_page.write_page(run, run.summary(), data)


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> Path:
    """The page of a run with 102 classes."""
    generator = np.random.default_rng(0)
    labels, names = generator.integers(0, 102, 612), [f"Flower with a rather long name {i}" for i in range(102)]
    probabilities = generator.dirichlet(np.full(102, 0.05), 612).astype(np.float32)
    files = [f"{i}.jpg" for i in range(612)]
    folder = tmp_path_factory.mktemp("flowers")
    return write_page(make_run(folder, names=names, labels=labels, probabilities=probabilities, files=files))


def text_of(page: Path | str) -> str:
    """What a reader sees of a page or of a piece of one: no tags, and simple spaces."""
    html = page.read_text() if isinstance(page, Path) else page
    return re.sub(r"\s+", " ", unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.S)))


def cards(page: Path, gallery: int) -> list[str]:
    html = page.read_text().split(f'<section id="gallery-{gallery}"')[1]
    return html.split("</section>")[0].split('<figure class="card">')[1:]


def first_pixel(card: str) -> tuple[int, int, int]:
    encoded = re.search(r'src="data:image/png;base64,([^"]+)"', card)
    return Image.open(io.BytesIO(base64.b64decode(encoded[1]))).convert("RGB").getpixel((0, 0))


def test_the_numbers_of_the_run_are_on_the_page(tmp_path):
    page = write_page(make_run(tmp_path), pets())
    assert page == tmp_path / "report.html" and (tmp_path / "confusion.png").is_file()
    text = text_of(page)
    for part in (
        "50.0 % accuracy on 6 test pictures", "95 % interval 18.8 to 81.2 %", "most frequent class would give 33.3 %",
        "213,446 parameters", "pets, 25 % of the training pictures", "400 train, 40 val, 6 test; 8 × 8 pixels",
        "1,200 steps", "2 min 3 s", "1,043 images/s", "2, 72.5 % on validation", "1.5 GiB", "x86_64 (cpu, threads: 2)",
        "torch 2.15.0", "git ddd", "the split was made", "classes of different sizes", "90.0 %", "softbias.load(", "format: 1",
    ):  # fmt: skip
        assert part in text, part


def test_a_run_for_choosing_names_what_was_scored(tmp_path):
    scores = {**score(PROBABILITIES, LABELS, NAMES), "what": "validation pictures"}
    assert "50.0 % accuracy on 6 validation pictures" in text_of(write_page(make_run(tmp_path, test=scores), pets()))


def test_a_model_below_the_baseline_is_called_below_it(tmp_path):
    below = write_page(make_run(tmp_path / "a"))
    assert "40.0 percentage points" in text_of(below)
    assert 'class="verdict below"' in below.read_text()
    above = write_page(make_run(tmp_path / "b", baseline={**BASELINE, "accuracy": 0.1, "accuracy_interval": [0.08, 0.12]}))
    assert "40.0 percentage points above" in text_of(above) and 'class="verdict"' in above.read_text()
    assert "percentage points" not in text_of(write_page(make_run(tmp_path / "c", baseline=None)))


def test_classes_are_sorted_by_f1(tmp_path):
    table = write_page(make_run(tmp_path)).read_text().split('aria-label="Scores per class"')[1]
    assert re.findall(r'<th scope="row">([^<]+)', table)[:3] == ["dog", "cat", "owl"]  # 0, 0.4 and 1


def test_nothing_is_asked_from_outside(tmp_path):
    html = write_page(make_run(tmp_path), pets()).read_text().replace(f"<script>{script()}</script>", "")
    assert not re.search(r"https?://|//\w+\.\w|url\(|@import|<script|<iframe|<object", html)
    links = re.findall(r'(?:src|href|srcset|action|data|poster)="([^"]*)"', html)
    assert len(links) > 10 and all(link.startswith(("data:", "#")) for link in links)


def test_the_galleries_pick_their_images_and_show_them(tmp_path):
    page = write_page(make_run(tmp_path), pets())
    mistakes, doubtful, hesitant = (cards(page, number) for number in (1, 2, 3))
    assert [first_pixel(card) for card in mistakes] == [color(index + 2) for index in (1, 3, 2)]
    assert [first_pixel(card) for card in doubtful] == [color(1 + 2)]
    assert [first_pixel(card) for card in hesitant] == [color(index + 2) for index in (4, 2, 0, 3, 1, 5)]
    assert "predicted 98.5 % dog labeled 0.5 % cat photo 1.jpg" in text_of(mistakes[0])
    assert "first, as labeled 34.5 % owl second 33.5 % cat photo 4.jpg" in text_of(hesitant[0])
    assert "first 48.0 % cat second, as labeled 30.0 % dog" in text_of(hesitant[1])
    assert 'alt="A picture labeled cat, predicted as dog"' in mistakes[0] and 'class="pixelated"' in mistakes[0]


def test_images_are_named_by_what_their_paths_differ_in_and_broken_only_between_folders(tmp_path):
    files = [f"my photos/{name}/{number}.jpg" for number, name in enumerate(("cat", "cat", "dog", "dog", "owl", "owl"))]
    card = cards(write_page(make_run(tmp_path, files=files)), 1)[0]
    assert "<small>cat/<wbr>1.jpg</small>" in card


def test_the_page_says_which_epoch_the_model_is_of(tmp_path):
    last, best = (text_of(write_page(make_run(tmp_path / how, selected=how))) for how in ("last", "best"))
    assert "2, 72.5 % on validation; the model is the last epoch's" in last
    assert "2, 72.5 % on validation; the model is this epoch's" in best


def test_the_page_has_the_commands_that_use_the_run(tmp_path):
    folder = tmp_path / "my runs" / "a"
    assert f"softbias predict '{folder}' NEW_PICTURES" in unescape(write_page(make_run(folder)).read_text())


def test_without_the_data_the_galleries_say_so_and_name_the_images(tmp_path):
    page = write_page(make_run(tmp_path))
    assert "the data set was not available" in text_of(page)
    assert len(cards(page, 1)) == 3 and "<img" not in cards(page, 1)[0] and "<small>photo 1.jpg</small>" in cards(page, 1)[0]
    other = Dataset("zoo", np.zeros((8, 8, 8, 3), np.uint8), np.zeros(8, np.int64), NAMES, {})
    assert "zoo is not the one this run was tested on" in text_of(write_page(tmp_path, other))


def test_a_model_without_mistakes_has_empty_galleries(tmp_path):
    text = text_of(write_page(make_run(tmp_path, probabilities=np.eye(3, dtype=np.float32)[LABELS]), pets()))
    assert "makes no mistake on the test pictures" in text and "There is no test picture whose labeled class" in text


def test_names_are_escaped(tmp_path):
    bad = ("<b>x</b>", '"><script>alert(1)</script>', "$\\frac{ & ü")
    files = [f'<img src="https://evil.example/{i}.png">' for i in range(6)]
    html = write_page(make_run(tmp_path, names=bad, files=files, data="<i>d</i>", notes=[note("<u>n</u>")]), pets()).read_text()
    assert not any(part in html for part in ("<b>x", "<script>alert", "<i>d", "<u>n", '<img src="http'))
    assert html.count("<script") == 1
    assert "&lt;b&gt;x&lt;/b&gt;" in html and "$\\frac{ &amp; ü" in html


def test_a_hundred_and_two_classes_stay_readable(flowers):
    html = flowers.read_text()
    assert all(f"Flower with a rather long name {i}<" in html for i in range(102))
    assert min(Image.open(flowers.with_name("confusion.png")).size) > 102 * 15  # pixels: a row has room for letters
    assert flowers.stat().st_size < 5_000_000


def test_a_rotation_run_shows_only_its_accuracy(tmp_path):
    text = text_of(write_page(make_run(tmp_path, **ROTATION), pets()))
    assert all(
        part in text for part in ("61.0 %", "telling four rotations apart, n = 24", "chance level is 25.0 %", "6 test; 8 × 8")
    )
    assert not (tmp_path / "confusion.png").exists() and "Calibration" not in text and "There are no galleries" in text


def test_without_test_images_the_validation_score_is_called_what_it_is(tmp_path):
    text = text_of(write_page(make_run(tmp_path / "a", test=..., baseline=...)))
    assert "72.5 %" in text and "This is not a test score" in text and "no predictions of test pictures" in text
    assert "No score" in text_of(write_page(make_run(tmp_path / "b", test=..., baseline=..., **NO_VAL)))


def test_without_validation_the_curves_say_so(tmp_path):
    text = text_of(write_page(make_run(tmp_path, **NO_VAL)))
    assert "There were no validation pictures" in text and "400 train, 6 test" in text and "Best epoch" not in text


def test_an_unfinished_run_has_no_page(tmp_path):
    with pytest.raises(ValueError, match=r"no finished run: it has no summary\.json"):
        write_page(tmp_path)


@pytest.mark.parametrize("kind", ["three classes", "102 classes", "rotation"])
def test_a_browser_opens_it_offline_without_complaint_and_without_overflow(browser, flowers, tmp_path, kind):
    page, long = flowers, {"names": ("cat", "dog" * 40, "owl"), "files": ["x" * 150 + ".png"] * 6, "notes": [note("y" * 200)]}
    if kind != "102 classes":
        page = write_page(make_run(tmp_path, **(ROTATION if kind == "rotation" else long)), pets())
    background = "getComputedStyle(document.body).backgroundColor"
    paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    for width, scheme in ((1280, "light"), (375, "dark"), (375, "light")):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        view, complaints, requests = context.new_page(), [], []
        view.on("console", lambda message, kept=complaints: kept.append(message.text))
        view.on("pageerror", lambda error, kept=complaints: kept.append(str(error)))
        view.on("request", lambda request, kept=requests: kept.append(request.url))
        view.goto(page.as_uri())
        assert complaints == [] and [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        assert view.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        assert view.evaluate(background) == paper[scheme]
        view.emulate_media(media="print")
        assert view.evaluate(background) == paper["light"]
        context.close()
