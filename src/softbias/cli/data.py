"""`softbias data check` and `softbias data cache`."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import tyro

from softbias.cli.parsing import flag


def check(
    path: Annotated[Path, tyro.conf.Positional, flag("DATA", "A folder of pictures, a CSV file (path, label), or arrays.")],
    /,
    group_by: str | None = None,
    files: int = 10,
    json: bool = False,
) -> int:
    """Is a set of pictures fit to train on? Exit status 0 if it is, 1 if not.

    Counts per class and split, sizes, files that cannot be read, copies across splits, imbalance; no file is changed.

    Args:
        group_by: Expression on the files' paths, or a column of the CSV file: groups must not be torn apart by a split.
        files: How many files are named per problem.
        json: Print JSON, with every file.
    """
    from softbias.data.check import check as look

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty() and (done % 100 == 0 or done == total):
            print(f"\r{done:,} of {total:,}" + ("\r\x1b[K" if done == total else ""), end="", file=sys.stderr, flush=True)

    report = look(path, group_by=group_by, progress=tell)
    if json:
        print(json_module.dumps(report.to_dict(), indent=2))
    else:
        print("\n".join(report.lines(files)))
    return 0 if report.fit_to_train else 1


def cache(clear: bool = False, json: bool = False) -> None:
    """Where decoded pictures are kept, how much they take, and clearing them; $SOFTBIAS_CACHE moves them.

    Args:
        clear: Remove them all; they are decoded again when they are needed.
        json: Print JSON.
    """
    from softbias.data.cache import cache_location, cache_size, clear_cache

    place = cache_location()
    size = clear_cache() if clear else cache_size()
    if json:
        print(json_module.dumps({"place": str(place), "bytes": 0 if clear else size, "freed": size if clear else 0}))
    elif clear:
        print(f"{size / 1e6:,.1f} MB freed in {place}")
    else:
        print(f"{size / 1e6:,.1f} MB of decoded pictures in {place}")
