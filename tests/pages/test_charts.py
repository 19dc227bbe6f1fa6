"""Charts as data, and both ways to draw them."""

import io
import json
import math
import re
from html import unescape

import numpy as np
import pytest
from PIL import Image

from softbias.pages.charts import LINES, Axis, Chart, Series, Table, line
from softbias.pages.interactive import BROAD, SLIM, figure_sizes, key_mark, svg
from softbias.pages.static import in_legend, png, sheet
from softbias.pages.theme import COLORS, DASHES, MARKERS, PALETTE, color_of, dash_of, marker_of

KINDS = ("line", "curve", "thin", "mean", "dots", "upright", "across", "span", "columns", "reference", "published", "fit")


def chart(**changes) -> Chart:
    series = [
        Series(
            kind, f"{kind} <b>", [1, 2, 3], [1.0, 4.0, 2.0], number, [0.5, 3.0, math.nan], [1.5, 5.0, math.nan], ["a", "b", "c"]
        )
        for number, kind in enumerate(KINDS)
    ]
    options = {"x": Axis("x"), "y": Axis("y"), "names": KINDS, "alt": 'all "kinds" <at once>', **changes}
    return Chart("all", "All kinds", series, **options)


def groups(drawn: str) -> dict[str, list]:
    found = re.findall(r'<g class="(k-\w+) [^"]*" data-points="([^"]*)">', drawn)
    return {kind: json.loads(unescape(points)) for kind, points in found}


def test_both_renderers_draw_every_kind():
    found = groups(svg(chart()))
    assert set(found) == {f"k-{kind}" for kind in KINDS} and all(len(points) == 3 for points in found.values())
    with Image.open(io.BytesIO(png(chart()))) as image:
        assert image.width > 700
    assert len(sheet([chart(), chart()]).axes) >= 2


@pytest.mark.parametrize("kind", LINES)
def test_a_single_point_of_a_line_can_be_seen_in_both_drawings(kind):
    def drawn(y):
        return Chart("k", "t", [Series(kind, "s", [1, 2, 3], y, 0)], Axis(range=(0, 4)), Axis(range=(0, 4)))

    nothing, alone, joined = drawn([math.nan] * 3), drawn([math.nan, 2.0, math.nan]), drawn([1.0, 2.0, 1.0])
    marks = [svg(one).count('class="mark"') for one in (nothing, alone, joined)]
    assert marks == [0, 1, 0]
    white, dot = (np.asarray(Image.open(io.BytesIO(png(one))).convert("L"), int) for one in (nothing, alone))
    assert np.abs(white - dot).max() > 60 and (white != dot).sum() > 30  # a mark of some pixels, and not a faint one


def test_points_lie_at_their_values_and_the_higher_value_stands_higher():
    drawn = svg(chart(x=Axis(range=(1, 3)), y=Axis(range=(0, 5))))
    (x0, y0, first), (x1, y1, _), (x2, y2, _) = groups(drawn)["k-line"]
    assert first == "a" and x0 == 0 and x1 == pytest.approx(x2 / 2, abs=0.1) and y1 < y2 < y0
    assert (y0 - y2) / (y0 - y1) == pytest.approx(1 / 3, abs=0.01)


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios_and_leaves_out_zero():
    series = Series("line", "s", [1, 10, 100, 0], [1, 1, 1, 1], 0, hover=["a", "b", "c", "never"])
    points = groups(svg(Chart("k", "t", [series], Axis(log=True, range=(1, 100)))))["k-line"]
    assert [text for *_, text in points] == ["a", "b", "c"]
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.2)


def test_what_a_user_names_is_escaped():
    drawn = svg(chart(x=Axis("<script>"), y=Axis(ticks=[(1, "</svg><img>")])))
    assert "<script>" not in drawn and "<img>" not in drawn and "&lt;at once&gt;" in drawn and "<b>" not in drawn


def test_a_drawing_has_no_inline_style_and_no_identifiers():
    assert not re.search(r'\b(style|id)="', svg(chart(zero=True, wide=True), BROAD))


def test_a_wide_chart_is_drawn_again_for_a_phone_with_names_of_rows_above_their_lines():
    names = Axis(ticks=[(0, "a rather long name of a row"), (1, "b")], categories=True, range=(-0.5, 1.5))
    wide = Chart("k", "t", [Series("across", "s", [1, 2], [0, 1], 0)], y=names, wide=True, height=150)
    assert dict(figure_sizes(wide)) == {"broad": BROAD, "slim": SLIM} and len(figure_sizes(chart())) == 1
    broad, slim = (svg(wide, width) for width in (BROAD, SLIM))
    assert re.search(r'text-anchor="end">a rather', broad) and re.search(r'text-anchor="start">a rather', slim)


def test_a_single_point_and_an_empty_chart_can_be_drawn():
    for series in ([Series("curve", "s", [3], [5], 0)], []):
        assert svg(Chart("k", "t", series)) and png(Chart("k", "t", series))


def linear(hexadecimal: str) -> np.ndarray:
    parts = np.array([int(hexadecimal[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", PALETTE)
def test_text_has_enough_contrast_on_its_paper(theme):
    bright = {name: float(linear(value) @ [0.2126, 0.7152, 0.0722]) for name, value in PALETTE[theme].items()}
    texts = [f"c{number}" for number in range(COLORS)] + ["ink", "soft"]
    for name, paper in [(name, paper) for name in texts for paper in ("paper", "panel")] + [("ink", "warn"), ("ink", "chosen")]:
        dark, light = sorted((bright[name], bright[paper]))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, paper)


def test_no_two_of_32_series_look_alike_as_points_or_as_lines():
    assert len({(color_of(number), marker_of(number)) for number in range(32)}) == 32
    assert len({(color_of(number), dash_of(number)) for number in range(32)}) == 32
    assert {dash_of(number) for number in range(COLORS)} == {"solid"} and len(DASHES) * COLORS == 32 and len(MARKERS) == COLORS
    assert len({key_mark(number, lined=True) for number in range(32)}) == 32


def test_rows_that_name_the_series_need_no_legend():
    series = [Series("across", "s", [1, 2], [number, number], number) for number in (0, 1)]
    rows = Axis(categories=True, ticks=[(0, "gated − full, 10 %"), (1, "masked − full, 10 %")])
    assert in_legend(Chart("k", "t", series, y=rows, names=["gated", "masked"])) == []
    assert in_legend(Chart("k", "t", series, y=rows, names=["gated", "window"])) == [0, 1]


def test_a_long_table_is_scrolled_and_a_short_one_is_whole():
    assert Table("k", "c", ["a"], [line("x")] * 24).tall and not Table("k", "c", ["a"], [line("x")] * 25).tall
