"""Attention mechanisms, one per file, and the registry that names them.

A new one takes a file, a line in ATTENTION and a test of a limit where it becomes one we know; CONTRIBUTING.md shows it.
From outside the package: `register_attention("mine", Mine)`, or an entry point in the group "softbias.attention".
"""

from __future__ import annotations

from softbias.attention.base import Attention, ConversionError, NoAttentionMapError
from softbias.attention.dwconv import DepthwiseConv
from softbias.attention.full import Full
from softbias.attention.gated import Gated
from softbias.attention.masked import Masked
from softbias.attention.positional import Positional
from softbias.attention.window import Window
from softbias.registry import Registry

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

ATTENTION = Registry[type[Attention]]("attention", group="softbias.attention", subclass_of=Attention)
ATTENTION |= {
    "full": Full,
    "positional": Positional,
    "gated": Gated,
    "masked": Masked,
    "window": Window,
    "dwconv": DepthwiseConv,
}
register_attention = ATTENTION.register
find_attention = ATTENTION.find
list_attention = ATTENTION.names
