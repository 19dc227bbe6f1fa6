"""The one template environment, the parts that every page has, and bytes as data URIs.

A page is one file that opens offline: style, script and pictures stand in it. Its policy forbids every request, and every
script but ours, which it names by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from softbias.files import csv_cell, escaped
from softbias.pages import format, theme
from softbias.pages.interactive import figure_sizes, key_mark, ordered_names, svg

TEMPLATES = Path(__file__).parent / "templates"
KEPT_TOGETHER = (" %", "n = ", "p = ", " ± ")  # no line begins with a percent sign, and none ends after "n ="
LITERAL = re.compile(r"<(style|script|pre)\b.*?</\1>", re.DOTALL)
CONTROLS = [*range(9), 11, 12, *range(14, 32), *range(127, 160)]
DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # they turn the text after a name around
UNSEEN = dict.fromkeys([*CONTROLS, *DIRECTIONS], "\N{REPLACEMENT CHARACTER}")
SIDE = 144  # of a small picture on a page, in CSS pixels
STORED = 192  # larger pictures are scaled down to this side before they are stored in a page


@cache
def environment() -> Environment:
    """Templates escape what they are given, and an unknown name in a template is an error."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "percent": format.percent,
        "interval": format.interval,
        "of_the_data": format.of_the_data,
        "breakable": breakable,
    }
    made.filters |= {"short": format.shortened, "count": format.count}
    made.globals |= {"style": style, "script": script, "policy": policy, "svg": svg, "sizes": figure_sizes}
    made.globals |= {"key_mark": key_mark, "csv_uri": csv_uri, "names_of": ordered_names, "COLORS": theme.COLORS}
    return made


def render(name: str, **values: Any) -> str:
    """The page that a template makes from the values. Characters that cannot be seen are replaced by a sign, and bytes of a
    file name that are no text are escaped, as everywhere."""
    return keep_together(escaped(environment().get_template(name).render(**values)).translate(UNSEEN))


def keep_together(html: str) -> str:
    """The page with no-break spaces in numbers and their units; style, scripts and code stay as they are.

    >>> keep_together("<p>5 %</p><pre>5 % 2</pre>")
    '<p>5\\xa0%</p><pre>5 % 2</pre>'
    """
    made, start = [], 0
    for literal in [*LITERAL.finditer(html), None]:
        part = html[start : literal.start() if literal else len(html)]
        for text in KEPT_TOGETHER:
            part = part.replace(text, text.replace(" ", "\N{NO-BREAK SPACE}"))
        made += [part, literal[0] if literal else ""]
        start = literal.end() if literal else len(html)
    return "".join(made)


def read_asset(name: str) -> Markup:
    """A style sheet or a script of ours, to be put into a page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


@cache
def style() -> Markup:
    """The style sheet of every page: the palette, then the rules."""
    hidden = (
        f":root:has(#legend .t{n}:not(:checked)) .s{n}, figure:has(.t{n}:not(:checked)) .s{n} {{ display: none; }}"
        for n in range(32)
    )
    colors = (f".c{n} {{ --own: var(--c{n}); }}" for n in range(theme.COLORS))
    return Markup("\n").join(map(Markup, (theme.css_variables(), read_asset("style.css"), *colors, *hidden)))


@cache
def script() -> Markup:
    """The script of every page: the theme, and the values of charts under the pointer or the keyboard."""
    return read_asset("page.js")


@cache
def policy(with_script: bool = True) -> str:
    """What a page may load: nothing from outside, and no script but ours."""
    allowed = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'"
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return f"{allowed}; script-src 'sha256-{digest}'" if with_script else allowed


def breakable(text: str) -> Markup:
    """A name that a narrow column may break after "_", "@" and "/", and nowhere else.

    >>> str(breakable("deit_nano@lr=1e-3<"))
    'deit_<wbr>nano@<wbr>lr=1e-3&lt;'
    """
    return Markup("<wbr>").join(re.split(r"(?<=[_@/])", text))


def data_uri(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def csv_uri(table: Any) -> str:
    """A pandas table as a CSV file inside a page."""
    return data_uri(frame_csv(table).encode(), "text/csv")


def frame_csv(table: Any) -> str:
    """A pandas table as CSV, in which no text is a formula (see `files.csv_cell`)."""
    safe = table.map(lambda value: csv_cell(escaped(value)) if isinstance(value, str) else value)
    text: str = safe.rename(columns=csv_cell).to_csv(index=False)
    return text


class Picture(TypedDict):
    """A picture in a page with its size there; pixelated: enlarged without smoothing."""

    uri: str
    width: int
    height: int
    pixelated: bool


def picture(array: NDArray[np.uint8], side: int = SIDE, stored: int = STORED) -> Picture:
    """A picture of about `side` CSS pixels. Small ones are enlarged by a whole number, large ones are stored small."""
    image = Image.fromarray(np.ascontiguousarray(array))
    largest = max(image.size)
    scale = side // largest if largest <= side // 2 else side / largest
    width, height = (max(1, round(edge * scale)) for edge in image.size)
    if largest > stored:
        image.thumbnail((stored, stored), Image.Resampling.LANCZOS)
    return {"uri": image_uri(np.asarray(image)), "width": width, "height": height, "pixelated": largest <= side // 2}


def image_uri(array: NDArray[np.uint8]) -> str:
    """Pixels as a PNG inside a page."""
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(stream, "PNG", optimize=True)
    return data_uri(stream.getvalue())
