"""A study names its main metric: headline, tables, differences and published numbers are about it, together."""

import json

import numpy as np
import pandas as pd
import pytest

from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.models import create_model
from softbias.pages.charts import Cell
from softbias.probes import find_probe
from softbias.study.arms import arms_from
from softbias.study.compare import Comparison
from softbias.study.comparison import compare_arms, summarize, usable_metric
from softbias.study.estimate import StudyPlan
from softbias.study.frame import COLUMNS, runs_frame
from softbias.study.headline import headline
from softbias.study.metric import METRICS, OWN, find_metric
from softbias.study.papers import find_study
from softbias.study.report import write_report
from softbias.study.report.one_table import one_table
from softbias.study.report.results import Material, Results
from softbias.study.score_tables import score_tables
from softbias.study.scores import Score, Scores, read_scores, write_scores
from softbias.study.settings import study_for
from softbias.study.spec import StudySpec, write_study

from .report.handmade import make_study, text_of

ARMS = ("deit_nano", "ibit_nano")  # by accuracy the second is far ahead


@pytest.fixture
def quick(monkeypatch):
    """Drawing is the slow part of a report."""
    monkeypatch.setattr("softbias.study.report.png", lambda chart: b"")


def reversed_by(folder, metric):
    """A study in which the first arm is ahead by another score than accuracy."""
    published = [{"data": "fashion", "arm": "deit_nano", "value": 88.5, "metric": metric, "note": "t. 1"}]
    make_study(folder, ARMS, (1.0,), seeds=3, study={"metric": metric, "published": published})
    for file in folder.glob("runs/*/summary.json"):
        summary = json.loads(file.read_text())
        better = summary["model"] == "deit_nano"
        summary["test"][metric] = (0.91 if better else 0.42) + (0.001 if better else 0.003) * summary["seed"]
        file.write_text(json.dumps(summary))
    return folder


def comparison(folder, metric):
    frame = runs_frame(folder)
    return Comparison(folder, StudyPlan((), (), {}, {}), frame, metric=usable_metric(frame, metric))


@pytest.mark.parametrize("metric", ["balanced_accuracy", "macro_f1"])
def test_another_metric_changes_headline_table_differences_and_published_numbers_together(tmp_path, quick, metric):
    folder = reversed_by(tmp_path, metric)
    by_accuracy, by_metric = comparison(folder, "accuracy"), comparison(folder, metric)
    assert "ibit_nano beats deit_nano" in by_accuracy.headline
    assert "deit_nano beats ibit_nano by 48.8 ± 0.5 points" in by_metric.headline
    assert by_accuracy.differences["difference"].item() > 0 > by_metric.differences["difference"].item()
    assert by_metric.differences["arm_value"].item() == pytest.approx(0.423)
    (first, _), (second, _) = (score_tables(one.runs, one.metric) for one in (by_accuracy, by_metric))
    assert "91.1%" in second[0].rows[0][1] and "91.1%" not in first[0].rows[0][1] and METRICS[metric].title in second[0].title
    assert second[0].below is None and first[0].below[0] == "raw pixels"  # the regression has its accuracy alone
    text = text_of(write_report(folder))
    assert by_metric.headline in text and "91.1 ± 0.2" in text and "−48.8" in text
    assert f"{METRICS[metric].title} 88.5 91.1 ± 0.2" in text  # published, and ours beside it
    assert METRICS[metric].heading in text and "ibit_nano beats" not in text


def test_top_5_is_paired_over_images_as_accuracy_is(tmp_path):
    make_study(tmp_path, ARMS, (1.0,), seeds=3)
    table = compare_arms(runs_frame(tmp_path), METRICS["top5"])
    assert table["n_images"].item() == 200 and np.isfinite(table["images_low"].item())
    assert compare_arms(runs_frame(tmp_path), METRICS["macro_f1"])["n_images"].item() == 0


def with_scores(folder, seeds=3):
    make_study(folder, ARMS, (1.0,), seeds=seeds, study={"metric": "top4_matching"})
    frame = runs_frame(folder)
    values = {id: (2.0 if arm == "deit_nano" else 1.7) + 0.01 * seed for id, arm, seed in frame[["id", "arm", "seed"]].values}
    scores = Scores("top4_matching", {id: Score(value, value - 0.1, value + 0.1) for id, value in values.items()}, "How.", 1.6)
    write_scores(scores, folder)
    return folder


def test_a_metric_measured_on_finished_runs_is_what_the_report_is_about(tmp_path, quick):
    done = comparison(with_scores(tmp_path), "top4_matching")
    assert done.metric is METRICS["top4_matching"] and done.chance_level == 1.6
    assert "deit_nano beats ibit_nano by 0.30 ± 0.00 classes of Top-4 matching" in done.headline
    assert done.summary.set_index("arm").loc["deit_nano", ["value", "images_low"]].tolist() == pytest.approx([2.01, 1.91])
    (table,), legend = score_tables(done.runs, done.metric, done.chance_level)
    assert table.rows[0][1].startswith("2.01 ± 0.0") and table.below == ["random answers", "1.60"] and "seeds" in legend
    text = text_of(write_report(tmp_path))
    assert done.headline in text and "random answers" in text and "−0.30" in text and "How." in text
    assert "No curve is fitted" not in text  # it is no share of right answers


def test_with_one_seed_the_interval_of_a_measured_metric_is_its_own(tmp_path):
    done = comparison(with_scores(tmp_path, seeds=1), "top4_matching")
    (table,), legend = score_tables(done.runs, done.metric, done.chance_level)
    assert table.rows[0][1] == "2.00 ± 0.10, n = 1" and "scenes" in legend


@pytest.mark.parametrize("damage", [None, b"", b"{}", b'{"metric": "nothing", "runs": {}}', b"\xff"])
def test_where_the_metric_could_not_be_measured_accuracy_is_reported_and_named(tmp_path, quick, damage):
    folder = with_scores(tmp_path)
    file = folder / "extra" / "scores.json"
    file.unlink() if damage is None else file.write_bytes(damage)
    assert read_scores(folder) is None
    assert comparison(folder, "top4_matching").metric is METRICS["accuracy"]
    assert "This study is about Top-4 matching, which no finished run has" in text_of(write_report(folder))


def test_less_is_better_where_a_metric_says_so_and_rounds_are_no_seeds(tmp_path, quick):
    make_study(tmp_path, ARMS, (1.0,), seeds=1, study={"metric": "step_time"})
    frame = runs_frame(tmp_path)
    scores = {id: Score(1.0 + 0.1 * (arm == "ibit_nano"), 0.99, 1.2) for id, arm in frame[["id", "arm"]].values}
    write_scores(Scores("step_time", scores), tmp_path)
    done = comparison(tmp_path, "step_time")
    assert "ibit_nano 1.10 × (0.99 to 1.20)" in done.headline and "seed" not in done.headline
    text = text_of(write_report(tmp_path))
    assert done.headline in text and "Paired differences" not in text and "nothing is claimed" not in text
    one = runs_frame(tmp_path)
    several = pd.concat([one.assign(seed=seed, step_time=one["step_time"] * (1 + seed / 100)) for seed in range(3)])
    assert "deit_nano beats ibit_nano" in headline(compare_arms(several, done.metric), done.summary, None, done.metric).text


def test_a_metric_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(SoftbiasError, match=r"there is no metric 'acuracy'.*accuracy"):
        StudySpec.from_dict({"name": "x", "data": "fashion", "arms": ["deit_nano"], "metric": "acuracy"})
    assert find_metric("macro_f1").measured is False and find_metric("top4_matching").measured
    assert set(OWN) < set(METRICS)


def test_a_file_keeps_the_metric_of_its_study():
    spec = StudySpec.from_dict({"name": "x", "data": "fashion", "arms": ["deit_nano"], "metric": "balanced_accuracy"})
    assert StudySpec.from_dict(spec.to_dict()).metric == "balanced_accuracy" == spec.metric
    assert "metric" not in StudySpec.from_dict({"name": "x", "data": "fashion", "arms": ["deit_nano"]}).to_dict()


def test_a_study_keeps_its_metric_when_an_arm_is_added_and_takes_another_that_is_named(tmp_path):
    def study(**given):
        spec = study_for("fashion", arms_from("deit_nano"), recipe="quick", out=tmp_path / "s", device="cpu", **given)
        write_study(spec, tmp_path / "s")
        return spec.metric

    assert [study(), study(metric="macro_f1"), study(), study(metric="top5")] == ["accuracy", "macro_f1", "macro_f1", "top5"]


def results_of(spec):
    """Results of runs that nobody did: a row for every arm and set."""
    rows = [
        {**dict.fromkeys(COLUMNS), "run": "nowhere", "id": f"{arm.name}{data}", "arm": arm.name, "data": data, "amount": 1.0}
        | {"seed": 0, "pretext": False, "accuracy": 0.5, "n_test": 100, "n_train": 10}
        for data in spec.data
        for arm in spec.arms
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["value"] = frame["accuracy"]
    return Results.of(Material(frame, frame, spec, (), None, [arm.name for arm in spec.arms], list(spec.data)))


def test_arvit_s_table_is_one_table_with_the_document_s_columns():
    spec = find_study("arvit-table1").spec("paper")
    results = results_of(spec)
    assert results.in_one_table
    table = one_table(results)
    sets = ["cifar10", "cifar100", "flowers102", "imagenette", "imagewoof"]
    assert list(table.head)[:4] == ["model", "regularization", "layer", "patch"] and list(table.head)[-5:] == sets
    rows = {row[0].main: row for row in table.rows}
    assert len([arm for arm in rows if arm in {number["arm"] for number in spec.published}]) == 14
    l3, style, base = rows["ARViT-L3"], rows["ARViT-R1-5"], rows["ARViT-Base"]
    assert [cell.main for cell in l3[1:4]] == ["2D distance", "3rd", "16"]
    assert [cell.main for cell in style[1:4]] == ["region similarity", "5th", "16"]
    assert [cell.main for cell in base[1:4]] == ["–"] * 3
    assert l3[-5] == Cell("50.0", ("(84.76)",)) and rows["ViT-Tiny"][-1].below == ("(61.77)",)


def test_with_one_set_there_is_no_table_of_sets():
    assert not results_of(find_study("convit-sizes").spec("paper")).in_one_table


def test_top_4_is_left_out_where_there_are_four_classes():
    rng = np.random.default_rng(0)
    for classes in (4, 5):
        data = rng.integers(0, 255, (40, 16, 16, 3), dtype=np.uint8), np.arange(40) % classes
        model = create_model("deit_nano", num_classes=classes, img_size=16, patch_size=4)
        if classes == 4:
            with pytest.raises(NotMeasurableError, match="more than 4 classes"):
                find_probe("combined").measure(model, data, n=8)
        else:
            assert find_probe("combined").measure(model, data, n=8)[0]["measure"] == "top4_matching"


def test_the_studies_of_scenes_and_costs_are_about_what_they_ask():
    metrics = {name: find_study(name).spec("smoke").metric for name in ("eth-combined", "eth-background", "arvit-cost")}
    assert metrics == {"eth-combined": "top4_matching", "eth-background": "background_accuracy", "arvit-cost": "step_time"}
    assert summarize(pd.DataFrame(columns=list(COLUMNS))).empty
