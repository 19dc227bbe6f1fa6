"""Weights that come with the package, and the cards that say what they have seen.

    find_card("soft_nano")       the card of soft_nano.json, where soft_nano.safetensors lies beside it; None otherwise

`scripts/make_backbone.py` makes both files. The weights are float16 and have no head: a user's classes are other ones. A card
without weights, or weights without a card, count as none.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from softbias.bounds import Count, Finite, Length, LongText, Probability, ShortText, Side, Text, Within
from softbias.json_file import read_json
from softbias.schema import Checked, from_plain

FOLDER = Path(__file__).resolve().parent
SUFFIX = ".safetensors"
MOST_BYTES = 3_000_000  # of one file: the package stays small
Three = Length(3, 3)


@dataclass(frozen=True)
class SeenSet(Checked):
    """An image set that weights have learned from.

    images   different ones; accuracy: on its test split, which was not trained on
    """

    name: ShortText
    splits: ShortText
    images: Count
    terms: ShortText
    source: ShortText
    accuracy: Probability | None = None
    test_images: Count | None = None


@dataclass(frozen=True)
class Card(Checked):
    """What weights are, what they saw, and how to make them again.

    parameters   of the model without its head; img_size, patch_size: of the training
    mean, std    by which images were normalized
    made_with    versions, device, steps and seconds, as text
    """

    model: ShortText
    revision: ShortText
    license: ShortText
    sha256: Annotated[str, Text(64, 64)]
    bytes: Annotated[int, Within(1, MOST_BYTES)]
    parameters: Count
    img_size: Side
    patch_size: Side
    mean: Annotated[tuple[Finite, ...], Three]
    std: Annotated[tuple[Finite, ...], Three]
    saw: Annotated[tuple[SeenSet, ...], Length(1, 100)]
    command: LongText
    made_with: LongText

    @property
    def name(self) -> str:
        return f"softbias/{self.model}"

    @property
    def trained_on(self) -> str:
        return " and ".join(each.name for each in self.saw)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def weights_path(model: str) -> Path:
    """Where the weights of a model lie, if the package has any."""
    return FOLDER / f"{model}{SUFFIX}"


def card_path(weights: Path) -> Path:
    return weights.with_suffix(".json")


def find_card(model: str) -> Card | None:
    """The card of the weights that come with the package for a model; None where there are none."""
    weights = weights_path(model)
    if not weights.is_file() or not card_path(weights).is_file():
        return None
    return from_plain(Card, read_json(card_path(weights)), str(card_path(weights)))


def cards() -> tuple[Card, ...]:
    """Those of all weights that come with the package."""
    found = (find_card(path.stem) for path in sorted(FOLDER.glob(f"*{SUFFIX}")))
    return tuple(card for card in found if card is not None)
