"""What an attack found: a verdict for each case, and the rules that lead to it.

ok                    the right answer, or one clear line and exit status 2 (1 where a command counts what it left out)
traceback             an exception that is no message to the user
silent wrong number   exit status 0 and another answer than that of undamaged files, without a note
lost artefact         a file of a run is gone, incomplete, or a temporary file stays
hang                  no answer within the time limit
leak                  a file outside the working folder, or another machine, was touched
unclear               another exit status, no line that explains, or raw control characters
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

VERDICTS = ("ok", "traceback", "silent wrong number", "lost artefact", "hang", "leak", "unclear")
WARNING = re.compile(r"damaged|lost|not.finished")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


class HangError(BaseException):
    """A call took longer than its time limit; no `except Exception` on the way stops it."""


class AskedToStopError(BaseException):
    """SIGTERM; a SystemExit would be taken for the end of the command under attack."""


@dataclass(frozen=True)
class Outcome:
    """verdict: one of `VERDICTS`; detail: a few words for the list of failures."""

    verdict: str = "ok"
    detail: str = ""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict


OK = Outcome()


@dataclass(frozen=True)
class Answer:
    """What a command did: its exit status and what it printed, or the exception that escaped."""

    status: int | None
    out: str
    err: str
    error: BaseException | None = None
    leaks: tuple[str, ...] = ()

    def last_line(self) -> str:
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


def where(error: BaseException) -> str:
    """The exception in one line, with the last line of ours that it passed.

    >>> where(ValueError("no"))
    'ValueError: no'
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/softbias/" in frame.filename]
    at = f" at {frames[-1].filename.rpartition('/softbias/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{at}"


def judge(answer: Answer) -> Outcome:
    """The verdict that needs no comparison: nothing escaped, nothing leaked, and a refusal is one clear line."""
    if isinstance(answer.error, HangError):
        return Outcome("hang", str(answer.error))
    if answer.error is not None:
        return Outcome("traceback", where(answer.error))
    if "Traceback (most recent call last)" in answer.err:
        return Outcome("traceback", answer.last_line())
    if answer.leaks:
        return Outcome("leak", "; ".join(answer.leaks[:3]))
    if CONTROL.search(answer.out + answer.err):
        return Outcome("unclear", f"raw control characters are printed: {(answer.out + answer.err)[:200]!r}")
    if answer.status not in (0, 1, 2):
        return Outcome("unclear", f"exit status {answer.status}")
    if answer.status == 2 and not answer.last_line().startswith("softbias:"):
        return Outcome("unclear", f"exit status 2, and the last line is {answer.last_line()[:200]!r}")
    if answer.status == 2 and len(answer.last_line()) > 20_000:
        return Outcome("unclear", f"a line of {len(answer.last_line()):,} characters")
    if answer.status == 1 and not answer.err.strip() and not answer.out.strip():
        return Outcome("unclear", "exit status 1, and nothing is printed")
    return OK


def notes(answer: Answer, reference: Answer) -> list[str]:
    """The lines that say what is wrong: those of stderr that the undamaged run did not print, and any about damage."""
    usual = set((reference.err + reference.out).splitlines())
    lines = [*answer.err.splitlines(), *(line for line in answer.out.splitlines() if WARNING.search(line))]
    return [line for line in lines if line.strip() and line not in usual]


def numbers(text: str) -> set[str]:
    """The numbers of a text, without those in the id of a run, which is no number.

    >>> sorted(numbers("accuracy 0.75 of 12; +3 %; run 5aff71e903"))
    ['0.75', '12', '3']
    """
    return set(re.findall(r"\d+(?:[.,]\d+)*", re.sub(r"\b[0-9a-f]{10}\b", "", text)))
