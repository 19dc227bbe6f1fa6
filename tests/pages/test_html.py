"""The frame of pages: what may run in them, and what is inlined."""

import base64
import hashlib
import io
import re

import numpy as np
import pytest
from PIL import Image

from softbias.pages.charts import Cell, Table, latex
from softbias.pages.html import keep_together, picture, policy, script, style


def test_the_policy_allows_our_script_and_no_other():
    assert base64.b64encode(hashlib.sha256(str(script()).encode()).digest()).decode() in policy(True)
    assert "unsafe-inline" not in policy(True).split("script-src")[1] and "script-src" not in policy(False)


def test_what_is_inlined_cannot_end_its_element_and_asks_nothing_from_outside():
    for text in (script(), style()):
        assert "</" not in text
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", text)


def test_spaces_are_kept_in_code_and_scripts_alone():
    html = "<p>95 % and n = 3</p><script>a % b</script><style>x { width: 5 % }</style><pre>n = 1</pre><p>1 ± 2</p>"
    made = keep_together(html)
    assert "<script>a % b</script>" in made and "<pre>n = 1</pre>" in made and "{ width: 5 % }" in made
    assert "95\xa0% and n\xa0=\xa03" in made and "1\xa0±\xa02" in made


@pytest.mark.parametrize(("side", "side_on_page", "stored"), [(8, 144, 8), (32, 128, 32), (96, 144, 96), (500, 144, 192)])
def test_small_images_are_enlarged_by_a_whole_number_and_large_ones_stored_small(side, side_on_page, stored):
    made = picture(np.zeros((side, side // 2, 3), np.uint8))
    assert (made["width"], made["height"]) == (side_on_page // 2, side_on_page) and made["pixelated"] == (side <= 72)
    assert Image.open(io.BytesIO(base64.b64decode(made["uri"].split(",")[1]))).size == (stored // 2, stored)


def test_latex_is_escaped_and_has_every_cell():
    made = latex(Table("t", "50 % & more", ["a_b", "c"], [[Cell("x#1"), Cell("1.0 ± 2.0", ("n = 3",))]]))
    assert r"\caption{50 \% \& more}" in made and r"a\_b & c \\" in made and r"x\#1 & 1.0 $\pm$ 2.0 (n = 3) \\" in made
