"""`softbias probe`: the bias of models, measured."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from softbias.bounds import Count, FilePath, Seed, ShortText
from softbias.cli.parsing import flag, parse_options, switch
from softbias.errors import SoftbiasError
from softbias.terminal import echo


def probe(
    models: Annotated[
        tuple[ShortText, ...],
        tyro.conf.Positional,
        flag("MODEL_OR_RUN", "Runs, studies, folders of saved models, names of `softbias models`, timm:NAME, hf:FOLDER."),
    ],
    /,
    probes: ShortText = "locality,gates,masks",
    data: ShortText | None = None,
    out: FilePath | None = None,
    n: Count | None = None,
    seed: Seed = 0,
    split: Literal["test", "val", "train", "all"] = "test",
    checkpoints: bool = False,
    backgrounds: FilePath | None = None,
    option: Annotated[
        tuple[ShortText, ...],
        tyro.conf.UseAppendAction,
        flag("PROBE.NAME=VALUE", "An option of a probe, such as locality.original=true."),
    ] = (),
    model_option: Annotated[
        tuple[ShortText, ...],
        tyro.conf.UseAppendAction,
        flag("NAME=VALUE", "An option of models given by name, such as patch_size=8."),
    ] = (),
    data_dir: FilePath | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    json: bool = False,
    list: Annotated[bool, switch("Print all probes with a line about each, and measure nothing.")] = False,
) -> None:
    """Measure the bias of models: how far attention reaches, and what the decision relies on.

    Each probe writes OUT/probes/NAME.csv, the same as .json, and figures; a short table is printed. A model whose weights were
    never trained is labeled "untrained" everywhere. `--probes all` takes every probe; `--probes profile` makes one page of
    their most telling numbers. A probe that cannot measure a model (gates of a DeiT) is
    left out with a note.

      softbias probe runs/a runs/b --probes locality,gates --out analysis
      softbias probe runs/a --checkpoints --probes locality,gates,masks
      softbias probe runs/a timm:resnet18 --data fashion --probes profile
      softbias probe studies/mine --probes profile        # all its runs; softbias report studies/mine draws scores by them

    Args:
        probes: Names separated by commas, or all; a wrong name lists them.
        data: Pictures; a run's own if not given.
        out: The folder for probes/; if not given, that of the study, and else this one.
        n: Number of pictures; if not given, each probe's own number (1,000, or 5,000 scenes).
        seed: Seed of the choice of pictures, and of random changes to them.
        split: Part of the set.
        checkpoints: Measure at the start and at every checkpoint that the run kept.
        backgrounds: Folder of pictures for the probe background; by default $SOFTBIAS_DATA/backgrounds, or else textures.
        data_dir: Folder of named sets.
        device: Where to compute.
        json: Print the rows as JSON instead of tables.
    """
    if list:
        print_list()
        return
    from softbias.probes.rows import plain_row
    from softbias.runs.probing import PrintedProbes
    from softbias.runs.probing import probe as measure

    result = measure(
        models,
        probes,
        data=data,
        out=out or default_folder(models),
        n=n,
        seed=seed,
        split=split,
        checkpoints=checkpoints,
        backgrounds=backgrounds,
        options=probe_options(option),
        model_options=parse_options(model_option),
        data_dir=data_dir,
        device=device,
        display=PrintedProbes(tables=not json),
    )
    if json:
        echo(json_module.dumps([plain_row(row) for rows in result.rows.values() for row in rows]))


def default_folder(models: tuple[str, ...]) -> Path:
    """The study's, so that its report finds the rows; this folder for all others."""
    return Path(models[0]) if len(models) == 1 and (Path(models[0]) / "study.yaml").is_file() else Path(".")


def print_list() -> None:
    """The registry: name, the question that the probe answers, default number of images, passes per image."""
    from softbias.probes import find_probe, list_probes

    for name in list_probes():
        probe = find_probe(name)
        number = f"{probe.n:,} {'scenes' if probe.scenes else 'pictures'}, passes each: {probe.pass_text()}"
        echo(f"{name}\t{probe.about}\t{number if probe.n else 'weights alone'}")


def probe_options(given: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """
    >>> probe_options(("shift.fill=edge", "background.scales=(1,2)"))
    {'shift': {'fill': 'edge'}, 'background': {'scales': (1, 2)}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        probe, dot, rest = text.partition(".")
        if not dot:
            raise SoftbiasError(f"--option takes PROBE.NAME=VALUE, but got {text!r}")
        for name, value in parse_options((rest,)).items():
            found.setdefault(probe, {})[name] = tuple(value) if isinstance(value, list) else value
    return found
