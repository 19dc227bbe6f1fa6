"""Measure models by probes: `softbias.probe`, and the command `softbias probe`.

    result = softbias.probe(["runs/a", "deit_nano"], "locality,gates", data="fashion", n=200)
    pandas.DataFrame(result.rows["locality"])

A probe that does not apply to a model (gates, for a DeiT) is left out, with a note that gives the reason.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from softbias.bounds import AnyPath, Count, Seed, ShortText
from softbias.classifier import Classifier
from softbias.data.dataset import Dataset
from softbias.environment import find_device
from softbias.errors import NotMeasurableError, SoftbiasError, unknown_name
from softbias.files import require_writable
from softbias.notes import Note
from softbias.pages.format import duration
from softbias.pages.wording import text
from softbias.probes import PROBES, SUMMARIES, Probe, find_probe
from softbias.probes.profile import print_profile
from softbias.probes.resolution import at_size
from softbias.probes.rows import Rows, print_table, write_rows
from softbias.probes.scenes import draw_examples
from softbias.runs.opening import Source, is_built, runs_in, unique
from softbias.runs.probe_targets import DatasetCache, ProbeTarget, open_target, through_training
from softbias.schema import bounded_hints, check_options, checked_arguments, has_bounds
from softbias.terminal import make_console

DEFAULT = "locality,gates,masks"
TIMED = 8  # images of the batch that is timed


@dataclass(frozen=True)
class ProbeResult:
    """rows: by the name of the probe;  notes: probes that were left out;  files: tables and figures that were written"""

    rows: dict[str, Rows]
    notes: tuple[Note, ...] = ()
    files: tuple[Path, ...] = ()


class ProbeDisplay:
    """Shows the progress of probes; this one shows nothing."""

    def begin(self, name: str, probe: Probe, model: str, n: int, seconds: float) -> None:
        """Before a probe passes images through a model; `seconds` is an estimate."""

    def end(self, name: str, model: str, seconds: float) -> None:
        """After it."""

    def note(self, note: Note) -> None:
        """A probe was left out."""

    def result(self, name: str, rows: Rows, files: Sequence[Path]) -> None:
        """All models were measured by a probe."""


class PrintedProbes(ProbeDisplay):
    """Progress and tables in the terminal; without tables, standard output is left to the caller."""

    def __init__(self, *, tables: bool = True) -> None:

        self.tables = tables
        self.console = make_console(stderr=not tables)

    def line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)
        sys.stdout.flush()

    def begin(self, name: str, probe: Probe, model: str, n: int, seconds: float) -> None:
        self.line(f"{name}: {model}: {n:,} pictures, passes each: {probe.pass_text()}, about {duration(seconds)}")

    def end(self, name: str, model: str, seconds: float) -> None:
        self.line(f"{name}: {model}: took {duration(seconds)}")

    def note(self, note: Note) -> None:
        self.line(text(note))

    def result(self, name: str, rows: Rows, files: Sequence[Path]) -> None:
        if self.tables and name == "profile":
            print_profile(rows, self.console)
        elif self.tables:
            print_table(name, rows, self.console)
        self.line("\n".join(str(file) for file in files))


@checked_arguments
def probe(
    sources: Source | Sequence[Source],
    probes: ShortText | Sequence[ShortText] = DEFAULT,
    *,
    data: ShortText | None = None,
    out: AnyPath | None = None,
    n: Count | None = None,
    seed: Seed = 0,
    split: ShortText = "test",
    checkpoints: bool = False,
    backgrounds: AnyPath | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_dir: AnyPath | None = None,
    device: ShortText = "auto",
    display: ProbeDisplay | None = None,
) -> ProbeResult:
    """Measure models by probes.

    sources         runs, folders of runs (a study), folders of saved models, names of `softbias models`, "timm:NAME",
                    "hf:FOLDER", or modules
    probes          names, separated by commas or in a list; "all" takes every one
    data            images; a run's own if not given
    out             the folder in which probes/ is written: tables and figures; nothing is written if not given
    n, seed, split  the images; n is each probe's own number if not given
    checkpoints     measure at the start and at every checkpoint that the run kept
    options         of probes, by the name of the probe: {"shift": {"fill": "edge"}}
    model_options   of models that are built by name
    """
    given = [one for source in ([sources] if isinstance(sources, Source) else sources) for one in expanded(source)]
    if not given:
        raise SoftbiasError("which models? softbias probe MODEL_OR_RUN… --probes locality,gates")
    chosen = choose(probes)
    common = {"seed": seed, "split": split, "n": n, "backgrounds": backgrounds}
    asked = {name: options_for(name, one, (options or {}).get(name, {}), common) for name, one in chosen.items()}
    built = [one for one in given if isinstance(one, str | Path) and is_built(one)]
    if model_options and not built:
        raise SoftbiasError(f"--model-option is for models that are built by name, but {given} are read from files")
    if out is not None:
        require_writable(Path(out))
    cache = DatasetCache(None if data_dir is None else str(data_dir))
    targets = [open_target(one, data, cache, device=find_device(device), options=model_options) for one in given]
    names = unique([target.classifier.name for target in targets])
    targets = [target.renamed(name) for target, name in zip(targets, names, strict=True)]
    return measure_all(targets, chosen, asked, checkpoints, None if out is None else Path(out) / "probes", display)


def expanded(source: Source) -> Sequence[Source]:
    """The runs of a study, or the source itself."""
    if not isinstance(source, str | Path) or is_built(source):
        return [source]
    return runs_in(Path(source)) or [source]


def choose(probes: str | Sequence[str]) -> dict[str, Probe]:
    if probes == "all":
        return {name: probe for name, probe in PROBES.items() if name not in SUMMARIES}
    names = [name.strip() for name in probes.split(",")] if isinstance(probes, str) else probes
    return {name: find_probe(name) for name in names if name}


def options_for(name: str, probe: Probe, own: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one probe: its own, and those common options that its function takes."""
    for key in own:
        if key not in probe.options:
            raise unknown_name(f"option of the probe {name}", key, probe.options)
    hints = bounded_hints(probe.function) if own else {}
    check_options(probe.function, {key: value for key, value in own.items() if has_bounds(hints.get(key))})
    return {key: value for key, value in common.items() if key in probe.options and value is not None} | dict(own)


def measure_all(
    targets: Sequence[ProbeTarget],
    chosen: Mapping[str, Probe],
    options: Mapping[str, Mapping[str, Any]],
    checkpoints: bool = False,
    folder: Path | None = None,
    display: ProbeDisplay | None = None,
) -> ProbeResult:
    """Measure every target by every probe; a probe that applies to no target has no rows."""
    display = display or ProbeDisplay()
    rows: dict[str, Rows] = {}
    notes: list[Note] = []
    files: list[Path] = []
    for name, one in chosen.items():
        for target in targets:
            classifiers = list(through_training(target)) if checkpoints else [target.classifier]
            try:
                if one.passes:
                    n = min(options[name].get("n", one.n), images_for(one, target.data, options[name])) * len(classifiers)
                    scenes = (options[name].get("scenes", one.default("scenes")) or 0) * len(classifiers)
                    display.begin(name, one, target.classifier.name, n, expected_seconds(one, target, n, scenes))
                started = time.perf_counter()
                found = [row for each in classifiers for row in one.measure(each, target.data, **options[name])]
            except NotMeasurableError as error:
                notes.append(not_measurable(name, target.classifier.name, error))
                display.note(notes[-1])
                continue
            rows.setdefault(name, []).extend(found)
            if one.passes:
                display.end(name, target.classifier.name, time.perf_counter() - started)
        if name in rows:
            made = [] if folder is None else write_files(name, one, rows[name], targets[0], folder, options[name])
            files += made
            display.result(name, rows[name], made)
    if not rows:
        raise NotMeasurableError(f"no probe had anything to measure: {'; '.join(text(note) for note in notes)}")
    return ProbeResult(rows, tuple(notes), tuple(files))


def not_measurable(probe: str, model: str, error: NotMeasurableError) -> Note:
    return Note("probe-not-measurable", {"probe": probe, "model": model, "reason": str(error)})


def write_files(
    name: str, probe: Probe, rows: Rows, first: ProbeTarget, folder: Path, options: Mapping[str, Any]
) -> list[Path]:
    """The table and the figures of a probe; for probes of scenes also some examples."""
    files = [*write_rows(rows, folder, name), *probe.draw(rows, folder)]
    if probe.scenes:
        known = {key: options[key] for key in ("seed", "split", "backgrounds", "size") if options.get(key) is not None}
        files.append(draw_examples(first.data, folder / f"{name}_examples.png", kind=name, **known))
    return files


def images_for(probe: Probe, data: Dataset, options: Mapping[str, Any]) -> int:
    """The most images that the split allows; scenes can be made in any number."""
    part = data.splits.get(options.get("split", "test"))
    return sys.maxsize if probe.scenes else len(data) if part is None else len(part)


def expected_seconds(probe: Probe, target: ProbeTarget, n: int, scenes: int = 0) -> float:
    """Seconds of all passes over n images, and over scenes, estimated from a small batch at every size that the probe uses."""
    size, total = target.data.img_size, 0.0
    work = [(count * n, side) for count, side in probe.passes]
    work += [(count * scenes, side) for count, side in probe.scene_passes]
    for passes, side in work:
        scaled = (max(1, round(size[0] * side)), max(1, round(size[1] * side)))
        try:
            ready = target.classifier if side == 1 else at_size(target.classifier, scaled)
        except NotMeasurableError:  # the probe leaves out this size, too
            continue
        total += passes * seconds_per_image(ready, scaled)
    return total


@torch.no_grad()
def seconds_per_image(classifier: Classifier, size: tuple[int, int]) -> float:
    """From the second of two passes; the first one warms up."""
    images = torch.zeros(TIMED, 3, *size, device=classifier.device)
    classifier.logits(images)
    started = time.perf_counter()
    classifier.logits(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / TIMED
