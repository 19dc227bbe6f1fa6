"""Attention mechanisms, one per file, and the registry that names them.

A new one takes a file, a line in ATTENTION and a test of a limit where it becomes one we know; CONTRIBUTING.md shows it.
From outside the package: `register_attention("mine", Mine)`, or an entry point in the group "softbias.attention".
"""

from __future__ import annotations

from importlib.metadata import entry_points

from softbias.attention.base import Attention, ConversionError, NoAttentionMapError
from softbias.attention.dwconv import DepthwiseConv
from softbias.attention.full import Full
from softbias.attention.gated import Gated
from softbias.attention.masked import Masked
from softbias.attention.positional import Positional
from softbias.attention.window import Window
from softbias.errors import SoftbiasError, unknown_name

__all__ = [
    "ATTENTION",
    "Attention",
    "ConversionError",
    "DepthwiseConv",
    "Full",
    "Gated",
    "Masked",
    "NoAttentionMapError",
    "Positional",
    "Window",
    "find_attention",
    "list_attention",
    "register_attention",
]

ATTENTION: dict[str, type[Attention]] = {
    "full": Full,
    "positional": Positional,
    "gated": Gated,
    "masked": Masked,
    "window": Window,
    "dwconv": DepthwiseConv,
}

ENTRY_POINTS = "softbias.attention"


def register_attention(name: str, mechanism: type[Attention]) -> type[Attention]:
    """Make a mechanism from outside the package usable by name in every spec and command."""
    if not (isinstance(mechanism, type) and issubclass(mechanism, Attention)):
        raise SoftbiasError(f"a mechanism must be a subclass of softbias.attention.Attention, but got {mechanism!r}")
    if ATTENTION.get(name, mechanism) is not mechanism:
        raise SoftbiasError(f"the name {name!r} is taken by {ATTENTION[name].__module__}.{ATTENTION[name].__qualname__}")
    ATTENTION[name] = mechanism
    return mechanism


def find_attention(name: str) -> type[Attention]:
    if name not in ATTENTION:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            register_attention(name, point.load())
    if name not in ATTENTION:
        raise unknown_name("attention", name, list_attention())
    return ATTENTION[name]


def list_attention() -> list[str]:
    return sorted({*ATTENTION, *(point.name for point in entry_points(group=ENTRY_POINTS))})
