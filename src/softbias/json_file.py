"""JSON files: read so that damage and slips of the hand are found: a key that is given twice, a file without end, nesting that
no file of ours has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from softbias.errors import in_one_line
from softbias.files import open_regular
from softbias.schema import SchemaError

MOST_BYTES = 100_000_000
MOST_BYTES_OF_TABLES = 2_000_000_000  # where a file holds a row for each class, picture or run
MOST_LEVELS = 100


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """The content of a JSON file of at most this number of bytes; the error about any other file names it."""
    with open_regular(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise SchemaError(f"{path} is larger than {most:,} bytes, which no such file is")
    try:
        return parse_json(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON, or of UTF-8
        why = "it is nested too deeply" if isinstance(error, RecursionError) else in_one_line(error)
        raise SchemaError(f"{path} is not JSON that can be read: {why}") from error


def parse_json(text: str) -> Any:
    """
    >>> parse_json('{"lr": 0.1}')
    {'lr': 0.1}
    >>> parse_json('{"lr": 0.1, "lr": 0.2}')
    Traceback (most recent call last):
    softbias.schema.SchemaError: 'lr' is given twice
    """
    found = json.loads(text, object_pairs_hook=unique)
    level = [found]
    for _ in range(MOST_LEVELS):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [value for values in inner for value in values]
        if not level:
            return found
    raise SchemaError(f"it is nested in more than {MOST_LEVELS} levels")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values, each key once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise SchemaError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found
