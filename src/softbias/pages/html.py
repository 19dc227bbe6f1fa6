"""The one template environment: every page is made from `pages/templates` with these settings."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from softbias.pages.format import interval, percent, share

if TYPE_CHECKING:
    from jinja2 import Environment, Template

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """Templates escape what they are given, and an unknown name in one is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"percent": percent, "interval": interval, "share": share}
    return made


def data_uri(png: bytes) -> str:
    """A picture inside the page itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def template(name: str) -> Template:
    return environment().get_template(name)
