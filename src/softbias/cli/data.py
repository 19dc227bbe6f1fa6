"""`softbias data check` and `softbias data cache`."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from softbias.bounds import FilePath, ShortText, Within
from softbias.cli.parsing import flag
from softbias.terminal import echo, show_count

if TYPE_CHECKING:
    from softbias.data.check import Report


def check(
    path: Annotated[FilePath, tyro.conf.Positional, flag("DATA", "A folder of pictures, a CSV file (path, label), or arrays.")],
    /,
    group_by: ShortText | None = None,
    files: Annotated[int, Within(0, 1_000_000)] = 10,
    json: bool = False,
) -> int:
    """Is a set of pictures fit to train on? Exit status 0 if it is, 1 if not.

    Counts per class and split, sizes, files that cannot be read, copies across splits, imbalance; no file is changed.

    Args:
        group_by: Expression on the files' paths, or a column of the CSV file: a split must keep each group whole.
        files: Number of files to name per problem.
        json: Print JSON, with every file.
    """
    from softbias.data.check import check as check_set

    def tell(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            show_count(done, total)

    report = check_set(path, group_by=group_by, progress=tell)
    if json:
        echo(*json_module.dumps(as_json(report), indent=2).split("\n"))
    else:
        echo(*in_lines(report, files))
    return 0 if report.fit_to_train else 1


def as_json(report: Report) -> dict[str, Any]:
    """The report with a sentence for each problem and note."""
    from softbias.pages.wording import text

    plain = report.to_dict()
    for problem, row in zip(report.problems, plain["problems"], strict=True):
        row["text"] = text(problem.note)
    reasons = [row["text"] for row in plain["problems"] if row["severity"] == "error"]
    return plain | {"notes": [{**note.to_dict(), "text": text(note)} for note in report.notes], "reasons": reasons}


def in_lines(report: Report, most: int = 10) -> list[str]:
    """The report as text; each problem names at most `most` files."""
    from softbias.data.listing import counted_images
    from softbias.pages.wording import text

    lines = [f"{report.name}: {counted_images(report.total)}, {len(report.counts)} classes"] if report.counts else []
    splits = list(dict.fromkeys(split for count in report.counts.values() for split in count))
    width = max((len(name) for name in report.counts), default=0)
    if splits:
        lines.append(f"  {'':{width}}" + "".join(f"{split:>8}" for split in splits))
    for name, count in report.counts.items():
        lines.append(f"  {name:{width}}" + "".join(f"{count.get(split, 0):>8}" for split in splits))
    if report.sizes:
        lines.append("sizes: " + ", ".join(f"{name} {size[0]} × {size[1]}" for name, size in report.sizes.items()))
        lines.append("modes: " + ", ".join(f"{mode} {count}" for mode, count in report.modes.items()))
    lines += [f"note: {text(note)}" for note in report.notes]
    for problem in report.problems:
        lines.append(f"{problem.severity}: {text(problem.note)}")
        lines += [f"  {name}" for name in problem.files[:most]]
        if len(problem.files) > most:
            lines.append(f"  and {len(problem.files) - most} more")
    warnings = sum(problem.severity == "warning" for problem in report.problems)
    heed = f"; {warnings} warning{'' if warnings == 1 else 's'} above" if warnings else ""
    return [*lines, f"fit to train on{heed}" if report.fit_to_train else "NOT fit to train on"]


def cache(clear: bool = False, json: bool = False) -> None:
    """Show the folder of decoded pictures and its size, or clear it; $SOFTBIAS_CACHE names another folder.

    Args:
        clear: Remove them all; they are decoded again when they are needed.
        json: Print JSON.
    """
    from softbias.data.cache_folder import cache_location, cache_size, clear_cache

    folder = cache_location()
    size = clear_cache() if clear else cache_size()
    if json:
        echo(json_module.dumps({"folder": str(folder), "bytes": 0 if clear else size, "freed": size if clear else 0}))
    elif clear:
        echo(f"{size / 1e6:,.1f} MB freed in {folder}")
    else:
        echo(f"{size / 1e6:,.1f} MB of decoded pictures in {folder}")
