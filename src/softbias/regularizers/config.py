"""A regularizer as it is asked for: a name, the layers, the weight, and the regularizer's own options.

distance:layer=2,weight=0.01            layers count from 0; −1 is the last
style:layer=0+4,weight=0.01,rho=0.17    several layers: the value is their mean
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from softbias.errors import SoftbiasError, unknown_name

WEIGHT = 0.01


@dataclass(frozen=True)
class Request:
    """kind "distance" or "style"; layers; weight λ, 0 to log the value without training on it; options of the kind."""

    kind: str
    layers: tuple[int, ...]
    weight: float = WEIGHT
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_request(text: str) -> Request:
    """
    >>> parse_request("distance:layer=2,weight=0.001,beta=500")
    Request(kind='distance', layers=(2,), weight=0.001, options={'beta': 500})
    """
    from softbias.regularizers import REGULARIZERS

    kind, _, rest = text.strip().partition(":")
    if kind not in REGULARIZERS:
        raise unknown_name("regularizer", kind, REGULARIZERS)
    known = [
        name for name, option in inspect.signature(REGULARIZERS[kind]).parameters.items() if option.kind.name == "KEYWORD_ONLY"
    ]
    given: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        name, equals, value = pair.strip().partition("=")
        if not equals or not value:
            raise SoftbiasError(
                f"a regularizer takes NAME=VALUE, as in {kind}:layer=2,weight=0.01, but got {pair!r} in {text!r}"
            )
        if name not in ("layer", "weight", *known):
            raise unknown_name(f"option of the regularizer {kind}", name, ["layer", "weight", *known])
        if name in given:
            raise SoftbiasError(f"{name} is given twice in {text!r}")
        given[name] = value
    if "layer" not in given:
        raise SoftbiasError(f"which layer? {kind}:layer=2 regularizes the third; layers count from 0, but got {text!r}")
    try:
        layers = tuple(int(number) for number in given.pop("layer").split("+"))
    except ValueError:
        raise SoftbiasError(f"layer must be a number, or several as in layer=0+4, but got {text!r}") from None
    weight = number("weight", given.pop("weight", str(WEIGHT)), text)
    if not (math.isfinite(weight) and weight >= 0):
        raise SoftbiasError(f"weight must be at least 0, but weight={weight} in {text!r}")
    options = {name: option_value(REGULARIZERS[kind], name, value, text) for name, value in given.items()}
    return Request(kind, layers, weight, options)


def option_value(kind: type, name: str, value: str, text: str) -> Any:
    """A number where the option's default is one, a word otherwise."""
    default = inspect.signature(kind).parameters[name].default
    return number(name, value, text) if isinstance(default, int | float) else value


def number(name: str, value: str, text: str) -> Any:
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise SoftbiasError(f"{name} must be a number, but {name}={value} in {text!r}")
    return found


def parse_requests(texts: Iterable[str]) -> dict[str, Request]:
    """Requests by the name under which they are logged: the kind, and its layers where a kind comes more than once.

    >>> list(parse_requests(["distance:layer=0", "style:layer=1"]))
    ['distance', 'style']
    >>> list(parse_requests(["distance:layer=0", "distance:layer=1+2"]))
    ['distance_0', 'distance_1_2']
    """
    requests = [parse_request(text) for text in texts]
    kinds = [request.kind for request in requests]
    found: dict[str, Request] = {}
    for request in requests:
        name = request.kind if kinds.count(request.kind) == 1 else "_".join([request.kind, *map(str, request.layers)])
        if name in found:
            raise SoftbiasError(f"{request.kind} is asked for twice on layer {'+'.join(map(str, request.layers))}")
        found[name] = request
    return found
