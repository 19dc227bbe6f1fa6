"""`softbias runs` lists, compares, removes and packs runs."""

from __future__ import annotations

import json as json_module
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from softbias.bounds import FilePath, ShortText
from softbias.cli.parsing import flag, table
from softbias.errors import SoftbiasError
from softbias.pages.format import amount_text, count
from softbias.terminal import echo, make_console

if TYPE_CHECKING:
    from softbias.runs.run import Run
    from softbias.runs.spec import RunSpec
    from softbias.runs.store import Store

WIDE = 1000  # columns of a file or pipe: one line per run
State = Literal["finished", "running", "stopped", "failed"]
Folders = Annotated[
    tuple[FilePath, ...], Positional, flag("FOLDERS", "Folders of runs, stores or studies; runs/ and studies/*/ if not given.")
]


def runs(
    folders: Folders = (),
    /,
    data: ShortText | None = None,
    model: ShortText | None = None,
    arm: ShortText | None = None,
    status: State | None = None,
    json: bool = False,
) -> None:
    """List runs, also those that are being trained, were stopped or failed.

      softbias runs --status failed
      softbias runs studies/fashion --model 'convit_*'

    Args:
        data: Only runs on this set (a shell pattern).
        model: Only runs of this model (a shell pattern).
        arm: Only runs of this arm of a study (a shell pattern).
        status: Only runs in this state.
        json: Print JSON instead of a table.
    """
    rows = [row for row in list_rows(folders) if matches(row, data=data, model=model, arm=arm, status=status)]
    rows.sort(key=lambda row: (row["data"], row["arm"], row["amount"], row["seed"]))
    if json:
        echo(*json_module.dumps(rows, indent=1).split("\n"))
        return
    if not rows:
        echo("no runs")
        return

    terminal, numbers = sys.stdout.isatty(), ("amount", "seed", "accuracy", "minutes")
    found = table("id", "status", "data", "arm", *numbers, "run", right=numbers, fold=("arm", "run") if terminal else ("run",))
    for row in rows:
        accuracy = "" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
        minutes = "" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}"
        words = [*(str(row[name]) for name in ("id", "status", "data")), short_arm(row["arm"])]
        found.add_row(*words, amount_text(row["amount"]), str(row["seed"]), accuracy, minutes, row["run"])
    make_console().print(found)
    for row in rows:
        if row["error"]:
            echo(f"{row['id']}: {row['error']}")


def short_arm(arm: str, most: int = 3) -> str:
    """The name of an arm with a few of its settings.

    >>> short_arm("deit_tiny@ema=0.99@lr=0.001@smoothing=0@steps=3")
    'deit_tiny@ema=0.99@lr=0.001@smoothing=0 and 1 more'
    """
    model, *settings = arm.split("@")
    more = f" and {len(settings) - most} more" if len(settings) > most else ""
    return "@".join([model, *settings[:most]]) + more


def matches(row: dict[str, Any], **filters: str | None) -> bool:
    return all(pattern is None or fnmatch(str(row[name]), pattern) for name, pattern in filters.items())


def list_rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row per run, finished or not; its error is that of its last failure."""
    from softbias.runs.store import read_failure
    from softbias.study.frame import derived_arms, read_row
    from softbias.study.plan import read_plan

    found: dict[Path, dict[str, Any]] = {}
    unplanned: dict[str, RunSpec] = {}
    for given, store, run in find_runs(folders):
        if run.path.absolute() in found:
            continue
        try:
            spec = run.spec
        except SoftbiasError:  # a config that was cut off; the study that meets it begins the run again
            continue
        scores, planned = read_row(run.path) or {}, (read_plan(given) or {}).get(spec.id)
        name = str(run.path)
        if planned is None:
            unplanned[name] = spec
        found[run.path.absolute()] = {
            "id": spec.id,
            "status": store.state_of(run.path, spec.id),
            "data": spec.data,
            "model": spec.model,
            "start": spec.start.name or spec.start.kind,
            "license": spec.start.license,
            "arm": None if planned is None else planned["arm"],
            "amount": spec.amount,
            "seed": spec.seed,
            "accuracy": scores.get("accuracy"),
            "seconds": scores.get("seconds"),
            "run": name,
            "error": read_failure(run.path),
        }
    names = derived_arms(unplanned)
    return [{**row, "arm": row["arm"] or names[row["run"]]} for row in found.values()]


def find_runs(folders: Sequence[Path]) -> Iterator[tuple[Path, Store, Run]]:
    """Every run directory, with its store and with the folder in which it was found."""
    from softbias.runs.run import Run
    from softbias.runs.store import Store
    from softbias.study.frame import find_store

    usual = [Path("runs"), *(file.parent for file in sorted(Path("studies").glob("*/study.yaml")))]
    for folder in folders or [each for each in usual if each.is_dir()]:
        if not folder.is_dir():
            raise SoftbiasError(f"{folder} is no folder; softbias runs FOLDERS takes runs, stores and studies")
        if Run(folder).begun:
            yield folder, Store(folder.parent), Run(folder)
            continue
        store = Store(find_store(folder))
        yield from ((folder, store, Run(inner)) for inner in store.folders() if Run(inner).begun)


def find_run(name: str) -> Run:
    """A run by its folder, or by the beginning of its id among those that `softbias runs` lists."""
    from softbias.runs.run import Run

    if Run(name).begun:
        return Run(name)
    found = {run.path.absolute(): run for _, _, run in find_runs(()) if run.spec.id.startswith(name)}
    if len(found) != 1:
        what = "there is no run" if not found else f"{len(found)} runs begin with"
        raise SoftbiasError(f"{what} {name!r}; give its folder or its id, softbias runs lists them")
    return next(iter(found.values()))


def diff(
    a: Annotated[ShortText, Positional, flag("A", "A run: its folder, or the beginning of its id.")],
    b: Annotated[ShortText, Positional, flag("B", "The other run.")],
    /,
    json: bool = False,
) -> None:
    """Show how two runs differ: in settings, scores, versions and hardware.

    Args:
        json: Print JSON instead of a table.
    """
    from softbias.study.frame import read_row

    both, sides = (find_run(a), find_run(b)), []
    for run in both:
        row = read_row(run.path) or {}
        scores = {name: row.get(name) for name in ("accuracy", "balanced_accuracy", "parameters", "macs", "steps", "seconds")}
        sides.append({**flat(run.spec.to_dict()), **scores, **flat({"environment": run.environment()})})
    names = [name for name in dict.fromkeys((*sides[0], *sides[1])) if sides[0].get(name) != sides[1].get(name)]
    if json:
        plain = {name: [side.get(name) for side in sides] for name in names}
        echo(*json_module.dumps(plain, indent=1, default=str).split("\n"))
        return
    if not names:
        echo(f"{both[0].path} and {both[1].path} do not differ")
        return

    columns = ("", *(str(run.path) for run in both))
    found = table(*columns, fold=columns)
    for name in names:
        found.add_row(name, *(str(side.get(name, "–")) for side in sides))
    make_console().print(found)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    >>> flat({"recipe": {"lr": 1, "augmentation": {"flip": 0}}, "seed": 2})
    {'recipe.lr': 1, 'recipe.augmentation.flip': 0, 'seed': 2}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def delete(
    which: Annotated[tuple[ShortText, ...], Positional, flag("RUNS", "Folders of runs, or beginnings of their ids.")] = (),
    /,
    data: ShortText | None = None,
    model: ShortText | None = None,
    arm: ShortText | None = None,
    status: Literal["finished", "stopped", "failed"] | None = None,
    yes: bool = False,
) -> int:
    """Remove runs, after asking. A run that a process is working on is left alone.

      softbias runs delete --status failed
      softbias runs delete 3f2a --yes

    Args:
        data: All runs on this set (a shell pattern).
        model: All runs of this model (a shell pattern).
        arm: All runs of this arm of a study (a shell pattern).
        status: All runs in this state.
        yes: Do not ask.
    """
    filters = {"data": data, "model": model, "arm": arm, "status": status}
    if not which and not any(filters.values()):
        raise SoftbiasError("which runs? softbias runs delete RUNS, or --data, --model, --arm, --status")
    rows = [row for row in list_rows([find_run(name).path for name in which]) if matches(row, **filters)]
    for row in rows:
        echo(f"{row['status']:9} {row['run']}")
    if not rows:
        echo("no runs")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise SoftbiasError("removing runs needs a confirmation, but there is no terminal to ask in; --yes removes them")
        if input(f"remove {count(len(rows), 'run')}? [y/N] ").strip().lower() not in ("y", "yes"):
            echo("nothing was removed")
            return 0
    return remove(rows)


def remove(rows: Sequence[dict[str, Any]]) -> int:
    from softbias.runs.store import Store

    kept = 0
    for row in rows:
        folder = Path(row["run"])
        claim = Store(folder.parent).claim(row["id"])
        if claim is None:
            echo(f"softbias: {folder} is being worked on and stays", file=sys.stderr)
            kept += 1
            continue
        with claim:
            folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)  # tuning links to runs of the study
    echo(f"{count(len(rows) - kept, 'run')} removed")
    return 1 if kept else 0


def pack(
    studies: Annotated[
        tuple[FilePath, ...], Positional, flag("STUDY…", "The folder of a study; or its parts, folders and packed files.")
    ],
    /,
    out: Annotated[FilePath | None, flag("FILE.zip", "Where to write; the name of the study's folder if not given.")] = None,
) -> None:
    """Write the finished runs of a study to one small file that others can keep and read.

    It has settings, scores, learning curves, probes, and class and confidence of every test picture; no weights, no pictures
    and no names of files. softbias report FILE.zip writes the page from it.

      softbias runs pack studies/flowers --out flowers.zip
      softbias runs pack part1.zip part2.zip --out flowers.zip
    """
    if not studies:
        raise SoftbiasError("softbias runs pack needs the folder of a study, but none was given")
    if out is None and len(studies) > 1:
        raise SoftbiasError("several parts of a study are written to a new file; name it with --out FILE.zip")
    from softbias.study.packing import pack as pack_study

    packed = pack_study(*studies, out=out or Path(f"{studies[0].absolute().name}.zip"))
    size = f"{packed.bytes / 1e6:.2g} MB"
    echo(f"{packed.path}: {count(packed.runs, 'run')}, {size}; softbias report {packed.path} draws its page")
    if packed.outside:
        echo(f"left out: {count(packed.outside, 'finished run')} of arms, sets, amounts or seeds that the study had before")
