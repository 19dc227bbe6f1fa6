"""From a study's spec to its runs, with the same budget for all, and how long they will take."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.runs.run import Run
from softbias.runs.spec import SAME_STORE, RunSpec
from softbias.study.arms import Arm, read_recipe
from softbias.study.frame import PLAN
from softbias.study.progress import duration
from softbias.study.rehearsal import rehearse, seconds_of
from softbias.study.spec import PlannedRun, StudySpec, makespan
from softbias.study.store import Store
from softbias.study.worker import load_once
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.study.processes import WorkerPool

Chosen = Mapping[tuple[str, str], Mapping[str, Any]]  # (data, arm) -> fields of the recipe that tuning chose


def study_runs(spec: StudySpec, chosen: Chosen | None = None) -> list[PlannedRun]:
    """Every run of a study, those that others start from first; reads the pictures, for their number.

    A pre-training that several runs ask for is planned once.
    """
    runs: dict[str, PlannedRun] = {}
    for data in spec.data:
        reference = None
        for arm in spec.arms:
            options = {**spec.data_options, **arm.data_options}
            pictures = load_once(data, options)
            macs = arm_macs(arm, pictures) if arm.source is None else None
            reference = reference or macs
            recipe = read_recipe(arm.recipe, spec.recipe).with_overrides((chosen or {}).get((data, arm.name), {}))
            ratio = flops_ratio(spec, arm, reference, macs)
            for fraction in spec.fractions:
                for seed in spec.seeds:
                    own = RunSpec(
                        data=data, model=arm.model, recipe=recipe, seed=seed, train_fraction=fraction, data_options=options,
                        model_options=dict(arm.model_options), pretrained=arm.pretrained, weights=arm.weights,
                        source=arm.source, finetune=arm.finetune or ("full" if arm.source or arm.pretrain else None),
                    )  # fmt: skip
                    own = replace(own, recipe=with_budget(spec, arm, own, pictures, ratio))
                    needs = pretraining(arm, own) if arm.pretrain else None
                    if needs:
                        runs.setdefault(needs.id, needs)
                        own = replace(own, source=f"{SAME_STORE}{needs.id}")
                    add(runs, PlannedRun(arm.name, own, needs.id if needs else None))
    return list(runs.values())


def add(runs: dict[str, PlannedRun], run: PlannedRun) -> None:
    if run.id in runs and runs[run.id].arm != run.arm:
        raise SoftbiasError(f"the arms {runs[run.id].arm} and {run.arm} are the same runs; leave one of them out")
    runs[run.id] = run


def pretraining(arm: Arm, own: RunSpec) -> PlannedRun:
    """The run that an arm's run starts from."""
    before = arm.pretrain
    assert before is not None
    spec = RunSpec(
        data=before.data or own.data, model=own.model, recipe=before.recipe,
        seed=own.seed if before.seed is None else before.seed,
        train_fraction=own.train_fraction if before.train_fraction is None else before.train_fraction,
        data_options=own.data_options, model_options=own.model_options, pretrained=own.pretrained, weights=own.weights,
    )  # fmt: skip
    return PlannedRun(f"{arm.model} pre-training", spec)


def flops_ratio(spec: StudySpec, arm: Arm, reference: int | None, macs: int | None) -> float:
    if spec.budget != "flops":
        return 1.0
    if not reference or not macs:
        raise SoftbiasError(
            f"equal FLOPs need the cost of {arm.name}, which cannot be counted; choose --budget steps or epochs"
        )
    return reference / macs


def with_budget(spec: StudySpec, arm: Arm, own: RunSpec, pictures: Dataset, ratio: float) -> Recipe:
    """The run's recipe with its number of steps.

    Of equal steps a run on all the data decides how many; a smaller part is seen more often instead, as in ConViT's study
    of sample efficiency. The warm-up takes as many steps as there.
    """
    recipe = own.recipe
    if spec.budget == "epochs":
        return recipe
    own_length = {"epochs", "steps", "preset"} & set(arm.recipe)
    whole = replace(
        own, train_fraction=1.0, recipe=recipe if own_length else replace(spec.recipe, val_fraction=recipe.val_fraction)
    )
    per_epoch = steps_per_epoch(whole, pictures)
    steps = whole.recipe.steps or max(1, round(whole.recipe.epochs * per_epoch))
    steps = max(1, round(steps * ratio))
    warmup = min(round(whole.recipe.warmup_epochs * per_epoch * ratio), steps // 10)
    return replace(recipe, steps=steps, warmup_epochs=round(warmup / steps_per_epoch(own, pictures), 6))


def steps_per_epoch(run: RunSpec, pictures: Dataset) -> int:
    from softbias.runs.prepare import split_up

    count = len(split_up(pictures, run).train)
    return max(1, count // min(run.recipe.batch_size, count))


def arm_macs(arm: Arm, pictures: Dataset) -> int:
    """Multiply-accumulates of the arm's model for one picture. A model that cannot be built is refused here, by name."""
    import torch

    from softbias.models import create_model
    from softbias.models.cost import count_macs

    try:
        device = None if ":" in arm.model else "meta"  # other people's models may need real tensors
        with torch.random.fork_rng(devices=[]):
            model = create_model(
                arm.model, num_classes=len(pictures.class_names), img_size=pictures.img_size, device=device,
                **arm.model_options,
            )  # fmt: skip
        return count_macs(model, 3, *pictures.img_size)
    except (ValueError, TypeError) as error:
        raise SoftbiasError(f"the arm {arm.name}: {error}") from error


@dataclass(frozen=True)
class Plan:
    """What there is to do.

    seconds    expected for each missing run, by id; empty where nothing was measured
    """

    runs: tuple[PlannedRun, ...]
    missing: tuple[PlannedRun, ...]
    states: Mapping[str, str]
    seconds: Mapping[str, float]

    def describe(self, jobs: int | None) -> str:
        """One line: how many runs, and how long they will take; jobs=None: nobody knows how many at a time."""
        count = len(self.runs)
        text = f"{count} run{'s' * (count != 1)}: {count - len(self.missing)} finished, {len(self.missing)} to do"
        stopped = sum(self.states[run.id] == "stopped" for run in self.missing)
        running = sum(self.states[run.id] == "running" for run in self.missing)
        text += f" ({stopped} of them begun)" if stopped else ""
        text += f" ({running} of them being done by another process)" if running else ""
        if self.seconds:
            text += f", about {duration(makespan(self.missing, self.seconds, jobs or 1))}"
            text += " one after another" if jobs is None else f" with {jobs} at a time" if jobs > 1 else ""
        return text


def make_plan(
    runs: Sequence[PlannedRun],
    store: Store,
    *,
    device: str = "auto",
    threads: int | None = None,
    baseline: bool = True,
    crew: WorkerPool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """What is finished, what is missing, and how long that takes, in the processes that will do it.

    say   is told before steps are rehearsed, which may take a while
    """
    states = {run.id: store.state(run.spec) for run in runs}
    missing = [run for run in runs if states[run.id] != "finished"]
    at_once = min(len(crew.workers), len(missing)) if crew else 1

    def pace(run: PlannedRun) -> float:
        return crew.rehearse(run, at_once) if crew and at_once > 1 else rehearse(run.spec, device, threads)

    finished = [run for run in runs if states[run.id] == "finished"]
    seconds = expected(finished, missing, store, pace, at_once if baseline else 0, say)
    return Plan(tuple(runs), tuple(missing), states, seconds)


def expected(
    finished: Sequence[PlannedRun],
    missing: Sequence[PlannedRun],
    store: Store,
    rehearsed: Callable[[PlannedRun], float],
    baselines: int,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """Seconds of every missing run, at the pace of finished runs of its arm, else at that of a rehearsal.

    baselines   how often the regression on pixels is made for a split: once in every process
    """
    pace: dict[tuple[str, str], float] = {}  # (arm, data) -> seconds per step
    for run in finished:
        summary = Run(store.place(run.spec)).summary()
        pace[run.arm, run.spec.data] = summary["seconds"] / summary["steps"]
    if any((run.arm, run.spec.data) not in pace for run in missing):
        say("a few steps of every arm come first, to say how long it will take")
    for run in sorted(missing, key=lambda run: -run.spec.train_fraction):  # few pictures allow few steps of a rehearsal
        key = run.arm, run.spec.data
        if key not in pace:
            pace[key] = rehearsed(run)
    made: Counter[Any] = Counter()
    found = {}
    for run in missing:
        spec = run.spec
        split = spec.data, spec.train_fraction, spec.seed
        made[split] += 1
        pictures = load_once(spec.data, spec.data_options)
        found[run.id] = seconds_of(spec, pictures, pace[run.arm, spec.data], baseline=made[split] <= baselines)
    return found


def write_plan(runs: Sequence[PlannedRun], out: Path) -> None:
    """Which runs the study consists of, for whoever reads it later without its pictures."""
    rows = {
        run.id: {
            "arm": run.arm, "data": run.spec.data, "train_fraction": run.spec.train_fraction, "seed": run.spec.seed,
            "steps": run.spec.recipe.steps, "needs": run.needs, "run": run.spec.title,
        }
        for run in runs
    }  # fmt: skip
    write_text(out / PLAN, json.dumps({"runs": rows}, indent=1) + "\n")
