"""`softbias probe`: what a model's bias is, measured."""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from softbias.cli.options import model_options
from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.probes import Probe
    from softbias.runs.opening import Pair

SCENES = ("combined", "background")  # probes that make their own pictures


def probe(
    models: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        flag("MODEL_OR_RUN", "Runs, folders of saved models, names of `softbias models`, timm:NAME, hf:FOLDER."),
    ],
    /,
    probes: str = "locality,gates,masks",
    data: str | None = None,
    out: Path = Path("."),
    n: int | None = None,
    seed: int = 0,
    split: Literal["test", "val", "train", "all"] = "test",
    checkpoints: bool = False,
    backgrounds: Path | None = None,
    option: Annotated[
        tuple[str, ...],
        tyro.conf.UseAppendAction,
        flag("PROBE.NAME=VALUE", "An option of a probe, such as locality.original=true."),
    ] = (),
    model_option: Annotated[
        tuple[str, ...],
        tyro.conf.UseAppendAction,
        flag("NAME=VALUE", "An option of models given by name, such as patch_size=8."),
    ] = (),
    data_dir: Path | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    json: bool = False,
) -> None:
    """Measure what models are biased to: how far they look, and what they rely on.

    Each probe writes OUT/probes/NAME.csv, the same as .json, and figures; a short table is printed. A model whose weights were
    never trained is labeled "untrained" everywhere. `--probes all` takes every one, `--probes profile` makes one page of the
    most telling numbers of them; probes that a model has nothing for (gates of a DeiT, say) are said and passed over.

      softbias probe runs/a runs/b --probes locality,gates --out look
      softbias probe runs/a --checkpoints --probes locality,gates,masks
      softbias probe runs/a timm:resnet18 --data fashion --probes profile

    Args:
        probes: Names separated by commas, or all; a wrong name lists them.
        data: Pictures; a run's own if not given.
        out: Where the folder probes/ goes.
        n: Pictures; if not given, each probe's own number (1,000, or 5,000 scenes).
        seed: Which pictures, and what becomes of them.
        split: Of the pictures.
        checkpoints: Through training: at the start and at every checkpoint that the run kept.
        backgrounds: Folder of pictures for the probe background; $SOFTBIAS_DATA/backgrounds if it is there, else textures.
        data_dir: Where named sets lie.
        device: Where to compute.
        json: Print the rows as JSON instead of tables.
    """
    from softbias.probes import PROBES, find_probe

    if not models:
        raise SoftbiasError("which models? softbias probe MODEL_OR_RUN… --probes locality,gates")
    every = [name for name in PROBES if name not in ("profile", "illustrations")]  # these measure nothing new
    names = every if probes == "all" else [name.strip() for name in probes.split(",") if name.strip()]
    chosen = {name: find_probe(name) for name in names}
    asked = probe_options(option, chosen, n, seed, split, backgrounds)
    from softbias.environment import find_device
    from softbias.runs.opening import Sets, is_built, pair

    if model_option and not any(map(is_built, models)):
        raise SoftbiasError(f"--model-option is for models that are built here, but {', '.join(models)} is read from files")
    sets, built = Sets(None if data_dir is None else str(data_dir)), model_options(model_option)
    found = with_distinct_names([pair(name, data, sets, device=find_device(device), options=built) for name in models])
    rows = measure_all(found, chosen, asked, checkpoints, out / "probes", quiet=json)
    if json:
        from softbias.probes.rows import plain

        print(json_module.dumps([{key: plain(value) for key, value in row.items()} for part in rows.values() for row in part]))


def with_distinct_names(found: list[Pair]) -> list[Pair]:
    """Two models of the same name are told apart by a number."""
    from softbias.runs.opening import unique

    return [one.called(name) for one, name in zip(found, unique([one.classifier.name for one in found]), strict=True)]


def probe_options(
    given: tuple[str, ...], chosen: dict[str, Probe], n: int | None, seed: int, split: str, backgrounds: Path | None
) -> dict[str, dict[str, Any]]:
    """What each probe is called with: what its function knows of what was asked."""
    import inspect

    own: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for text in given:
        place, dot, rest = text.partition(".")
        if not dot or place not in chosen:
            raise SoftbiasError(
                f"--option takes PROBE.NAME=VALUE with a probe of --probes ({', '.join(chosen)}), but got {text!r}"
            )
        for name, value in model_options((rest,)).items():
            known = [*inspect.signature(chosen[place].measure).parameters][2:]
            if name not in known:
                raise SoftbiasError(f"the probe {place} has no option {name!r}; it has {', '.join(known)}")
            own[place][name] = tuple(value) if isinstance(value, list) else value
    everything = {"seed": seed, "split": split, "n": n, "backgrounds": backgrounds}
    for name, one in chosen.items():
        known = [*inspect.signature(one.measure).parameters]
        common = {key: value for key, value in everything.items() if key in known and value is not None}
        own[name] = common | own[name]
    return own


def measure_all(
    found: list[Pair], chosen: dict[str, Probe], asked: dict[str, dict[str, Any]], checkpoints: bool, folder: Path, quiet: bool
) -> dict[str, list[dict[str, Any]]]:
    """Every probe of every model; a probe that has nothing to say about a model says why and is passed over."""
    from rich.console import Console

    from softbias.pages.format import duration
    from softbias.probes.profile_page import print_profile
    from softbias.probes.timing import expected_seconds, in_words
    from softbias.probes.writing import print_table, write_rows
    from softbias.runs.opening import through_training

    console = Console(highlight=False)
    tell = Console(highlight=False, stderr=True) if quiet else console
    rows: dict[str, list[dict[str, Any]]] = {}
    passed: list[str] = []
    for name, one in chosen.items():
        for named in found:
            classifiers = list(through_training(named)) if checkpoints else [named.classifier]
            options = asked[name]
            if one.passes:
                n = min(options.get("n", one.pictures), pictures_for(name, named.data, options)) * len(classifiers)
                seconds = expected_seconds(one, named.classifier, named.data.img_size, n)
                tell.print(f"{name}: {named.classifier.name}: {in_words(one, n, seconds)}", markup=False, soft_wrap=True)
            started = time.perf_counter()
            try:
                new = [row for classifier in classifiers for row in one.measure(classifier, named.data, **options)]
            except ValueError as error:
                passed.append(f"{name}: {error}")
                tell.print(f"{name}: passed over: {error}", markup=False, soft_wrap=True)
                continue
            rows.setdefault(name, []).extend(new)
            if one.passes:
                tell.print(f"{name}: {named.classifier.name}: took {duration(time.perf_counter() - started)}", markup=False)
        if name in rows:
            files = [*write_rows(rows[name], folder, name), *one.draw(rows[name], folder)]
            if name in SCENES:
                files.append(draw_sheet(name, found[0], folder, asked[name]))
            if not quiet and name == "profile":
                print_profile(rows[name], console)
            elif not quiet:
                print_table(name, rows[name], console)
            tell.print("\n".join(str(file) for file in files), markup=False, soft_wrap=True)
        sys.stdout.flush()
    if not rows:
        raise SoftbiasError(f"no probe had anything to measure: {'; '.join(passed)}")
    return rows


def pictures_for(name: str, data: Dataset, options: dict[str, Any]) -> int:
    """How many there are at most: as many as the split has, or any number of scenes that are made of them."""
    part = data.splits.get(options.get("split", "test"))
    return sys.maxsize if name in SCENES else len(data) if part is None else len(part)


def draw_sheet(name: str, named: Pair, folder: Path, options: dict[str, Any]) -> Path:
    from softbias.probes.scenes import sheet

    known = {key: options[key] for key in ("seed", "split", "backgrounds", "size") if options.get(key) is not None}
    if name == "combined":
        known.pop("backgrounds", None)
    return sheet(named.data, folder / f"{name}_examples.png", kind=name, **known)
