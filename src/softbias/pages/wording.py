"""Notes in words: one sentence for every kind of note, the same in the terminal and on pages."""

from __future__ import annotations

from collections.abc import Callable

from softbias.errors import unknown_name
from softbias.notes import Note

WORDING: dict[str, Callable[..., str]] = {
    "text": lambda text: str(text),
    "run-continued": lambda step, total: f"it continued at step {step} of {total}",
    "run-began-again": lambda reason: f"it began again, because {reason}",
    "probe-not-measurable": lambda probe, model, reason: f"{probe} of {model} is left out: {reason}",
}


def text(note: Note) -> str:
    """The note as one sentence.

    >>> text(Note("text", {"text": "the test split is small"}))
    'the test split is small'
    """
    if note.kind not in WORDING:
        raise unknown_name("kind of note", note.kind, WORDING)
    return WORDING[note.kind](**note.values)
