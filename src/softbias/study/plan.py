"""From a study's spec to its runs, each with the same budget.

A study keeps plan.json: the id of every run with its arm. A reader of the study then needs neither the images nor the models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from softbias.data.cache import may_write
from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.json_file import MOST_BYTES_OF_TABLES, read_json
from softbias.pages.format import amount_text
from softbias.runs import automatic
from softbias.runs.spec import RunSpec
from softbias.runs.start import SAME_STORE, Start
from softbias.schema import from_plain
from softbias.study.arms import Arm, read_recipe
from softbias.study.spec import StudySpec
from softbias.study.starts import needed_options, settled
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset

DATASETS = 2  # sets that a process keeps in memory
PLAN_FILE = "plan.json"
Chosen = Mapping[tuple[str, str], Mapping[str, Any]]  # (data, arm) -> fields of the recipe that tuning chose


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study: its arm, what defines it, and the id of the run that it starts from."""

    arm: str
    spec: RunSpec
    needs: str | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def label(self) -> str:
        """The name of the run in messages: data, arm, amount of data, seed."""
        return " · ".join([self.spec.data, self.arm, amount_text(self.spec.amount), f"seed {self.spec.seed}"])


def study_runs(spec: StudySpec, chosen: Chosen | None = None) -> list[PlannedRun]:
    """Every run of a study; runs that others start from come first, and one that several need is planned once.

    This reads the data sets, because the budget depends on their size.
    """
    runs: dict[str, PlannedRun] = {}
    for data in spec.data:
        reference = None
        for arm in spec.arms:
            start = settled(arm)
            model_options, options = needed_options(arm, {**spec.data_options, **arm.data_options})
            images = load_once(data, options)
            recipe = read_recipe(arm.recipe, spec.recipe).with_overrides((chosen or {}).get((data, arm.name), {}))
            macs = arm_macs(arm, model_options, images, recipe.frozen_blocks) if start.kind != "run" else None
            reference = reference or macs
            ratio = flops_ratio(spec, arm, reference, macs)
            for amount in spec.amounts:
                for seed in spec.seeds:
                    own = RunSpec(
                        data=data, model=arm.model, recipe=recipe, seed=seed, **amount, data_options=options,
                        model_options=model_options, start=start, convert=arm.convert,
                        finetune=arm.finetune or ("full" if start.learned or arm.pretrain else None),
                    )  # fmt: skip
                    own = replace(own, recipe=with_budget(spec, arm, own, images, ratio))
                    if spec.mixing == "views":
                        own = replace(own, recipe=automatic.mixed_by_views(own.recipe, count_train(own, images)))
                    needs = pretraining(arm, own) if arm.pretrain else None
                    if needs:
                        runs.setdefault(needs.id, needs)
                        own = replace(own, start=Start("run", needs.spec.title, f"{SAME_STORE}{needs.id}"))
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
        per_class=own.per_class if before.train_fraction is None else None,
        data_options=own.data_options, model_options=own.model_options, start=own.start,
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


def with_budget(spec: StudySpec, arm: Arm, own: RunSpec, images: Dataset, ratio: float) -> Recipe:
    """The run's recipe with its number of steps.

    With equal steps, a run on all the data decides the number. A smaller part is then seen more often, as in ConViT's study of
    sample efficiency. The warm-up has the same number of steps, too.
    """
    recipe = own.recipe
    if spec.budget == "epochs":
        return recipe
    own_length = {"epochs", "steps", "preset"} & set(arm.recipe)
    whole = replace(
        own,
        train_fraction=1.0,
        per_class=None,
        recipe=recipe if own_length else replace(spec.recipe, val_fraction=recipe.val_fraction),
    )
    per_epoch = steps_per_epoch(whole, images)
    steps = whole.recipe.steps or max(1, round(whole.recipe.epochs * per_epoch))
    steps = max(1, round(steps * ratio))
    warmup = min(round(whole.recipe.warmup_epochs * per_epoch * ratio), steps // 10)
    return replace(recipe, steps=steps, warmup_epochs=round(warmup / steps_per_epoch(own, images), 6))


def count_train(run: RunSpec, images: Dataset) -> int:
    from softbias.runs.prepare import make_split

    return len(make_split(images, run).train)


def steps_per_epoch(run: RunSpec, images: Dataset) -> int:
    count = count_train(run, images)
    return max(1, count // min(run.recipe.batch_size, count))


def arm_macs(arm: Arm, options: Mapping[str, Any], images: Dataset, frozen_blocks: int = 0) -> int:
    """Multiply-accumulates of the arm's model for one image. An arm that cannot be built is refused here, by its name."""
    import torch

    from softbias.models import create_model
    from softbias.models.conversion import converted, parse_conversion
    from softbias.models.cost import count_macs

    try:
        device = None if ":" in arm.model else "meta"  # models of other libraries may need real tensors
        with torch.random.fork_rng(devices=[]):
            model = create_model(
                arm.model, num_classes=len(images.class_names), img_size=images.img_size, device=device, **options
            )
            if arm.convert is not None:
                model = converted(model, parse_conversion(arm.convert), frozen_blocks)
        return count_macs(model, 3, *images.img_size)
    except SoftbiasError as error:
        raise SoftbiasError(f"the arm {arm.name}: {error}") from error


def in_order(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Each run after the run that it needs, and otherwise in the given order."""
    waiting, placed, ordered = list(runs), set(), []
    known = {run.id for run in waiting}
    while waiting:
        ready = [run for run in waiting if run.needs is None or run.needs in placed or run.needs not in known]
        if not ready:
            raise SoftbiasError(f"runs need each other in a circle: {', '.join(run.label for run in waiting)}")
        ordered += ready
        placed |= {run.id for run in ready}
        waiting = [run for run in waiting if run.id not in placed]
    return ordered


def load_once(data: str, options: Mapping[str, Any]) -> Dataset:
    """A data set; the process keeps it in memory for its next runs."""
    return _load(data, json.dumps(dict(options), sort_keys=True, default=str), may_write())


@lru_cache(maxsize=DATASETS)
def _load(data: str, options: str, _decoded: bool) -> Dataset:
    from softbias.data import load_dataset

    return load_dataset(data, **json.loads(options))


class PlanRow(TypedDict):
    """What plan.json says about a run."""

    arm: str
    data: str
    train_fraction: float
    per_class: NotRequired[int | None]
    seed: int
    steps: int | None
    needs: str | None
    run: str


def write_plan(runs: Sequence[PlannedRun], out: Path) -> None:
    rows = {
        run.id: PlanRow(
            arm=run.arm, data=run.spec.data, train_fraction=run.spec.train_fraction,
            per_class=run.spec.per_class, seed=run.spec.seed,
            steps=run.spec.recipe.steps, needs=run.needs, run=run.spec.title,
        )
        for run in runs
    }  # fmt: skip
    write_text(out / PLAN_FILE, json.dumps({"runs": rows}, indent=1) + "\n")


def read_plan(folder: Path) -> dict[str, PlanRow] | None:
    """The rows of plan.json by run id; None in a folder without a plan."""
    file = folder / PLAN_FILE
    if not file.is_file():
        return None
    return from_plain(dict[str, dict[str, PlanRow]], read_json(file, MOST_BYTES_OF_TABLES), str(file)).get("runs", {})
