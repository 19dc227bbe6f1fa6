"""Losses on attention maps: their registry, and the words that choose them.

    distance:layer=2,weight=0.01            layers count from 0; −1 is the last
    style:layer=0+4,weight=0.01,rho=0.17    several layers: the value is their mean

A new one takes a file with a `Regularizer`, a line in REGULARIZERS, and a test of a value known in closed form. From outside
the package: `register_regularizer("mine", Mine)`, or an entry point in the group "softbias.regularizers".
`softbias.regularizers.contract.check_regularizer("mine")` tests its contract.

`softbias.regularizers.attach` attaches them to the layers of a model in training.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from softbias.bounds import Length, ShortText, Within
from softbias.errors import SoftbiasError
from softbias.registry import Registry
from softbias.regularizers.base import Regularizer, head_average, minmax, reduce
from softbias.regularizers.distance import Distance, attention_penalty, distance_loss, distance_penalty
from softbias.regularizers.style import Style, patch_grams, style_loss, style_similarity
from softbias.schema import Checked, SchemaError, check_options

__all__ = [
    "REGULARIZERS",
    "Distance",
    "Regularizer",
    "RegularizerConfig",
    "Style",
    "attention_penalty",
    "distance_loss",
    "distance_penalty",
    "find_regularizer",
    "head_average",
    "list_regularizers",
    "minmax",
    "parse_regularizer",
    "parse_regularizers",
    "patch_grams",
    "reduce",
    "register_regularizer",
    "style_loss",
    "style_similarity",
]

REGULARIZERS = Registry[type[Regularizer]]("regularizer", group="softbias.regularizers", subclass_of=Regularizer)
REGULARIZERS |= {
    "distance": Distance,
    "style": Style,
}
register_regularizer = REGULARIZERS.register
find_regularizer = REGULARIZERS.find
list_regularizers = REGULARIZERS.names


WEIGHT = 0.01


@dataclass(frozen=True)
class RegularizerConfig(Checked):
    """name: of the registry; layers; weight: λ, 0 logs the value without training on it; options: of the regularizer."""

    name: ShortText
    layers: Annotated[tuple[Annotated[int, Within(-1000, 1000)], ...], Length(1, 1000)]
    weight: Annotated[float, Within(0, 1e6)] = WEIGHT
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_regularizer(text: str) -> RegularizerConfig:
    """
    >>> parse_regularizer("distance:layer=2,weight=0.001,beta=500")
    RegularizerConfig(name='distance', layers=(2,), weight=0.001, options={'beta': 500})
    """
    name, given = REGULARIZERS.parse_choice(text, ("layer", "weight"))
    parameters = inspect.signature(find_regularizer(name)).parameters
    if "layer" not in given:
        raise SoftbiasError(f"which layer? {name}:layer=2 regularizes the third; layers count from 0, but got {text!r}")
    try:
        layers = tuple(int(number) for number in given.pop("layer").split("+"))
    except ValueError:
        raise SoftbiasError(f"layer must be a number, or several as in layer=0+4, but got {text!r}") from None
    weight = number_from("weight", given.pop("weight", str(WEIGHT)), text)
    options = {  # a number where the option's default is one, a word otherwise
        option: number_from(option, value, text) if isinstance(parameters[option].default, int | float) else value
        for option, value in given.items()
    }
    try:
        check_options(find_regularizer(name), options)
        return RegularizerConfig(name, layers, weight, options)
    except SchemaError as error:
        raise SchemaError(f"{error} in {text!r}") from error


def number_from(option: str, value: str, text: str) -> Any:
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise SoftbiasError(f"{option} must be a number, but {option}={value} in {text!r}")
    return found


def parse_regularizers(texts: Iterable[str]) -> dict[str, RegularizerConfig]:
    """Configs by the label under which they are logged: the name, and the layers where a name comes more than once.

    >>> list(parse_regularizers(["distance:layer=0", "style:layer=1"]))
    ['distance', 'style']
    >>> list(parse_regularizers(["distance:layer=0", "distance:layer=1+2"]))
    ['distance_0', 'distance_1_2']
    """
    configs = [parse_regularizer(text) for text in texts]
    names = [config.name for config in configs]
    found: dict[str, RegularizerConfig] = {}
    for config in configs:
        label = config.name if names.count(config.name) == 1 else "_".join([config.name, *map(str, config.layers)])
        if label in found:
            raise SoftbiasError(f"{config.name} is given twice for layer {'+'.join(map(str, config.layers))}")
        found[label] = config
    return found
