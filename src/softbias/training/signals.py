"""What happens when somebody asks this process to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(ask: Callable[[int, Any], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call `ask` inside; afterwards they do what they did before."""
    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever started the thread decides
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
