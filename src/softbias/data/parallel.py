"""Look at many pictures at once, with threads: Pillow lets go of the interpreter while it decodes and resizes.

On two cores, JPEG of 500 × 375 to 64 × 64: 600 pictures/s with one thread, 910 with four, 780 with two processes.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Generator[Result, None, None]:
    """function(item) for each item, in order, a few ahead of their use and never all in memory.

    Pillow's warnings (damaged EXIF, large pictures) are silent meanwhile: `decode` has its own limit. The filter is set
    here and not in the function, because that is not safe in threads.
    """
    workers = workers or 2 * cores()
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[Result]] = deque()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
