"""YAML files: read so that a slip of the hand is found (a key that is given twice, a file without end, aliases that unfold to
millions of values), and written so that the same values are read again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from softbias.errors import SoftbiasError, in_one_line
from softbias.files import open_regular

MOST_BYTES = 10_000_000
MOST_VALUES = 1_000_000  # in a file, with its aliases unfolded


EXPONENT = re.compile(r"[-+]?(\d+\.?|\.\d)\d*[eE][-+]?\d+$")


class Dumper(yaml.SafeDumper):
    """YAML's safe dumper, which quotes the text "1e-3"."""


class Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key that is given twice, and reads 1e-3 as a number, as everybody means it."""


def unique_mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, yaml.Node] = {}
    for key, _ in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else None
        if name in seen and name is not None:
            line, before = key.start_mark.line + 1, seen[name].start_mark.line + 1
            raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice, in the lines {before} and {line}")
        seen[name] = key
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, unique_mapping)
for each in (Loader, Dumper):
    each.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file; the error about one that cannot be read begins with `what`, such as "the study"."""
    try:
        with open_regular(path) as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise SoftbiasError(f"{what} {path} is larger than {MOST_BYTES:,} bytes, which no file of settings is")
        return parse_yaml(content.decode("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SoftbiasError(f"{what} {path} cannot be read: {in_one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, SoftbiasError):
            raise
        why = "it is nested too deeply" if isinstance(error, RecursionError) else in_one_line(error)
        raise SoftbiasError(f"{what} {path} cannot be read: {why}") from error


def parse_yaml(text: str) -> Any:
    """
    >>> parse_yaml("lr: 1e-3")
    {'lr': 0.001}
    """
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if unfolded(node, {}) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(None, None, f"its aliases unfold to more than {MOST_VALUES:,} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def unfolded(node: yaml.Node, known: dict[int, float]) -> float:
    """The number of values of a node, counted as often as aliases repeat them; infinite where it contains itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")  # until it is counted
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        nodes = [each for item in inner for each in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(unfolded(each, known) for each in nodes)
    return known[id(node)]


def to_yaml(plain: Any) -> str:
    """
    >>> parse_yaml(to_yaml({"name": "1e5", "lr": 1e-5}))
    {'name': '1e5', 'lr': 1e-05}
    """
    return yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True)
