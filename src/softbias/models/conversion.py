"""A conversion in the words of a user, and what it does to a model that has learned something.

    gated                               gated attention in every block whose bias can learn
    gated:blocks=0-9                    in some of them; blocks count from 0, and -1 is the last
    masked:blocks=0-3+6,rank=4          several ranges, and options of the mechanism
    gated:rate=20                       its bias learns at 20 times the learning rate

A bias can learn in the blocks that are trained, but for the last one of a model that reads its class token alone: the patches
of that block reach no output, and a class token has no position.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from torch import nn

from softbias.attention import ATTENTION, ConversionError
from softbias.bounds import Length, ShortText, Within
from softbias.errors import SoftbiasError
from softbias.models.convert import convert
from softbias.models.vit import VisionTransformer
from softbias.schema import Checked, SchemaError, check_options

Model = TypeVar("Model", bound=nn.Module)
MOST_BLOCKS = 1000
BIAS = re.compile(r"blocks\.(\d+)\.attn\.(?!qkv\.|proj\.)")  # what a mechanism has beside its projections
RANGE = re.compile(r"(-?\d{1,4})(?:-(\d{1,4}))?")


@dataclass(frozen=True)
class Conversion(Checked):
    """attention: of the registry; blocks: None for all whose bias can learn; rate: by which the learning rate of the bias is
    multiplied; options: of the mechanism."""

    attention: ShortText
    blocks: Annotated[tuple[Annotated[int, Within(-MOST_BLOCKS, MOST_BLOCKS)], ...], Length(1, MOST_BLOCKS)] | None = None
    rate: Annotated[float, Within(0, 1000, above=True)] = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_conversion(text: str) -> Conversion:
    """
    >>> parse_conversion("masked:blocks=0-2+5,rank=4")
    Conversion(attention='masked', blocks=(0, 1, 2, 5), rate=1.0, options={'rank': 4})
    """
    name, given = ATTENTION.parse_choice(text, ("blocks", "rate"))
    blocks = given.pop("blocks", None)
    options = {option: number_or_word(value) for option, value in given.items()}
    rate: Any = options.pop("rate", 1.0)
    try:
        check_options(ATTENTION.find(name), options)
        return Conversion(name, None if blocks is None else parse_blocks(blocks, text), rate, options)
    except SchemaError as error:
        raise SchemaError(f"{error} in {text!r}") from error


def parse_blocks(blocks: str, text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in blocks.split("+"):
        matched = RANGE.fullmatch(part.strip())
        first = int(matched[1]) if matched else 0
        last = first if matched is None or matched[2] is None else int(matched[2])
        if matched is None or last < first or (first < 0 and matched[2] is not None) or last - first >= MOST_BLOCKS:
            raise SoftbiasError(f"blocks are numbers and ranges, as in blocks=0-3+6, but got {text!r}")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def converted(model: Model, conversion: Conversion, frozen_blocks: int = 0) -> Model:
    """The model with the mechanism in the blocks that were named, or in all whose bias can learn.

    `new_parameters` of the model then names what it has not learned yet, with the factor of its learning rate.

    frozen_blocks   that are not trained, counted from the first
    """
    if not isinstance(model, VisionTransformer):
        named = getattr(model, "name", None) or type(model).__name__
        raise ConversionError(
            f"a run converts softbias's own transformers, such as deit_tiny, because others cannot be stored, but got {named}"
        )
    depth = len(model.blocks)
    blocks = conversion.blocks
    if blocks is None:
        blocks = tuple(range(frozen_blocks, depth - (model.spec.pool == "token")))
    if not blocks or min(block % depth for block in blocks) < frozen_blocks:
        raise SoftbiasError(
            f"{conversion.attention} attention learns nothing in the first {frozen_blocks} of {depth} blocks, which are "
            "frozen, nor in the last one of a model that reads its class token: name other blocks, or take --frozen-blocks 0"
        )
    made: Any = convert(model, blocks, conversion.attention, **conversion.options)
    made.new_parameters = {
        name: conversion.rate
        for name, _ in made.named_parameters()
        if (found := BIAS.match(name)) and int(found[1]) in {block % depth for block in blocks}
    }
    return cast(Model, made)


def number_or_word(text: str) -> int | float | str:
    """
    >>> [number_or_word(text) for text in ("4", "1e-3", "square")]
    [4, 0.001, 'square']
    """
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return found if isinstance(found, int | float) else text
