"""How a report behaves in a real browser."""

import json
import re

import pytest

from softbias.study.report import write_report

from .handmade import make_run, make_study, text_of


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
            make_run(tmp_path, model, 1.0, 0, data=data)
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
    page = write_report(make_study(tmp_path, [f"arm_{number:02}" for number in range(14)], (1.0,), seeds=1))
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
