"""Colors, markers and dashes of a report."""

import numpy as np
import pytest

from softbias.study.report.chart import COLORS, DASHES, MARKERS, PALETTE, color_of, dash_of, marker_of
from softbias.study.report.page import STROKES, SYMBOLS


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
