"""Long work that a nonsense command may ask for ends where it would begin: the command was accepted, and that is enough."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from attacks.verdict import Answer
from attacks.workshop import LIMIT, Workshop

ACCEPTED = 99  # exit status of a command whose long work was about to begin


class ReachedError(BaseException):
    """The work would begin now."""


def reached(*args: Any, **options: Any) -> Any:
    raise ReachedError


@contextlib.contextmanager
def no_long_work() -> Iterator[None]:
    import uvicorn

    import softbias.bench.suites as suites
    import softbias.runs.fit
    import softbias.study.compare

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context
        patch(mock.patch.object(softbias.runs.fit, "train", reached))
        patch(mock.patch.object(softbias.study.compare, "plan_study", reached))
        patch(mock.patch.object(softbias.study.compare, "search", reached))
        patch(mock.patch.object(uvicorn.Server, "run", reached))
        patch(mock.patch.dict(suites.SUITES, dict.fromkeys(suites.SUITES, reached)))
        yield


def call_briefly(shop: Workshop, words: list[Any], seconds: float = LIMIT) -> Answer:
    """The answer to a command, with the status `ACCEPTED` where it would work for long."""
    from softbias.cli import main

    def run() -> int:
        try:
            return main([str(word) for word in words])
        except ReachedError:
            return ACCEPTED

    with no_long_work():
        return shop.measure(run, seconds)
