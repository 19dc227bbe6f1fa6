"""How a report behaves in a real browser."""

import re

import pytest
from PIL import Image

from softbias.study.report import write_report

from .handmade import groups_of, make_run, make_study, text_of


def open_page(browser, page, width, **options):
    """The page in a browser without network, and what it complained about and asked for."""
    context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **options)
    view, complaints, requests = context.new_page(), [], []
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on("request", lambda request: requests.append(request.url))
    view.goto(page.as_uri())
    if options.get("java_script_enabled", True):
        view.wait_for_selector("html[data-script]")
    return view, complaints, [url for url in requests if not url.startswith(("data:", "blob:"))]


CHARTS_IN_SIGHT = "[...document.querySelectorAll('.plot')].filter(plot => plot.checkVisibility())"
DRAWN = "[...plot.querySelectorAll('[class^=k-]')].filter(g => getComputedStyle(g).display !== 'none').length"
SERIES = f"{CHARTS_IN_SIGHT}.map(plot => {DRAWN})"
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
def test_a_browser_shows_every_chart_offline_without_complaint_or_overflow(browser, study, width, scheme):
    page = study / "report.html"
    view, complaints, requests = open_page(browser, page, width, color_scheme=scheme)
    assert complaints == [] and requests == [page.as_uri()]
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert len(view.evaluate(SERIES)) == 16 and all(view.evaluate(SERIES))
    letters = "12 * plot.getBoundingClientRect().width / plot.viewBox.baseVal.width"
    assert view.evaluate(f"Math.min(...{CHARTS_IN_SIGHT}.map(plot => {letters}))") > 9  # pixels: texts can be read
    assert view.evaluate(BACKGROUND) == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    view.emulate_media(media="print")
    assert len(view.evaluate(SERIES)) == 16 and view.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    view.context.close()


def test_all_names_of_the_legend_are_in_sight_on_a_wide_page(browser, tmp_path, quick_charts):
    models = [f"a_rather_long_name_{number}" for number in range(7)]
    view, *_ = open_page(browser, write_report(make_study(tmp_path, models, (1.0,), seeds=1)), 1280)
    legend = "document.getElementById('legend')"
    assert view.evaluate(f"{legend}.scrollWidth <= {legend}.clientWidth")


def test_a_reader_hides_an_arm_everywhere_and_changes_the_theme(browser, study):
    view, complaints, _ = open_page(browser, study / "report.html", 1280, color_scheme="light")
    before = view.evaluate(SERIES)
    view.locator("#legend .t0").click()
    *own, published = zip(view.evaluate(SERIES), before, strict=True)
    assert all(now < then for now, then in own) and published[0] == published[1]  # of a model that is none of ours
    view.locator("#legend .t0").click()
    assert view.evaluate(SERIES) == before
    view.locator("#theme").click()
    assert view.evaluate(BACKGROUND) == "rgb(20, 23, 27)" and complaints == []
    assert view.evaluate("getComputedStyle(document.querySelector('.c0 .stroke')).stroke") == "rgb(108, 178, 255)"
    view.context.close()


def test_values_appear_under_the_pointer_and_by_the_arrow_keys(browser, study):
    view, complaints, _ = open_page(browser, study / "report.html", 1280)
    mark = view.locator("#accuracy .plot.broad .k-line .mark").first
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2)
    tip = view.locator(".tip")
    assert "convit_nano, 10 % of the data" in tip.inner_text().replace("\xa0", " ") and "3 seeds" in tip.inner_text()
    view.locator("#learning .plot").first.focus()
    texts = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        view.keyboard.press(key)
        texts.append(tip.inner_text())
    assert "convit_nano, epoch 1" in texts[0] and "epoch 2" in texts[1] and "deit_nano, epoch 2" in texts[2]
    view.locator("#legend .t0").click()  # a hidden series has no values
    view.locator("#learning .plot").first.focus()
    view.keyboard.press("ArrowDown")
    assert "convit_nano" not in tip.inner_text() and complaints == []
    view.context.close()


@pytest.mark.slow
def test_a_chart_is_enlarged_and_saved(browser, study):
    view, complaints, _ = open_page(browser, study / "report.html", 1280)
    figure = view.locator("figure[data-chart='learning-fashion-10-loss']")
    with view.expect_download() as download:
        figure.get_by_role("button", name="PNG").click()
    with Image.open(download.value.path()) as image:
        assert image.width > 700 and len(set(image.convert("RGB").resize((60, 40)).tobytes())) > 10
    small = figure.locator(".plot").bounding_box()["width"]
    figure.get_by_role("button", name="Enlarge").click()
    assert view.locator("dialog .plot").bounding_box()["width"] > 2 * small
    view.keyboard.press("Escape")
    view.locator("dialog").wait_for(state="detached")
    assert complaints == []
    assert figure.get_by_role("link", name="CSV").get_attribute("download") == "learning-fashion-10-loss.csv"
    view.context.close()


@pytest.mark.slow
def test_many_arms_with_long_names_on_two_sets_fit_a_phone(browser, tmp_path, quick_charts):
    for number in range(10):
        model = f"deit_nano_with_a_very_long_name_{number}_and_more_of_it"
        for data in ("fashion", "a/folder/of/pictures/somewhere/deep"):
            make_run(tmp_path, model, 1.0, 0, data=data)
    page = write_report(sorted(tmp_path.glob("deit*")), tmp_path / "out")
    view, complaints, _ = open_page(browser, page, 375)
    assert complaints == [] and view.evaluate("document.documentElement.scrollWidth") <= 375
    assert len(view.evaluate(SERIES)) == 2 * (1 + 1 + 2 + 4 + 1) and all(view.evaluate(SERIES))
    assert text_of(page).count("One seed per model") == 1
    assert view.evaluate("document.querySelectorAll('tbody th wbr').length") > 100
    assert view.evaluate(f"[...document.querySelectorAll('section:not(#run) tbody th')].flatMap({BROKEN})") == []
    texts = (
        "plot => [...plot.querySelectorAll('text')].every(t => { const [a, b] = [t, plot].map(e => e.getBoundingClientRect());"
    )
    texts += " return a.left >= b.left - 1 && a.right <= b.right + 1; })"
    assert view.evaluate(f"{CHARTS_IN_SIGHT}.every({texts})")
    view.context.close()


@pytest.mark.slow
def test_fourteen_arms_differ_in_charts_legend_and_tables(browser, tmp_path, quick_charts):
    page = write_report(make_study(tmp_path, [f"arm_{number:02}" for number in range(14)], (1.0,), seeds=1))
    drawn = page.read_text().split('data-chart="cost-fashion-macs"')[1].split("</figure>")[0]
    marks = re.findall(r'<g class="k-upright (c\d) [^>]*><path class="mark" [^>]*d="([^"]+)"', drawn)
    assert len(marks) == len(set(marks)) == 14
    curves = groups_of(page, "learning-fashion-100-loss", "curve")
    assert len({(names[1], names[-1]) for names, _ in curves}) == 14  # color and dash
    view, complaints, _ = open_page(browser, page, 1280)
    legend = view.evaluate("[...document.querySelectorAll('#legend .key-mark')].map(m => m.outerHTML)")
    table = view.evaluate("[...document.querySelectorAll('#accuracy table .key-mark')].map(m => m.outerHTML)")
    assert len(set(legend)) == 14 and legend == table and complaints == []
    inside = "n => n.getBoundingClientRect().right <= innerWidth && n.getBoundingClientRect().bottom <= innerHeight"
    view.evaluate("document.getElementById('cost').scrollIntoView()")
    assert view.evaluate(f"[...document.querySelectorAll('#legend label')].every({inside})")  # all names stay in sight
    below = "document.querySelector('#cost h2').getBoundingClientRect().top"
    assert view.evaluate(f"{below} >= document.getElementById('legend').getBoundingClientRect().bottom")
    view.context.close()
    view, _, _ = open_page(browser, page, 375)
    assert view.evaluate("document.documentElement.scrollWidth") <= 375
    assert view.evaluate("document.getElementById('legend').getBoundingClientRect().height") < 200
    view.context.close()


@pytest.mark.slow
def test_without_a_script_charts_and_legend_work(browser, study):
    view, complaints, _ = open_page(browser, study / "report.html", 375, java_script_enabled=False)
    assert view.locator(".plot.slim").first.is_visible() and not view.locator(".plot.broad").first.is_visible()
    view.locator("#legend .t0").click()
    assert not view.locator("#accuracy .plot.slim .s0").first.is_visible() and complaints == []
    assert not view.locator("#theme").is_visible() and view.locator(".tools button").count() == 0
    view.context.close()
