"""A study in one small file: its runs with settings, scores, learning curves, probes and answers, but without weights.

    pack("studies/flowers", out="flowers.zip")
    pack("part1.zip", "part2.zip", out="flowers.zip")        a study that was done in parts
    with unpacked("flowers.zip") as folder:
        write_report(folder, "report")

The file is small enough to keep beside a text, and its report is that of the study. What it leaves out: weights, learned masks,
checkpoints, probabilities of all classes, names of pictures, and pages, which `softbias report` draws again. Of what probes
measured through training it keeps 21 epochs. Learning curves and probes keep five digits of each number; scores keep all.

A set that is named by a path outside of the working folder is named by its last part, so that the file tells nothing about the
machine; the ids of its runs follow.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softbias.checksums import write_checksums
from softbias.errors import SoftbiasError
from softbias.files import replacing, write_bytes, write_text
from softbias.probes.drawing import some_epochs
from softbias.probes.rows import Rows
from softbias.runs.artifacts import RESULTS
from softbias.runs.live import read_live
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, write_config
from softbias.runs.start import SAME_STORE, Start
from softbias.study.archive import SUFFIX, study_folder, write_archive
from softbias.study.arms import Arm
from softbias.study.frame import finished_outside, run_folders
from softbias.study.plan import PLAN_FILE, PlanRow, read_plan
from softbias.study.profiles import of_runs, read_profiles, write_profiles
from softbias.study.scores import EXTRA
from softbias.study.spec import DifferentStudyError, StudySpec, extended, read_study, write_study

TEXTS, FIGURES = (".json", ".csv"), (".png", ".svg")  # that measurements on the runs leave
MOST_EPOCHS = 21  # of a probe's rows
DIGITS = 5  # of a number in a learning curve or in a probe's row: finer than any chart shows


@dataclass(frozen=True)
class Packed:
    """outside: finished runs in the folders that the study had before and has no longer"""

    path: Path
    runs: int
    bytes: int
    outside: int


def pack(*studies: str | Path, out: str | Path) -> Packed:
    """Write the finished runs of a study to one file. Runs that are damaged are an error: a copy must be whole.

    studies   the study's folder or packed file; several are parts of one study. What was measured on the models of a part
              after training is left out then
    """
    out = Path(out)
    if out.suffix.lower() != SUFFIX:
        raise SoftbiasError(f"a packed study is a file whose name ends in {SUFFIX}, but got {out}")
    with ExitStack() as stack:
        folders = [stack.enter_context(study_folder(path)) for path in studies]
        for folder in folders:
            if not (folder / "study.yaml").is_file():
                raise SoftbiasError(f"{folder} is not the folder of a study: it has no study.yaml")
        given = [read_study(folder) for folder in folders]
        spec = joined(dict(zip(map(str, studies), map(shared_study, given), strict=True)))
        plan = {id: row for folder in folders for id, row in (read_plan(folder) or {}).items()}
        found = [run for folder in folders for run in map(Run, run_folders(folder)) if run.finished and run.spec.id in plan]
        if not found:
            raise SoftbiasError(f"there is no finished run in {', '.join(map(str, studies))}; finished runs are packed")
        specs = shared_specs({run.spec.id: run.spec for run in found})
        runs = {specs[run.spec.id].id: run for run in found}  # a run may be in two parts
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary)
            for run in runs.values():
                copy_run(run, specs[run.spec.id], copy / "runs" / specs[run.spec.id].title)
            write_study(spec, copy)
            rows = {specs[id].id: shared_row(row, specs, specs[id]) for id, row in plan.items() if id in specs}
            write_text(copy / PLAN_FILE, json.dumps({"runs": rows}, indent=1) + "\n")
            titles = {run.path.name: specs[run.spec.id].title for run in runs.values()}
            write_profiles([rounded(row) for folder in folders for row in of_runs(read_profiles(folder), titles)], copy)
            if len(folders) == 1:
                names = {id: spec.id for id, spec in specs.items()} | {name: shared_name(name) for name in given[0].data}
                copy_measurements(folders[0], copy, names)
            times = {specs[run.spec.id].title: run.summary_path.stat().st_mtime for run in runs.values()}
            with replacing(out) as file:
                write_archive(copy, file, times)
        outside = sum(finished_outside(folder, plan) for folder in folders)
    return Packed(out, len(runs), out.stat().st_size, outside)


def joined(parts: Mapping[str, StudySpec]) -> StudySpec:
    """The study whose parts these are, by their paths. Its runs lie in its own folder."""
    (first, whole), *others = ((path, replace(spec, store=None)) for path, spec in parts.items())
    for path, spec in others:
        try:
            whole = extended(whole, spec)
        except DifferentStudyError as error:
            raise SoftbiasError(f"{path} is no part of the study in {first}: {error}") from error
    return whole


def shared_study(spec: StudySpec) -> StudySpec:
    """The study without paths of one machine: of sets, of sets for pre-training, and of weights that arms start from."""
    data = tuple(dict.fromkeys(map(shared_name, spec.data)))
    return replace(spec, data=data, data_options=shared_options(spec.data_options), arms=tuple(map(shared_arm, spec.arms)))


def shared_arm(arm: Arm) -> Arm:
    start = arm.start
    if isinstance(start, Start) and start.path is not None:
        start = replace(start, path=Path(start.path).name)
    pretrain = arm.pretrain
    if pretrain is not None and pretrain.data is not None:
        pretrain = replace(pretrain, data=shared_name(pretrain.data))
    return replace(arm, start=start, pretrain=pretrain, data_options=shared_options(arm.data_options))


def shared_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "data_dir"}


def shared_name(data: str) -> str:
    """The name of a set for others: a path that is absolute or leads upwards tells where it lies on one machine.

    >>> shared_name("/home/me/leaves"), shared_name("../leaves"), shared_name("cifar10")
    ('leaves', 'leaves', 'cifar10')
    """
    path = Path(data)
    return path.name if path.is_absolute() or ".." in path.parts else data


def shared_specs(specs: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """The settings of runs as others may see them, by the ids that they had. A start from another run follows its new id."""
    found: dict[str, RunSpec] = {}
    waiting = dict(specs)
    while waiting:
        ready = {id: spec for id, spec in waiting.items() if source_id(spec) not in waiting}
        if not ready:
            raise SoftbiasError(f"the runs {', '.join(sorted(waiting))} start from each other")
        for id, spec in ready.items():
            found[id] = shared_spec(spec, found)
            del waiting[id]
    return found


def source_id(spec: RunSpec) -> str | None:
    """The id of the run in the same store that a run starts from."""
    path = spec.start.path or ""
    return path.removeprefix(SAME_STORE) if path.startswith(SAME_STORE) else None


def shared_spec(spec: RunSpec, others: Mapping[str, RunSpec]) -> RunSpec:
    start, source = spec.start, source_id(spec)
    if source is not None and source in others:
        start = replace(start, path=f"{SAME_STORE}{others[source].id}")
    elif start.path is not None and source is None:
        start = replace(start, path=Path(start.path).name)
    return replace(spec, data=shared_name(spec.data), data_options=shared_options(spec.data_options), start=start)


def shared_row(row: PlanRow, specs: Mapping[str, RunSpec], spec: RunSpec) -> dict[str, Any]:
    needs = row["needs"]
    renamed = None if needs is None else specs[needs].id if needs in specs else needs
    return {**row, "data": spec.data, "needs": renamed, "run": spec.title}


def copy_run(run: Run, spec: RunSpec, to: Path) -> None:
    """The small files of a finished run; each is checked against its checksum while it is read."""
    to.mkdir(parents=True)
    names = {run.spec.data: spec.data} | ({run.spec.start.path: spec.start.path or ""} if run.spec.start.path else {})
    summary = renamed(run.summary(), names) | {"id": spec.id, "data": spec.data, "start": spec.start.to_dict()}
    write_text(to / "config.yaml", write_config(spec))
    write_text(to / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_text(to / "environment.json", json.dumps(run.environment(), indent=1) + "\n")
    write_text(to / "metrics.jsonl", lines(run.metrics()))
    answers = run.answers()
    if answers is not None:
        answers.write(to)
    for file in sorted(run.probe_folder.glob("*.jsonl")) if run.probe_folder.is_dir() else ():
        (to / run.probe_folder.name).mkdir(exist_ok=True)
        write_text(to / run.probe_folder.name / file.name, lines(thinned(read_live(run, file.stem))))
    write_checksums(to, [name for name in ("config.yaml", *RESULTS) if (to / name).is_file()])


def thinned(rows: Rows) -> Rows:
    """What a probe measured in the first epoch, the last, and some between them, without the masks themselves."""
    kept = some_epochs((row["epoch"] for row in rows), MOST_EPOCHS)
    return [row for row in rows if row["epoch"] in kept and row["measure"] != "mask"]


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(rounded(row)) + "\n" for row in rows)


def rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> rounded({"epoch": 3, "loss": 1.2345678901, "lr": 1.2345678e-05, "measure": "gate"})
    {'epoch': 3, 'loss': 1.2346, 'lr': 1.2346e-05, 'measure': 'gate'}
    """
    return {name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for name, value in row.items()}


def copy_measurements(study: Path, to: Path, names: Mapping[str, str]) -> None:
    """What was measured on the finished runs, with other names for ids and paths."""
    names = {str(study.absolute()): study.name} | dict(names)
    for file in sorted((study / EXTRA).glob("*")) if (study / EXTRA).is_dir() else ():
        target = to / EXTRA / file.name
        if file.suffix in TEXTS:
            target.parent.mkdir(exist_ok=True)
            write_bytes(target, renamed(file.read_bytes().decode("utf-8"), names).encode("utf-8"))
        elif file.suffix in FIGURES:
            target.parent.mkdir(exist_ok=True)
            write_bytes(target, file.read_bytes())


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A plain value with other names for paths, wherever its texts have them.

    >>> renamed({"notes": ["/data/leaves has 3 pictures"]}, {"/data/leaves": "leaves"})
    {'notes': ['leaves has 3 pictures']}
    """
    if isinstance(value, dict):
        return {name: renamed(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, names) for inner in value]
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
    return value
