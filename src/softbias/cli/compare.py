"""`softbias compare`, `softbias study`, `softbias reproduce` and `softbias demo`: studies from the command line, from a file,
from the papers, and ready-made."""

from __future__ import annotations

import functools
import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from softbias import environment
from softbias.bounds import FilePath, LongText, ShortText, Side
from softbias.cli.parsing import NO_LINE, CommandLine, Line, Score, flag
from softbias.cli.study_options import CompareOptions, ExecutionOptions, run
from softbias.errors import SoftbiasError
from softbias.terminal import echo

if TYPE_CHECKING:
    from softbias.study.papers import NamedStudy
    from softbias.study.spec import StudySpec


def compare(options: Annotated[CompareOptions, arg(name="")], *, line: Line = NO_LINE) -> int:
    """Compare models fairly: same data, splits, seeds, recipe and budget for all, and a report with intervals.

    Every combination of model, data, fraction and seed is a run. Finished runs are reused: stop at any time and give the same
    command again. A model, a fraction, a seed or a set can be added later; then only the new runs are done. A run that fails
    does not stop the others; the exit status is then 1.

      softbias compare my_pictures --models deit_nano,convit_nano,resnet_nano --fractions 0.1,1 --seeds 3
      softbias compare my_pictures --models deit_tiny@start=pretrained,deit_tiny@start=pretrained@convert=gated --per-class 5,10
      softbias compare cifar10 --models 'deit_tiny,deit_tiny@regularize=distance:layer=2,weight=0.01' --jobs 2
    """
    if not options.data:
        raise SoftbiasError(
            "which pictures? softbias compare DATA --models A,B, with a folder, a CSV file, arrays or a named set"
        )
    if not options.models:
        raise SoftbiasError("which models? softbias compare DATA --models deit_nano,convit_nano; softbias models lists them")
    from softbias.data.cache import writing_nothing
    from softbias.study.arms import arms_from
    from softbias.study.settings import study_for
    from softbias.study.spec import parse_counts, parse_numbers, parse_seeds

    arms = arms_from(options.models)
    fractions = None if options.fractions is None else parse_numbers(options.fractions, "--fractions")
    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    per_class = None if options.per_class is None else parse_counts(options.per_class, "--per-class")
    data_options = asked_of_data(options)
    with writing_nothing() if options.dry_run else nullcontext():
        spec = study_for(
            options.data, arms, fractions=fractions, per_class=per_class, seeds=seeds, recipe=options.recipe,
            overrides=line.overrides, budget=options.budget, tune=options.tune, metric=options.metric,
            name=options.name, out=options.out,
            store=options.store, data_options=data_options, device=options.device,
        )  # fmt: skip
    return run(spec, options)


def asked_of_data(options: CompareOptions | StudyOptions) -> dict[str, Any]:
    """What was asked of the reader of the pictures."""
    data_dir = None if options.data_dir is None else str(options.data_dir)
    asked = {"img_size": options.img_size, "score": options.score, "data_dir": data_dir}
    return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class StudyOptions(ExecutionOptions):
    file: Annotated[FilePath | None, Positional, flag("FILE.yaml", "A study, or the folder of one.")] = None
    data: Annotated[LongText | None, flag("SETS", "Other pictures than the file's: folders or names, separated by commas.")] = (
        None
    )
    arms: Annotated[
        LongText | None, flag("ARMS", "Some of the file's arms, parted by commas or semicolons; all if not given.")
    ] = None
    fractions: Annotated[ShortText | None, flag("SHARES", "Other shares of the training pictures, such as 0.1,1.")] = None
    per_class: Annotated[
        ShortText | None, flag("NUMBERS", "Other numbers of training pictures of each class, such as 5,10.")
    ] = None
    seeds: Annotated[LongText | None, flag("N", "Another number of seeds (3), or the seeds themselves (0,1,5).")] = None
    img_size: Annotated[Side | None, flag("PIXELS", "Side of the pictures, for all sets and arms of the file.")] = None
    score: Score = None
    data_dir: Annotated[FilePath | None, flag("FOLDER", "The folder of named sets; $SOFTBIAS_DATA if not given.")] = None


def study(options: Annotated[StudyOptions, arg(name="")], *, line: Line = NO_LINE) -> int:
    """Run a study that a file describes (docs/studies.md), or continue one by its folder.

    Finished runs are reused; the file may be edited and run again. Its pictures, their number and its recipe may be changed
    here, too (--steps 20, --help-recipe).

      softbias study mine.yaml --jobs 2
      softbias study docs/soft-on-pretrained.yaml --data my_pictures --per-class 5,10 --out studies/mine
      softbias study studies/fashion
    """
    from softbias.study.spec import read_study

    if options.file is None:
        raise SoftbiasError("which study? softbias study FILE.yaml, or the folder of a study")
    if options.file.is_dir():
        spec = read_study(options.file)
        named = [f"--{name.replace('_', '-')}" for name in CHANGED if getattr(options, name) is not None]
        if named or line.changes:
            raise SoftbiasError(
                f"{options.file} is a study that was begun, and continues as it is; leave out "
                f"{', '.join([*named, *line.changes[:1]])}, or name a file and another --out"
            )
        return run(spec, options if options.out is not None else replace(options, out=options.file))
    return run(changed(read_study(options.file, listed(options.data or "") or ()), options, line), options)


CHANGED = (  # options that change the study of a file
    "data", "arms", "fractions", "per_class", "seeds", "img_size", "score", "data_dir",
)  # fmt: skip


def changed(spec: StudySpec, options: StudyOptions, line: CommandLine) -> StudySpec:
    """The study of a file with what the command line names instead."""
    from softbias.study.spec import parse_counts, parse_numbers, parse_seeds, pick_names

    changes: dict[str, Any] = {"data_options": {**spec.data_options, **asked_of_data(options)}}
    if options.arms is not None:
        by_name = {arm.name: arm for arm in spec.arms}
        changes["arms"] = tuple(by_name[name] for name in pick_names(listed(options.arms), by_name, "arm"))
    if options.fractions is not None and options.per_class is not None:
        raise SoftbiasError("--fractions and --per-class both say how many pictures a run gets; name one of them")
    if options.fractions is not None:
        changes |= {"fractions": parse_numbers(options.fractions, "--fractions"), "per_class": ()}
    if options.per_class is not None:
        changes |= {"per_class": parse_counts(options.per_class, "--per-class"), "fractions": (1.0,)}
    if options.seeds is not None:
        changes["seeds"] = parse_seeds(options.seeds)
    return replace(spec, **changes, recipe=spec.recipe.with_overrides(line.overrides))


def demo(out: FilePath = Path("demo"), picture: bool = False) -> int:
    """Compare nano models with and without soft biases on a small embedded set, in minutes on two cores, and write a report.

    Stop at any time; the same command continues.

    Args:
        out: Folder of the study; its page is report.html in there.
        picture: Instead, train one model and draw where its heads look, before and after.
    """
    from softbias.demo import JOBS, demo_study, draw_attention

    if picture:
        echo(f"where its heads look, before and after training: {draw_attention(out)}")
        return 0
    return run(demo_study(), ExecutionOptions(out=out, jobs=min(JOBS, environment.count_cores()), device="cpu"))


@dataclass(frozen=True)
class ReproduceOptions(ExecutionOptions):
    name: Annotated[LongText, Positional, flag("NAME", "A study of --list.")] = ""
    list_studies: Annotated[
        bool, arg(name="list", help="List the studies, or with a name describe one, and stop.", help_behavior_hint="")
    ] = False
    scale: Annotated[
        Literal["smoke", "small", "paper"],
        flag(
            "smoke|small|paper",
            "smoke (the default): minutes on two CPU cores; small: hours on one GPU; paper: the original setting.",
        ),
    ] = "smoke"
    arms: Annotated[
        ShortText | None,
        flag(
            "ARMS", "Some of its arms, parted by commas or semicolons; the first is compared with the others; all if not given."
        ),
    ] = None
    data: Annotated[ShortText | None, flag("SETS", "Some of its sets, separated by commas; all if not given.")] = None
    seeds: Annotated[
        ShortText | None, flag("N", "The number of seeds (3), or the seeds themselves (0,1,5); the study's own if not given.")
    ] = None
    fractions: Annotated[ShortText | None, flag("SHARES", "Shares of the training pictures; the study's own if not given.")] = (
        None
    )
    data_dir: Annotated[FilePath | None, flag("FOLDER", "The folder of named sets; $SOFTBIAS_DATA if not given.")] = None


def reproduce(
    options: Annotated[ReproduceOptions, arg(name="")],
    *,
    line: Line = NO_LINE,
) -> int:
    """Reproduce a table or an analysis of a paper: its runs, its measurements, and a report with the published numbers.

    Finished runs are reused: stop at any time and give the same command again. At smoke scale the embedded set replaces any set
    that is absent, and the report says so. Any field of the recipe can be changed for all arms (--epochs 8, --help-recipe); the
    report says that, too.

      softbias reproduce --list
      softbias reproduce convit-sample-efficiency --list
      softbias reproduce convit-sample-efficiency --scale small --dry-run
      softbias reproduce arvit-table1 --scale small --arms ARViT-Base,ARViT-L3 --data imagenette
    """
    from softbias.study.papers import find_study, list_studies

    if options.list_studies:
        names = [options.name] if options.name else list_studies()
        show_list([find_study(name) for name in names], whole=bool(options.name), as_json=options.json)
        return 0
    if not options.name:
        raise SoftbiasError("which study? softbias reproduce NAME; softbias reproduce --list shows them")
    named = find_study(options.name)
    from softbias.study.papers.measure import reproduce as perform
    from softbias.study.spec import parse_numbers, parse_seeds

    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    arms, data = listed(options.arms), listed(options.data)
    spec = named.spec(options.scale, data_dir=options.data_dir, seeds=seeds, arms=arms, data=data)
    changes = [f"--{name} {given}" for name, given in (("arms", options.arms), ("data", options.data)) if given is not None]
    if options.fractions is not None:
        spec = replace(spec, fractions=parse_numbers(options.fractions, "--fractions"))
        changes.append(f"--fractions {options.fractions}")
    if line.changes:
        spec = replace(spec, recipe=spec.recipe.with_overrides(line.overrides))
        changes.append(" ".join(line.changes))
    if changes:
        spec = replace(spec, notes=(*spec.notes, f"Changed from the study's own settings: {', '.join(changes)}."))
    return run(spec, options, functools.partial(perform, named, options.scale))


def listed(given: str | None) -> list[str] | None:
    """Separated by commas; or by semicolons, as an error lists names that have commas."""
    if given is None:
        return None
    return [name.strip() for name in given.split(";" if ";" in given else ",") if name.strip()]


def show_list(studies: list[NamedStudy], *, whole: bool, as_json: bool) -> None:
    if as_json:
        fields = ("name", "title", "question", "source", "can", "cannot")
        rows = [
            {**{name: getattr(one, name) for name in fields}, "published": [*one.published, *one.beside]} for one in studies
        ]
        echo(json.dumps(rows, ensure_ascii=False))
        return
    if whole:
        echo(*(line for one in studies for line in described(one)))
        return
    width = max(len(one.name) for one in studies)
    echo(*(f"{one.name:{width}}  {one.question}" for one in studies), "")
    echo("softbias reproduce NAME --list describes one; --scale smoke|small|paper chooses its size")


def described(one: NamedStudy) -> list[str]:
    """A study in full: its question and source, the runs of each scale, and the published numbers."""
    lines = [
        one.title,
        "",
        one.question,
        "",
        f"Source: {one.source}",
        f"It can show: {one.can}",
        f"It cannot show: {one.cannot}",
        "",
    ]
    for scale in ("smoke", "small", "paper"):
        spec = one.build(scale)
        seeds, amounts = len(spec.seeds), f"{', '.join(f'{100 * fraction:g}' for fraction in spec.fractions)} %"
        if spec.per_class:
            amounts = f"{', '.join(map(str, spec.per_class))} per class"
        runs = f"{len(spec.data) * len(spec.arms) * len(spec.amounts) * seeds} runs"
        before = len([arm for arm in spec.arms if arm.pretrain]) * seeds
        runs += f" and {before} pre-trainings" if before else ""
        parts = (", ".join(spec.data), f"{len(spec.arms)} arms", amounts, f"{seeds} seed{'s' * (seeds > 1)}", runs)
        lines.append(f"{scale}: {' · '.join(parts)}")
    for row in (*one.published, *one.beside):
        what = f"{row['data']:11} {row['arm']:26} {100 * row['train_fraction']:5g} %  {row['metric']:20}"
        lines.append(f"  {what} {row['value']:7g}   {row['note']}")
    return lines
