"""From a study's spec to its runs, with the same budget for all, and how long they will take."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.study.arms import Arm, read_recipe
from softbias.study.frame import PLAN
from softbias.study.progress import duration
from softbias.study.spec import PlannedRun, StudySpec
from softbias.study.store import Store
from softbias.study.worker import forget_earlier_runs, load_once
from softbias.training.recipe import Recipe
from softbias.training.run import BESIDE, RunDirectory, RunSpec, write_text

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset

REHEARSAL, MOST = 20, 15.0  # steps that are measured, and the seconds they may take
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
                        data=data, model=arm.model, recipe=recipe, seed=seed, fraction=fraction, data_options=options,
                        model_options=dict(arm.model_options), pretrained=arm.pretrained, weights=arm.weights,
                        source=arm.source, finetune=arm.finetune or ("full" if arm.source or arm.pretrain else None),
                    )  # fmt: skip
                    own = replace(own, recipe=with_budget(spec, arm, own, pictures, ratio))
                    needs = pretraining(arm, own) if arm.pretrain else None
                    if needs:
                        runs.setdefault(needs.id, needs)
                        own = replace(own, source=f"{BESIDE}{needs.id}")
                    add(runs, PlannedRun(arm.name, own, needs.id if needs else None))
    return list(runs.values())


def add(runs: dict[str, PlannedRun], run: PlannedRun) -> None:
    if run.id in runs and runs[run.id].arm != run.arm:
        raise ValueError(f"the arms {runs[run.id].arm} and {run.arm} are the same runs; leave one of them out")
    runs[run.id] = run


def pretraining(arm: Arm, own: RunSpec) -> PlannedRun:
    """The run that an arm's run starts from."""
    before = arm.pretrain
    assert before is not None
    spec = RunSpec(
        data=before.data or own.data, model=own.model, recipe=before.recipe,
        seed=own.seed if before.seed is None else before.seed,
        fraction=own.fraction if before.fraction is None else before.fraction,
        data_options=own.data_options, model_options=own.model_options, pretrained=own.pretrained, weights=own.weights,
    )  # fmt: skip
    return PlannedRun(f"{arm.model} pre-training", spec)


def flops_ratio(spec: StudySpec, arm: Arm, reference: int | None, macs: int | None) -> float:
    if spec.budget != "flops":
        return 1.0
    if not reference or not macs:
        raise ValueError(f"equal FLOPs need the cost of {arm.name}, which cannot be counted; choose --budget steps or epochs")
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
        own, fraction=100.0, recipe=recipe if own_length else replace(spec.recipe, val_fraction=recipe.val_fraction)
    )
    per_epoch = steps_per_epoch(whole, pictures)
    steps = whole.recipe.steps or max(1, round(whole.recipe.epochs * per_epoch))
    steps = max(1, round(steps * ratio))
    warmup = min(round(whole.recipe.warmup_epochs * per_epoch * ratio), steps // 10)
    return replace(recipe, steps=steps, warmup_epochs=round(warmup / steps_per_epoch(own, pictures), 6))


def steps_per_epoch(run: RunSpec, pictures: Dataset) -> int:
    from softbias.training.preparing import split_up

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
        raise ValueError(f"the arm {arm.name}: {error}") from error


@dataclass(frozen=True)
class Plan:
    """What there is to do.

    seconds    expected for each missing run, by id; empty where nothing was measured
    """

    runs: tuple[PlannedRun, ...]
    missing: tuple[PlannedRun, ...]
    states: Mapping[str, str]
    seconds: Mapping[str, float]

    def describe(self, jobs: int) -> str:
        """One line: how many runs, and how long they will take."""
        count = len(self.runs)
        text = f"{count} run{'s' * (count != 1)}: {count - len(self.missing)} finished, {len(self.missing)} to do"
        stopped = sum(self.states[run.id] == "stopped" for run in self.missing)
        running = sum(self.states[run.id] == "running" for run in self.missing)
        text += f" ({stopped} of them begun)" if stopped else ""
        text += f" ({running} of them being done by another process)" if running else ""
        if self.seconds:
            text += f", about {duration(sum(self.seconds.values()) / max(1, min(jobs, len(self.missing))))}"
            text += f" with {jobs} at a time" if jobs > 1 else ""
        return text


def make_plan(
    runs: Sequence[PlannedRun], store: Store, *, device: str = "auto", threads: int | None = None, measure: bool = True
) -> Plan:
    """What is finished, what is missing, and how long that takes."""
    states = {run.id: store.state(run.spec) for run in runs}
    missing = [run for run in runs if states[run.id] != "finished"]
    seconds = expected(runs, missing, store, device, threads) if measure else {}
    return Plan(tuple(runs), tuple(missing), states, seconds)


def expected(
    runs: Sequence[PlannedRun], missing: Sequence[PlannedRun], store: Store, device: str, threads: int | None
) -> dict[str, float]:
    """Seconds of every missing run: as finished runs of its arm took, else from a rehearsal of 20 steps per arm."""
    done = {run.id for run in runs} - {run.id for run in missing}
    pace: dict[tuple[str, str], float] = {}  # (arm, data) -> seconds per step, everything included
    for run in runs:
        if run.id in done:
            summary = RunDirectory(store.place(run.spec)).read_summary()
            pace[run.arm, run.spec.data] = max(summary["total_seconds"], summary["seconds"]) / summary["steps"]
    found = {}
    for run in missing:
        key = run.arm, run.spec.data
        if key not in pace:
            pace[key] = rehearse(run.spec, device, threads)
        pictures = load_once(run.spec.data, run.spec.data_options)
        steps = run.spec.recipe.steps or round(run.spec.recipe.epochs * steps_per_epoch(run.spec, pictures))
        found[run.id] = steps * pace[key] + 1.0
    return found


def rehearse(spec: RunSpec, device: str, threads: int | None) -> float:
    """Seconds per step, from 20 steps on throw-away weights."""
    import torch

    from softbias.training.checkpoint import Keep
    from softbias.training.loop import seconds_per_step
    from softbias.training.preparing import accelerate_for, make_plan, split_up

    spec = replace(spec, source=None)  # the run it starts from may not be there yet, and its speed is the same
    pictures = load_once(spec.data, spec.data_options)
    forget_earlier_runs()
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            accelerator, directory = accelerate_for(spec.recipe, device), RunDirectory(Path(folder))
            plan = make_plan(spec, pictures, split_up(pictures, spec), accelerator, directory, Keep())
            return seconds_per_step(plan, REHEARSAL, MOST)
    finally:
        torch.set_num_threads(before)


def write_plan(runs: Sequence[PlannedRun], out: Path) -> None:
    """Which runs the study consists of, for whoever reads it later without its pictures."""
    rows = {
        run.id: {
            "arm": run.arm, "data": run.spec.data, "fraction": run.spec.fraction, "seed": run.spec.seed,
            "steps": run.spec.recipe.steps, "needs": run.needs, "run": run.spec.title,
        }
        for run in runs
    }  # fmt: skip
    write_text(out / PLAN, json.dumps({"runs": rows}, indent=1) + "\n")
