"""From a study to its runs: budgets, dependencies, what is refused."""

import json
import re
from dataclasses import replace

import pytest

from softbias.runs.run import Run
from softbias.runs.store import Store
from softbias.study.estimate import estimate_time, makespan, plan_study
from softbias.study.execute import ExecutionSettings, ThisProcess, execute
from softbias.study.plan import study_runs
from softbias.study.progress import StudyDisplay
from softbias.study.workers import WorkerPool


def test_the_product_is_planned_and_every_arm_has_the_same_seeds_and_steps(little_study):
    runs = study_runs(little_study("deit_nano,convit_nano@strength=2", fractions=(0.25, 0.5, 1), seeds=2))
    assert len(runs) == 12 and len({run.id for run in runs}) == 12
    assert {run.spec.recipe.steps for run in runs} == {6}
    by_arm = {arm: [(r.spec.train_fraction, r.spec.seed) for r in runs if r.arm == arm] for arm in {run.arm for run in runs}}
    assert len(by_arm) == 2 and len({tuple(cells) for cells in by_arm.values()}) == 1


def test_equal_steps_are_those_of_all_the_data_and_warm_up_as_long(little_study):
    spec = little_study(overrides={"steps": None, "epochs": 4, "warmup_epochs": 0.4})
    runs = study_runs(spec)
    assert {run.spec.recipe.steps for run in runs} == {28}  # 4 × (120 // 16)
    steps = {1.0: 7, 0.5: 3}
    assert {round(run.spec.recipe.warmup_epochs * steps[run.spec.train_fraction]) for run in runs} == {2}  # a tenth of 28


def test_epochs_as_budget_leave_small_fractions_fewer_steps(little_study):
    runs = study_runs(little_study(budget="epochs", overrides={"steps": None, "epochs": 4}))
    assert {run.spec.recipe.steps for run in runs} == {None} and {run.spec.recipe.epochs for run in runs} == {4.0}


def test_mixing_by_views_is_the_same_for_all_arms_and_for_small_fractions_alone(little_study):
    spec = replace(little_study(fractions=(0.2, 1.0)), mixing="views")
    recipe = spec.recipe.with_overrides({"steps": 100, "mixup": 0.3})
    runs = study_runs(replace(spec, recipe=replace(recipe, batch_size=4)))
    seen = {run.spec.train_fraction: (run.spec.recipe.augmentation.mixup, run.spec.recipe.augmentation.cutmix) for run in runs}
    assert len(runs) == 2 * len(spec.arms) * len(spec.seeds)
    assert seen == {0.2: (0.8, 1.0), 1.0: (0.0, 0.0)}
    left = study_runs(replace(spec, recipe=recipe, mixing="recipe"))
    assert {run.spec.recipe.augmentation.mixup for run in left} == {0.3}


def test_equal_flops_give_a_cheaper_model_more_steps(little_study):
    runs = study_runs(little_study("deit_nano,deit_nano@depth=2,deit_nano@depth=8", budget="flops", overrides={"steps": 100}))
    steps = {run.arm: run.spec.recipe.steps for run in runs}
    assert steps["deit_nano"] == 100 and 180 < steps["deit_nano@depth=2"] < 220 and 45 < steps["deit_nano@depth=8"] < 55


def test_a_pretraining_is_planned_once_for_all_fractions_and_ways_to_fine_tune(little_study):
    arms = "arvit_nano@pretrain=arvit-pretrain@finetune=linear,arvit_nano@pretrain=arvit-pretrain@finetune=full,arvit_nano"
    runs = study_runs(little_study(arms))
    before = [run for run in runs if run.spec.recipe.objective == "rotation"]
    assert len(before) == 2 and len(runs) == 2 + 3 * 4  # one per seed
    for run in runs:
        if run.needs:
            (first,) = [other for other in before if other.id == run.needs]
            assert first.spec.seed == run.spec.seed and run.spec.start.path == f"run:{first.id}"


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ("deit_nan", "did you mean 'deit_nano'?"),
        ("convit_nano@strenght=2", "the arm convit_nano@strenght=2: there is no option of convit_nano 'strenght'"),
        ("resnet_nano@patch_size=8", "the patches of resnet_nano cannot be chosen"),
        ("deit_nano,deit_nano@name=twin", "the arms deit_nano and twin are the same runs"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_runs(models, text, little_study):
    with pytest.raises(ValueError, match=re.escape(text)):
        study_runs(little_study(models))


def test_the_plan_says_how_long_it_takes(little_study, tmp_path):
    plan = plan_study(study_runs(little_study()), Store(tmp_path), ThisProcess("cpu").seconds_per_step)
    assert len(plan.missing) == 8 and set(plan.seconds) == {run.id for run in plan.runs}
    assert all(seconds > 0 for seconds in plan.seconds.values())
    assert plan.describe(2).startswith("8 runs: 0 finished, 8 to do, about") and "with 2 at a time" in plan.describe(2)
    assert plan.describe(None).endswith("one after another")


def test_finished_runs_of_an_arm_are_its_pace(little_study, tmp_path):
    first, second = study_runs(little_study("deit_nano", fractions=1, overrides={"steps": 1000}))
    Run(Store(tmp_path).folder(first.spec)).path.mkdir()
    summary = {
        "id": first.id, "data": "bright", "model": "deit_nano", "seed": 0, "train_fraction": 1.0, "objective": "supervised",
        "pretext": False, "parameters": 1, "pictures": {"train": 1, "val": 0}, "img_size": [8, 8], "steps": 1000,
        "epochs": 1.0, "seconds": 50.0, "images_per_second": 1.0,
    }  # fmt: skip
    (Store(tmp_path).folder(first.spec) / "summary.json").write_text(json.dumps(summary))

    def never(_):
        raise AssertionError("steps were timed, although the speed is known")

    seconds = estimate_time([first], [second], Store(tmp_path), never, 0)
    assert list(seconds) == [second.id] and 50 < seconds[second.id] < 53  # and the test pictures, and a second for the rest


def test_the_baseline_is_expected_once_in_every_process(little_study, tmp_path):
    runs = study_runs(little_study("deit_nano,convit_nano,resnet_nano@stem=large", seeds=1, fractions=1))
    without = estimate_time([], runs, Store(tmp_path), lambda _: 0.1, 0)
    with_two = estimate_time([], runs, Store(tmp_path), lambda _: 0.1, 2)
    assert [with_two[run.id] > without[run.id] for run in runs] == [True, True, False]


def test_runs_wait_for_a_free_worker_and_for_what_they_start_from(little_study):
    runs = study_runs(little_study("deit_nano", seeds=3, fractions=1))
    seconds = dict.fromkeys((run.id for run in runs), 10.0)
    assert [makespan(runs, seconds, jobs) for jobs in (1, 2, 3, 9)] == [30.0, 20.0, 10.0, 10.0]  # not 15 with two
    chain = study_runs(little_study("arvit_nano@pretrain=arvit-pretrain", seeds=1))
    assert makespan(chain, dict.fromkeys((run.id for run in chain), 10.0), 3) == 20.0
    assert makespan([], {}, 2) == 0.0


def test_two_processes_are_measured_together(little_study, tmp_path):
    runs = study_runs(little_study("deit_nano", seeds=2, fractions=1))
    settings = ExecutionSettings(tmp_path, "cpu", baseline=False)
    with WorkerPool(settings, 2) as pool:
        plan = plan_study(runs, Store(tmp_path), pool.seconds_per_step, jobs=2)
        assert set(plan.seconds) == {run.id for run in runs} and "with 2 at a time" in plan.describe(2)
        first = [worker.process.pid for worker in pool.workers]
        assert len(set(first)) == 2
        done = execute(runs, pool, settings, StudyDisplay())
        assert {one.state for one in done.values()} == {"finished"}
        assert [worker.process.pid for worker in pool.workers] == first  # the same ones do the runs
    assert all(worker.process.poll() is not None for worker in pool.workers)
