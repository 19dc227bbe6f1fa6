"""What a setting may be, stated at its field: `lr: Annotated[float, Within(0, 1000, above=True)]`.

`softbias.schema` reads these bounds wherever a value comes in: from a file, from the command line, as an argument in Python.
A number is finite and has a largest value, because a typing error (`--epochs 1e9`) should not be found after a week. The types
below are those that several rooms share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any


class Bound:
    """A condition on a value that has the right type already; its text completes "must be a number …"."""

    def allows(self, value: Any) -> bool:
        raise NotImplementedError

    def hint(self, given: Any) -> str:
        """What a wrong value may have been meant as."""
        return ""


@dataclass(frozen=True)
class Within(Bound):
    """A number from `least` to `most`.

    above   `least` itself is excluded
    below   `most` itself is excluded

    >>> str(Within(0, 1)), str(Within(0, 1, above=True)), Within(0, 1, above=True).allows(0)
    ('from 0 to 1', 'of more than 0 and at most 1', False)
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def allows(self, value: Any) -> bool:
        low = self.least < value if self.above else self.least <= value
        high = value < self.most if self.below else value <= self.most
        return bool(low and high)  # False for NaN

    def __str__(self) -> str:
        low, high = (f"{edge:,}" if isinstance(edge, int) else f"{edge:g}" for edge in (self.least, self.most))
        if not self.above and not self.below:
            return f"from {low} to {high}"
        return f"of {'more than' if self.above else 'at least'} {low} and {'less than' if self.below else 'at most'} {high}"


class Share(Within):
    """A part of something, where a percentage may have been meant.

    >>> Share(0, 1, above=True).hint(10)
    '; for 10 % give 0.1'
    """

    def hint(self, given: Any) -> str:
        return f"; for {given:g} % give {given / 100:g}" if isinstance(given, int | float) and 1 < given <= 100 else ""


class ShareOfSide(Within):
    """A part of an image's side, where pixels may have been meant.

    >>> ShareOfSide(0, 1).hint(4)
    '; it is a share of the side: 4 of 32 pixels are 0.125'
    """

    def hint(self, given: Any) -> str:
        likely = isinstance(given, int | float) and 1 < given <= 32
        return f"; it is a share of the side: {given:g} of 32 pixels are {given / 32:g}" if likely else ""


@dataclass(frozen=True)
class Text(Bound):
    """Text of a length that a file system, a table or a page can hold, without the character NUL.

    >>> Text().allows(""), Text(least=0).allows(""), Text().allows("a\\0b")
    (False, True, False)
    """

    least: int = 1
    most: int = 4096

    def allows(self, value: Any) -> bool:
        text = str(value)
        return self.least <= len(text) <= self.most and "\0" not in text and (not self.least or bool(text.strip()))

    def __str__(self) -> str:
        return f"of {'' if not self.least else f'{self.least:,} to '}{'at most ' * (not self.least)}{self.most:,} characters"


@dataclass(frozen=True)
class Length(Bound):
    """A list with a number of entries, such as one that names at least one layer."""

    least: int
    most: int

    def allows(self, value: Any) -> bool:
        return self.least <= len(value) <= self.most

    def __str__(self) -> str:
        return f"with {self.least:,} to {self.most:,} entries"


@dataclass(frozen=True)
class Rising(Bound):
    """A range: its first number is not larger than its second."""

    def allows(self, value: Any) -> bool:
        pair: Sequence[float] = value
        return pair[0] <= pair[1]

    def __str__(self) -> str:
        return "with the smaller one first"


LARGEST_SEED = 2**63 - 1
LARGEST_SIDE = 8192  # pixels

Port = Annotated[int, Within(0, 65_535)]
Rounds = Annotated[int, Within(2, 1_000_000)]
Classes = Annotated[int, Within(0, 1_000_000)]  # 0: a model without a head
Seed = Annotated[int, Within(0, LARGEST_SEED)]
Fraction = Annotated[float, Share(0, 1, above=True)]
Probability = Annotated[float, Within(0, 1)]
NotWhole = Annotated[float, Share(0, 1, below=True)]  # a share that leaves something
Count = Annotated[int, Within(1, 1_000_000_000)]
Index = Annotated[int, Within(0, 1_000_000_000)]
Epochs = Annotated[float, Within(0, 1_000_000, above=True)]
Minutes = Annotated[float, Within(0, 1_000_000, above=True)]  # two years
BatchSize = Annotated[int, Within(1, 1_000_000)]
Workers = Annotated[int, Within(0, 1024)]  # processes or threads
Tiles = Annotated[int, Within(1, 1024)]  # along a side of a picture
Scale = Annotated[float, Within(0, 100, above=True)]
Side = Annotated[int, Within(1, LARGEST_SIDE)]
ShortText = Annotated[str, Text()]
LongText = Annotated[str, Text(least=0, most=100_000)]
Blocks = Annotated[int, Within(1, 1000)]  # of a model
BlockCount = Annotated[int, Within(0, 1000)]  # some of them
Coordinate = Annotated[float, Within(-1000, 1000)]  # in patches
ImageValue = Annotated[float, Within(-1e12, 1e12)]  # of a pixel, before it becomes a byte
ValueRange = tuple[ImageValue, ImageValue]  # black and white
Finite = Annotated[float, Within(-1e6, 1e6)]
Centers = ShortText | Sequence[Sequence[Coordinate]]
FilePath = Annotated[Path, Text()]
AnyPath = Annotated[str | Path, Text()]
