"""The page in a real browser: load, choose, click, compare, move through training, upload a picture, upload junk."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from softbias.app.state import AppState

from .conftest import serving

CONTENT = "canvas => canvas.toDataURL()"
SLOWLY = """() => {
    const real = window.fetch;
    window.fetch = async (...given) => { await new Promise((done) => setTimeout(done, 300)); return real(...given); };
}"""  # the page shows that it waits for an answer, however long that takes


class View:
    """The open page, the errors that it reported, and the addresses that it requested."""

    def __init__(self, browser, served, width=1280, scheme="light"):
        self.served, self.complaints, self.requests = served, [], []
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{served.url}/?token={served.access.token}")
        self.page.wait_for_selector("html[data-ready]", timeout=30_000)

    def wait_until_idle(self):
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_selector(".pane")
        self.page.wait_for_selector(".pane.busy, .pane[aria-busy]", state="detached")

    def maps(self):
        """The pixels of every small map."""
        return [canvas.evaluate(CONTENT) for canvas in self.page.query_selector_all(".cells canvas")]

    def where(self):
        return self.page.inner_text("#where")

    def click_patch(self, row, column, grid=8, pane=0):
        box = self.page.locator(".stage").nth(pane).bounding_box()
        self.page.mouse.click(box["x"] + box["width"] * (column + 0.5) / grid, box["y"] + box["height"] * (row + 0.5) / grid)
        self.wait_until_idle()


@pytest.fixture
def view(browser, served):
    seen = View(browser, served)
    yield seen
    assert seen.complaints == []
    assert all(url.startswith((served.url, "data:", "blob:")) for url in seen.requests)
    seen.context.close()


def test_a_click_shows_where_every_head_of_every_layer_looks(view):
    assert len(view.maps()) == 16 and view.page.inner_text(".big") in ("blue", "green", "red")
    before = view.maps()
    view.click_patch(1, 6)
    assert "row 1, column 6" in view.where()
    assert sum(a != b for a, b in zip(before, view.maps(), strict=True)) == 16
    assert "Last answer after" in view.page.inner_text("#timing")


@pytest.mark.slow
def test_a_click_on_a_large_map_follows_the_look(view):
    box = view.page.locator(".heads canvas").first.bounding_box()
    view.page.mouse.click(box["x"] + 3, box["y"] + 3)
    view.wait_until_idle()
    assert "row 0, column 0" in view.where()


@pytest.mark.slow
def test_arrow_keys_move_the_query_and_stop_at_the_border(view):
    view.click_patch(0, 3)
    view.page.locator(".stage").focus()
    for key, text in (("ArrowDown", "row 1, column 3"), ("ArrowRight", "row 1, column 4"), ("ArrowUp", "row 0, column 4")):
        view.page.keyboard.press(key)
        view.wait_until_idle()
        assert text in view.where()
    view.page.keyboard.press("ArrowUp")
    assert "row 0, column 4" in view.where()


@pytest.mark.slow
def test_everything_can_be_reached_by_tab_and_shows_its_focus(view):
    reached = []
    for _ in range(90):
        view.page.keyboard.press("Tab")
        found = view.page.evaluate(
            "() => { const e = document.activeElement;"
            " const shown = e.type === 'radio' || e.type === 'file' ? e.nextElementSibling : e;"
            " const name = e.getAttribute('class') || e.id || e.name || e.type || e.tagName;"
            " return [name, getComputedStyle(shown).outlineStyle]; }"
        )
        if found[0] == "softbias":  # the body, after the last element
            break
        reached.append(found)
    names = [name for name, _ in reached]
    assert {"skip", "file", "thumb", "from", "what", "scale", "compare", "stage", "class"} <= set(names), names
    assert all(outline != "none" for _, outline in reached), reached


def test_images_and_models_can_be_chosen(view):
    first = view.page.locator(".stage").evaluate(CONTENT)
    view.page.locator(".thumb").nth(2).press("Enter")
    view.wait_until_idle()
    assert view.page.locator(".stage").evaluate(CONTENT) != first
    assert view.page.locator(".thumb").nth(2).get_attribute("aria-pressed") == "true"
    view.page.locator(".pane select").select_option(label="ibit_nano")
    view.wait_until_idle()
    assert view.page.inner_text(".badge") == "untrained" and "Blue is negative" in (view.click_patch(2, 2) or view.where())
    view.page.locator(".pane select").select_option(label="resnet_nano")
    view.wait_until_idle()
    assert "no attention maps" in view.page.inner_text(".pane .note:last-child") and not view.page.locator(".all").is_visible()
    assert view.page.locator("input[value='grad-cam']").count() == 1


def test_the_layer_slider_the_class_token_and_the_positions(view):
    view.page.evaluate(SLOWLY)
    view.page.locator("input[aria-label=Layer]").focus()
    view.page.keyboard.press("End")
    assert "3 · full" in view.page.inner_text(".layer output") and view.page.locator(".gate").count() == 0
    view.page.keyboard.press("Home")
    assert "0 · gated" in view.page.inner_text(".layer output") and view.page.locator(".gate").count() == 4
    before = view.maps()
    view.page.locator("input[value=token]").check(force=True)
    view.wait_until_idle()
    assert view.maps() != before and "class token" in view.where()
    view.page.locator("input[value=bias]").check(force=True)
    view.wait_until_idle()
    assert "learned about positions" in view.where()
    assert "no mask" in view.page.locator(".cells canvas").last.get_attribute("aria-label")


@pytest.mark.slow
def test_ways_to_explain_and_another_class_change_the_picture(view):
    seen = {view.page.locator(".stage").evaluate(CONTENT)}
    for method in ("rollout", "gradient-rollout", "gradients"):
        view.page.locator(f"input[value='{method}']").check(force=True)
        seen.add(view.page.locator(".stage").evaluate(CONTENT))
    assert len(seen) == 4
    other = view.page.locator(".class").nth(1)
    name = other.locator("span").inner_text()
    other.click()
    view.wait_until_idle()
    assert name in view.page.inner_text(".over legend")


@pytest.mark.slow
def test_two_models_stand_side_by_side_on_the_same_picture(view):
    view.page.check("#compare")
    view.page.wait_for_selector(".pane:nth-child(2) .cells canvas")
    view.wait_until_idle()
    boxes = [view.page.locator(".pane").nth(index).bounding_box() for index in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    before = view.maps()
    view.click_patch(6, 1, pane=1)
    assert sum(a != b for a, b in zip(before, view.maps(), strict=True)) == 32  # one click moves both
    view.page.uncheck("#compare")
    assert view.page.locator(".pane").count() == 1


def test_the_checkpoint_slider_moves_through_training(view):
    checkpoints, answers = [], []
    slider = view.page.locator("input[aria-label=Checkpoint]")
    slider.focus()
    for key in ("Home", *["ArrowRight"] * 4):
        with view.page.expect_response(lambda answer: "/api/maps" in answer.url):
            view.page.keyboard.press(key)
        view.wait_until_idle()
        checkpoints.append(view.page.inner_text(".slide output >> nth=0"))
        answers.append(view.page.inner_text(".classes"))
    assert checkpoints == ["at the start", "epoch 1", "epoch 2", "epoch 3", "final model"] and answers[0] != answers[-1]


@pytest.mark.slow
def test_the_charts_of_the_run_are_there_and_its_report_opens(view):
    titles = view.page.locator(".chart strong").all_inner_texts()
    assert titles[:2] == ["Loss", "Accuracy"] and titles[2].startswith("Gates of")
    assert view.page.locator(".chart svg[role=img]").first.get_attribute("aria-label").startswith("Loss by epoch: ")
    with view.context.expect_page() as report:
        view.page.click("text=Its report")
    report.value.wait_for_load_state()
    assert "softbias" in report.value.title()


def test_an_image_of_ones_own_appears_and_junk_is_refused_politely(view):
    array = np.zeros((60, 90, 3), np.uint8)
    array[:, 30:60] = (30, 60, 220)
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    thumbs = view.page.locator(".thumb").count()
    view.page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": stream.getvalue()})
    view.page.wait_for_selector("text=your picture")
    view.wait_until_idle()
    assert view.page.locator(".thumb").count() == thumbs + 1 and view.page.inner_text("#alert") == ""
    view.page.set_input_files("#file", {"name": "junk.png", "mimeType": "image/png", "buffer": b"junk" * 20})
    view.page.wait_for_selector("#alert:not(:empty)")
    assert "cannot be shown" in view.page.inner_text("#alert")
    view.complaints[:] = [text for text in view.complaints if "422" not in text]  # the browser itself notes the refusal
    view.click_patch(3, 3)
    assert "row 3, column 3" in view.where()


@pytest.mark.slow
def test_a_picture_can_be_dropped(view):
    view.page.evaluate(
        """async () => {
            const canvas = document.createElement('canvas'); canvas.width = canvas.height = 40;
            const blob = await new Promise((done) => canvas.toBlob(done, 'image/png'));
            const data = new DataTransfer(); data.items.add(new File([blob], 'x.png', { type: 'image/png' }));
            document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    view.page.wait_for_selector("text=your picture")


@pytest.mark.slow
def test_a_damaged_checkpoint_is_a_message_instead_of_its_maps(browser, run, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "checkpoints" / "step-00000001" / "state.safetensors").write_bytes(b"junk")
    with serving(AppState([tmp_path / "copy"])) as served:
        view = View(browser, served)
        view.page.locator("input[aria-label=Checkpoint]").focus()
        for key, damaged in (("Home", False), ("ArrowRight", True), ("ArrowRight", False)):
            with view.page.expect_response(lambda answer: "/api/explanation" in answer.url):
                view.page.keyboard.press(key)
            view.wait_until_idle()
            assert ("damaged" in view.page.inner_text(".failure")) == damaged
            assert view.page.locator(".halves").is_visible() == (not damaged)
        assert "1 checkpoint cannot be read" in view.page.inner_text("#charts")
        view.context.close()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(375, "light"), pytest.param(375, "dark", marks=pytest.mark.slow), pytest.param(1280, "dark", marks=pytest.mark.slow)],
)
def test_nothing_overflows_and_colors_follow_the_theme(browser, served, width, scheme):
    view = View(browser, served, width, scheme)
    view.page.check("#compare")
    view.page.wait_for_selector(".pane:nth-child(2) .cells canvas")
    view.wait_until_idle()
    assert view.page.evaluate("document.documentElement.scrollWidth") <= width
    paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    assert view.page.evaluate("getComputedStyle(document.body).backgroundColor") == paper[scheme]
    unlabeled = view.page.evaluate(
        "[...document.querySelectorAll('button, select, input, canvas, svg[role=img]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label') || e.title))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert unlabeled == [] and view.complaints == []
    view.context.close()
