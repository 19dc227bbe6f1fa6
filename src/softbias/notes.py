"""A note to the user as data: a kind and its values. `pages.wording` says it in a sentence, at the edge.

    Note("broken-images", {"count": 3, "files": ["a.jpg", "b.jpg", "c.jpg"]})

So a reader of a run decides by kinds and values, and never by the words of a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Note:
    """kind: one of `pages.wording.WORDING`; values: what the sentence is made from, as JSON has it."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": dict(self.values)}
