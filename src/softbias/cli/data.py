"""`softbias data check`, `softbias data scenes` and `softbias data cache`."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from softbias.bounds import Count, FilePath, Scale, Seed, ShortText, Side, Within
from softbias.cli.parsing import flag
from softbias.terminal import echo, show_count

if TYPE_CHECKING:
    from softbias.data.check import Report


def check(
    data: Annotated[
        ShortText, tyro.conf.Positional, flag("DATA", "A folder of pictures, a CSV file (path, label), arrays, or a named set.")
    ],
    /,
    group_by: ShortText | None = None,
    data_dir: FilePath | None = None,
    files: Annotated[int, Within(0, 1_000_000)] = 10,
    json: bool = False,
) -> int:
    """Is a set of pictures fit to train on? Exit status 0 if it is, 1 if not.

    Counts per class and split, sizes, files that cannot be read, copies across splits, imbalance; no file is changed.

    Args:
        group_by: Expression on the files' paths, or a column of the CSV file: a split must keep each group whole.
        data_dir: Folder of named sets.
        files: Number of files to name per problem.
        json: Print JSON, with every file.
    """
    from softbias.data.check import check as check_set

    def tell(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            show_count(done, total)

    report = check_set(data, group_by=group_by, data_dir=data_dir, progress=tell)
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


def scenes(
    kind: Annotated[Literal["combined", "background"], tyro.conf.Positional, flag("KIND", "combined or background.")],
    data: Annotated[ShortText, tyro.conf.Positional, flag("DATA", "A named set, or your own pictures.")],
    /,
    out: FilePath,
    n: Count = 1000,
    seed: Seed = 0,
    split: Literal["test", "val", "train", "all"] = "test",
    img_size: Side | None = None,
    backgrounds: FilePath | None = None,
    size: Side | None = None,
    scale: Scale = 1.0,
    position: Literal["random", "center", "corner"] = "random",
    data_dir: FilePath | None = None,
) -> None:
    """Write scenes made of a set's pictures as a set of their own, after the ETH study.

    combined puts four pictures of different classes into one; background pastes a picture on a large background. OUT/scenes.csv
    has the classes of each scene, and the numbers of the pictures in it. Scenes with a background lie in a folder per class:

      softbias data scenes background cifar10 --out on-backgrounds
      softbias evaluate runs/mine --data on-backgrounds/scenes.csv --split all
      softbias fit on-backgrounds/scenes.csv --group-by source
      softbias data scenes combined cifar10 --out four-in-one
      softbias predict runs/mine four-in-one --out answers.csv

    Args:
        out: A new folder.
        n: Number of scenes.
        seed: Seed of the choice of pictures, backgrounds and positions.
        split: Part of the set that the pictures are taken from.
        img_size: Side of the pictures in a scene; the set's own if not given.
        backgrounds: Folder of pictures; by default $SOFTBIAS_DATA/backgrounds, or else textures.
        size: Side of a scene with a background; four times the picture's if not given.
        scale: Of the pasted picture; 2 makes it twice as large.
        position: Of the pasted picture.
        data_dir: Folder of named sets.
    """
    from softbias.data import load_dataset
    from softbias.data.scene_files import require_new, write_scenes
    from softbias.pages.wording import text

    require_new(out)
    found = load_dataset(data, img_size=img_size, data_dir=data_dir)
    for note in found.notes:
        echo(f"note: {text(note)}")
    written = write_scenes(
        kind, found, out, n=n, seed=seed, split=split, backgrounds=backgrounds, size=size, scale=scale, position=position
    )
    behind = f" on {written.backgrounds}" if written.backgrounds else ""
    made = f"made of {written.images:,} pictures of {found.name} ({split}){behind}"
    echo(f"{written.count:,} scenes of {written.side} × {written.side} px, {made}: {written.table}")
    if written.renamed:
        echo(f"folders cannot have the names of {', '.join(written.renamed)}; {written.table.name} has them as they are")


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
