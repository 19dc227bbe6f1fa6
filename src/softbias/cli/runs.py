"""`softbias runs`: which runs there are, what two differ in, and removing some."""

from __future__ import annotations

import json as json_module
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError
from softbias.pages.format import count, share

if TYPE_CHECKING:
    from softbias.runs.spec import RunSpec
    from softbias.runs.store import Store

WIDE = 1000  # columns of a file or pipe: one line per run
State = Literal["finished", "running", "stopped", "failed"]
Places = Annotated[
    tuple[Path, ...], Positional, flag("FOLDERS", "Of runs, stores or studies; runs/ and studies/*/ if not given.")
]


def runs(
    places: Places = (),
    /,
    data: str | None = None,
    model: str | None = None,
    arm: str | None = None,
    status: State | None = None,
    json: bool = False,
) -> None:
    """List runs, also those that are under way, were stopped or failed.

      softbias runs --status failed
      softbias runs studies/fashion --model 'convit_*'

    Args:
        data: Only of this set (a shell pattern).
        model: Only of this model (a shell pattern).
        arm: Only of this arm of a study (a shell pattern).
        status: Only in this state.
        json: Print JSON instead of a table.
    """
    rows = [row for row in all_rows(places) if wanted(row, data=data, model=model, arm=arm, status=status)]
    rows.sort(key=lambda row: (row["data"], row["arm"], row["train_fraction"], row["seed"]))
    if json:
        print(json_module.dumps(rows, indent=1))
        return
    if not rows:
        print("no runs")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    terminal = sys.stdout.isatty()
    for column in ("id", "status", "data", "arm"):
        table.add_column(column, no_wrap=column != "arm" or not terminal)
    for column in ("train_fraction", "seed", "accuracy", "minutes"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("run", overflow="fold")
    for row in rows:
        accuracy = "" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
        minutes = "" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}"
        cells = (
            row["id"],
            row["status"],
            row["data"],
            row["arm"],
            share(row["train_fraction"]),
            row["seed"],
            accuracy,
            minutes,
        )
        table.add_row(*map(str, cells), row["run"])
    Console(width=None if terminal else WIDE).print(table)
    for row in rows:
        if row["error"]:
            print(f"{row['id']}: {row['error']}")


def wanted(row: dict[str, Any], **filters: str | None) -> bool:
    return all(pattern is None or fnmatch(str(row[name]), pattern) for name, pattern in filters.items())


def all_rows(places: Sequence[Path]) -> list[dict[str, Any]]:
    """A row per run, finished or not; its error is that of its last failure."""
    from softbias.runs.run import Run
    from softbias.runs.store import Store, read_failure
    from softbias.study.frame import derived_arms, read_row
    from softbias.study.plan import read_plan

    found: dict[Path, dict[str, Any]] = {}
    loose: dict[str, RunSpec] = {}
    for place, store, folder in run_places(places):
        if folder.absolute() in found:
            continue
        try:
            spec = Run(folder).spec
        except ValueError:
            continue
        finished = read_row(folder) or {}
        row: dict[str, Any] = {
            "id": spec.id,
            "status": Store(store.path).state_of(folder, spec.id),
            "data": spec.data,
            "model": spec.model,
        }
        row |= {
            "arm": ((read_plan(place) or {}).get(spec.id) or {}).get("arm"),
            "train_fraction": spec.train_fraction,
            "seed": spec.seed,
        }
        row |= {"accuracy": finished.get("accuracy"), "seconds": finished.get("seconds"), "run": str(folder)}
        row["error"] = read_failure(folder)
        found[folder.absolute()] = row
        if row["arm"] is None:
            loose[str(folder)] = spec
    names = derived_arms(loose)
    return [{**row, "arm": row["arm"] or names[row["run"]]} for row in found.values()]


def run_places(places: Sequence[Path]) -> Iterator[tuple[Path, Store, Path]]:
    """(where it was found, its store, its folder) of every run directory."""
    from softbias.runs.store import Store
    from softbias.study.frame import find_store

    given = list(places)
    if not given:
        given = [Path("runs"), *(file.parent for file in sorted(Path("studies").glob("*/study.yaml")))]
        given = [place for place in given if place.is_dir()]
    for place in given:
        if not place.is_dir():
            raise SoftbiasError(f"{place} is no folder; softbias runs FOLDERS takes runs, stores and studies")
        if (place / "config.yaml").is_file():
            yield place, Store(place.parent), place
            continue
        store = Store(find_store(place))
        for folder in store.folders():
            if (folder / "config.yaml").is_file():
                yield place, store, folder


def find_run(name: str, places: Sequence[Path] = ()) -> Path:
    """A run by its folder, or by the beginning of its id among the known ones."""
    if (Path(name) / "config.yaml").is_file():
        return Path(name)
    from softbias.runs.run import Run

    found = {folder.absolute(): folder for _, _, folder in run_places(places) if Run(folder).spec.id.startswith(name)}
    if len(found) != 1:
        what = "there is no run" if not found else f"{len(found)} runs begin with"
        raise SoftbiasError(f"{what} {name!r}; give its folder or its id, softbias runs lists them")
    return next(iter(found.values()))


def diff(
    a: Annotated[str, Positional, flag("A", "A run: its folder, or the beginning of its id.")],
    b: Annotated[str, Positional, flag("B", "The other run.")],
    /,
    json: bool = False,
) -> None:
    """Show what two runs differ in: settings, scores, versions and hardware.

    Args:
        json: Print JSON instead of a table.
    """
    from softbias.runs.run import Run
    from softbias.study.frame import read_row

    first, second = find_run(a), find_run(b)
    sides = []
    for folder in (first, second):
        row = read_row(folder) or {}
        scores = {name: row.get(name) for name in ("accuracy", "balanced_accuracy", "parameters", "macs", "steps", "seconds")}
        spec = flat(Run(folder).spec.to_dict())
        environment = {f"environment.{name}": value for name, value in Run(folder).environment().items()}
        sides.append({**spec, **scores, **environment})
    names = [name for name in dict.fromkeys((*sides[0], *sides[1])) if sides[0].get(name) != sides[1].get(name)]
    if json:
        print(json_module.dumps({name: [side.get(name) for side in sides] for name in names}, indent=1, default=str))
        return
    if not names:
        print(f"{first} and {second} do not differ")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", str(first), str(second)):
        table.add_column(column, overflow="fold")
    for name in names:
        table.add_row(name, *(str(side.get(name, "–")) for side in sides))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


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
    which: Annotated[tuple[str, ...], Positional, flag("RUNS", "Folders of runs, or beginnings of their ids.")] = (),
    /,
    data: str | None = None,
    model: str | None = None,
    arm: str | None = None,
    status: Literal["finished", "stopped", "failed"] | None = None,
    yes: bool = False,
) -> int:
    """Remove runs, after asking. A run that somebody is working on is left alone.

      softbias runs delete --status failed
      softbias runs delete 3f2a --yes

    Args:
        data: All of this set (a shell pattern).
        model: All of this model (a shell pattern).
        arm: All of this arm of a study (a shell pattern).
        status: All in this state.
        yes: Do not ask.
    """
    filters = {"data": data, "model": model, "arm": arm, "status": status}
    if not which and not any(filters.values()):
        raise SoftbiasError("which runs? softbias runs delete RUNS, or --data, --model, --arm, --status")
    folders = [find_run(name) for name in which]
    rows = [row for row in all_rows(folders if which else ()) if wanted(row, **filters)]
    for row in rows:
        print(f"{row['status']:9} {row['run']}")
    if not rows:
        print("no runs")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise SoftbiasError("there is nobody to ask whether these runs shall be removed; --yes removes them")
        if input(f"remove {count(len(rows), 'run')}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 0
    return remove(rows)


def remove(rows: Sequence[dict[str, Any]]) -> int:
    from softbias.runs.store import Store

    kept = 0
    for row in rows:
        folder = Path(row["run"])
        claim = Store(folder.parent).claim(row["id"])
        if claim is None:
            print(f"softbias: {folder} is being worked on and stays", file=sys.stderr)
            kept += 1
            continue
        with claim:
            folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)  # tuning links to runs of the study
    print(f"{count(len(rows) - kept, 'run')} removed")
    return 1 if kept else 0
