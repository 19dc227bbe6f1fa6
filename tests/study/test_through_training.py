"""What studies record while their runs train: probes, checkpoints, and accuracy on held-out pictures over epochs."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pandas
import pytest
from PIL import Image
from scipy import stats

from softbias.errors import SoftbiasError
from softbias.probes.drawing import layers_over_training, mean_line
from softbias.runs.live import read_live
from softbias.runs.run import Run
from softbias.study.archive import unpacked
from softbias.study.arms import arms_from
from softbias.study.compare import run_study
from softbias.study.frame import run_folders
from softbias.study.packing import pack
from softbias.study.papers.through_training import legible, masks_over_epochs, without_fixed
from softbias.study.progress import StudyDisplay
from softbias.study.report import write_report
from softbias.study.report.bias import correlation_row
from softbias.study.settings import study_for

from .small_studies import outcome
from .test_processes import checkpoints, finished, start, wait_until

TWO_EPOCHS = {"steps": 14, "val_fraction": 0.0}
ARMS = "convit_nano,ibit_nano"


def white() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 2), "white").save(stream, "PNG")
    return stream.getvalue()


WHITE = white()


class Heard(StudyDisplay):
    def __init__(self):
        super().__init__()
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def whole(spec, out, **options):
    return run_study(spec, out, device="cpu", baseline=False, estimate=False, **{"report": False, **options})


@pytest.fixture(scope="module")
def probed(tmp_path_factory, image_file):
    out = tmp_path_factory.mktemp("probed") / "s"
    spec = study_for(
        image_file, arms_from(ARMS), seeds=2, recipe="quick", device="cpu", probe_every=1, keep="every=1",
        overrides={"batch_size": 16, **TWO_EPOCHS},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softbias.study.report.png", lambda chart: WHITE)  # drawing is the slow part
        yield whole(spec, out, report=True)


def runs_of(done, model):
    return [Run(path) for path in done.runs[done.runs["model"] == model]["run"]]


def test_every_run_is_probed_at_the_start_and_at_every_epoch_and_keeps_its_checkpoints(probed):
    for model, names in (
        ("deit_nano", {"locality"}),
        ("convit_nano", {"locality", "gates"}),
        ("ibit_nano", {"locality", "masks"}),
    ):
        for run in runs_of(probed, model):
            assert {file.stem for file in run.probe_folder.glob("*.jsonl")} == names
            assert {row["epoch"] for row in read_live(run, "locality")} == {0, 1, 2}
            assert [checkpoint.step for checkpoint in run.checkpoints] == [0, 7, 14]


def test_the_report_draws_the_means_of_what_was_measured(probed):
    folder = probed.report.parent / "figures"
    (file,) = folder.glob("training-*-non-locality.csv")
    table = pandas.read_csv(file)
    rows = [row for run in runs_of(probed, "convit_nano") for row in read_live(run, "locality")]
    rows = [row for row in rows if (row["measure"], row["layer"], row["epoch"]) == ("non_locality", 1, 2)]
    own = [row["value"] for row in rows if row["head"] is not None]
    drawn = table[(table["arm"] == "convit_nano") & (table["layer"] == 1) & (table["epoch"] == 2)]
    assert drawn["value"].item() == pytest.approx(sum(own) / len(own)) and drawn["seeds"].item() == 2
    assert {file.stem.split("-100-")[1] for file in folder.glob("training-*.csv")} == {"non-locality", "gate", "moved"}
    assert set(table["arm"]) == {"convit_nano", "ibit_nano"}


def numbers(text):
    return [float(found) for found in re.findall(r"[+-]?\d+\.\d+", text.replace("$-$", "-"))]


@pytest.mark.parametrize(
    ("model", "probe", "measure", "title", "digits"),
    [("ibit_nano", "locality", "non_locality", "Non-locality", 2), ("convit_nano", "gates", "gate", "Gates", 3)],
)
def test_a_table_says_how_far_training_moved_a_model(probed, model, probe, measure, title, digits):
    def mean(run, epoch):
        rows = [row for row in read_live(run, probe) if (row["measure"], row["epoch"]) == (measure, epoch)]
        return np.mean([row["value"] for row in rows if row["head"] is not None])

    (file,) = (probed.report.parent / "figures").glob("training-*.tex")
    rows = [line.replace("\\_", "_").split(" & ") for line in file.read_text().splitlines()]
    rows = [cells for cells in rows if cells[0].strip().startswith(model) and cells[1].startswith(title)]
    start, end = (np.array([mean(run, epoch) for run in runs_of(probed, model)]) for epoch in (0, 2))
    change = end - start
    wanted = [start.mean(), end.mean(), change.mean(), *stats.t.interval(0.95, 1, change.mean(), stats.sem(change))]
    (found,) = [numbers(" ".join(cells[2:])) for cells in rows]
    assert found == pytest.approx(wanted, abs=0.501 * 10**-digits)


def test_the_report_draws_scores_by_what_was_measured_last(probed):
    folder = probed.report.parent / "figures"
    (file,) = folder.glob("bias-*.csv")  # gates and masks have one arm each, so there is nothing to compare
    assert file.stem.endswith("-100-non-locality")
    table = pandas.read_csv(file).set_index(["arm", "seed"])
    assert len(table) == 4
    for run in runs_of(probed, "ibit_nano"):
        rows = [row for row in read_live(run, "locality") if (row["measure"], row["epoch"]) == ("non_locality", 2)]
        own = [row["value"] for row in rows if row["head"] is not None]
        drawn = table.loc["ibit_nano", run.spec.seed]
        assert drawn["bias"] == pytest.approx(sum(own) / len(own))
        assert drawn["value"] == pytest.approx(run.summary()["test"]["accuracy"])


def test_a_packed_study_has_what_was_measured_to_five_digits(probed, tmp_path):
    whole = {(run.spec.model, run.spec.seed): run for run in map(Run, probed.runs["run"])}
    with unpacked(pack(probed.path, out=tmp_path / "probed.zip").path) as folder:
        packed = [Run(path) for path in run_folders(folder)]
        assert len(packed) == len(whole) == 4
        for run in packed:
            for name in ("locality", "gates", "masks"):
                found, wanted = (
                    [row["value"] for row in read_live(each, name) if row["measure"] != "mask"]
                    for each in (run, whole[run.spec.model, run.spec.seed])
                )
                assert found == [None if value is None else float(f"{value:.4e}") for value in wanted]


def test_bias_and_score_are_correlated_over_the_means_of_arms():
    def table(scores):
        return pandas.DataFrame({"arm": [*"abcd"] * 2, "bias": [1.0, 2, 3, 4] * 2, "value": scores * 2})

    def cells(scores, arms=8):
        return [[cell.main for cell in row] for row in correlation_row(table(scores)[:arms], "Reach", "all data")]

    assert cells([0.1, 0.2, 0.3, 0.4]) == [["Reach", "all data", "4", "1.00", "p = 0.083"]]  # 2 of 24 orders
    assert cells([0.4, 0.2, 0.3, 0.1]) == [["Reach", "all data", "4", "−0.80", "p = 0.33"]]
    assert cells([0.2] * 4) == cells([0.1, 0.2, 0.3, 0.4], arms=3) == []


def test_a_damaged_record_costs_its_part_of_the_report_and_is_counted(probed):
    file = runs_of(probed, "convit_nano")[0].probe_folder / "gates.jsonl"
    before = file.read_bytes()
    file.write_bytes(before[: len(before) // 2] + b"\xff\n" + before[len(before) // 2 :])
    try:
        with pytest.raises(SoftbiasError, match=r"gates\.jsonl, line"):
            read_live(runs_of(probed, "convit_nano")[0], "gates")
        assert "The records of 1 run are damaged" in write_report(probed.path, probed.path.parent / "again").read_text()
    finally:
        file.write_bytes(before)


def test_masks_of_a_study_are_drawn_over_epochs(probed):
    (one,) = masks_over_epochs(probed.path)
    assert all(file.stat().st_size > 0 for file in (*one.figures, *one.tables)) and len(one.figures) == 2
    table = pandas.read_csv(one.tables[0])
    moved = table[table["measure"] == "moved"]
    assert set(moved["model"]) == {"ibit_nano"} and set(moved["epoch"]) == {0, 1, 2} and set(moved["seed"]) == {0, 1}
    assert (moved[moved["epoch"] == 0]["value"] == 0).all() and (moved[moved["epoch"] == 2]["value"] > 0).all()


def test_masks_that_are_not_learned_take_no_part_in_a_mean():
    rows = [
        {"model": "m", "layer": layer, "head": 0, "measure": "moved", "epoch": epoch, "value": 0.1 * epoch * (layer == 0)}
        for layer in range(2)
        for epoch in (0, 1)
    ]
    assert {row["layer"] for row in without_fixed(rows)} == {0} and len(without_fixed(rows)) == 2


def test_of_many_heads_the_one_that_moved_most_is_drawn():
    rows = [
        {"layer": layer, "head": head, "measure": "moved", "epoch": 1, "value": float(head == layer % 4)}
        for layer in range(4)
        for head in range(4)
    ]
    kept, note = legible(rows)
    assert {(row["layer"], row["head"]) for row in kept} == {(0, 0), (1, 1), (2, 2), (3, 3)} and "moved most" in note
    assert legible(rows[:12]) == (rows[:12], "")


def test_a_mean_line_is_the_mean_of_each_epoch(tmp_path):
    same = {"model": "m", "weights": "trained", "measure": "gate"}
    rows = [
        {**same, "layer": layer, "head": head, "epoch": epoch, "value": layer + head + epoch}
        for layer in range(2)
        for head in range(3)
        for epoch in (0, 2)
    ]
    line = mean_line(rows, "all")
    assert line.kind == "mean" and list(line.x) == [0, 2] and list(line.y) == pytest.approx([1.5, 3.5])
    assert layers_over_training(rows, tmp_path, "x", "gate", "gate").stat().st_size > 0


def test_finished_runs_that_were_not_probed_are_counted_and_stay(little_study, tmp_path):
    spec = little_study("deit_nano", seeds=2, fractions=1)
    whole(spec, tmp_path / "s")
    before = outcome(tmp_path / "s")
    heard = Heard()
    asked = little_study("deit_nano", seeds=3, fractions=1, probe_every=1, keep="last", out=tmp_path / "s")
    whole(asked, tmp_path / "s", display=heard)
    assert any("2 of 2 finished runs were not probed" in text for text in heard.messages)
    assert any("2 of 2 finished runs kept no checkpoints" in text for text in heard.messages)
    after = outcome(tmp_path / "s")
    assert len(after) == 3 and all(after[id] == before[id] for id in before)
    assert len(list((tmp_path / "s").glob("runs/*/probes"))) == 1


def test_a_study_that_continues_keeps_what_it_records(little_study, tmp_path):
    run = {"seeds": 1, "fractions": 1, "out": tmp_path / "s"}
    whole(little_study("deit_nano", probe_every=2, keep="every=1", **run), tmp_path / "s")
    again = little_study("deit_nano,convit_nano", **run)
    assert again.probe_every == 2 and again.keep == "every=1"


def test_checkpoints_that_cannot_be_meant_are_refused_before_anything_is_written(little_study, tmp_path):
    with pytest.raises(SoftbiasError, match="keep takes last, best and every=K"):
        whole(little_study("deit_nano", keep="some"), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_accuracy_on_test_images_is_recorded_over_epochs_and_changes_nothing(little_study, tmp_path):
    spec = little_study("deit_nano", seeds=1, fractions=1, overrides={**TWO_EPOCHS, "ema": 0.9})
    whole(spec, tmp_path / "plain")
    whole(replace(spec, test_curve=True), tmp_path / "curve")
    (plain,), (curve,) = (list(outcome(tmp_path / name).values()) for name in ("plain", "curve"))
    assert plain[0] == curve[0] and plain[2] == curve[2]
    recorded = [row.pop("test_accuracy", None) for row in curve[1]]
    assert plain[1] == curve[1] and len(recorded) == 2 and recorded[-1] == pytest.approx(curve[2]["accuracy"])


@pytest.mark.slow
def test_a_curve_of_test_accuracy_has_points_also_where_training_images_are_few(little_study, tmp_path):
    spec = little_study("deit_nano", fractions=(0.1,), seeds=1, overrides={"steps": 16, "val_fraction": 0.0})
    (run,) = runs_of(whole(replace(spec, test_curve=True), tmp_path / "s"), "deit_nano")  # 12 pictures in training, 60 in test
    rows = run.metrics()
    assert len(rows) == 16  # epochs of one step
    assert len([row for row in rows if "test_accuracy" in row]) == 8


def test_a_probed_study_that_was_killed_ends_as_one_that_was_never_stopped(little_study, tmp_path):
    spec = little_study("convit_nano,ibit_nano", seeds=1, fractions=1, probe_every=1, keep="every=1", overrides={"steps": 42})

    def records(out):
        files = sorted((out / "runs").glob("*/probes/*.jsonl"))
        return {file.relative_to(out): [json.loads(line) for line in file.read_text().splitlines()] for file in files}

    process = start(spec, tmp_path / "s")
    wait_until(lambda: checkpoints(tmp_path / "s") >= 3, process)
    process.kill()
    process.wait()
    assert finished(tmp_path / "s") < 2
    for out in (tmp_path / "s", tmp_path / "never"):
        whole(spec, out)
    assert outcome(tmp_path / "s") == outcome(tmp_path / "never")
    assert records(tmp_path / "s") == records(tmp_path / "never") and len(records(tmp_path / "s")) == 4


def test_finished_runs_that_the_study_no_longer_has_are_counted(little_study, tmp_path):
    first, second = (little_study(model, seeds=1, fractions=1) for model in ("deit_nano", "convit_nano"))
    heard = Heard()
    whole(first, tmp_path / "s", display=heard)
    assert not any("had before" in text for text in heard.messages)
    whole(second, tmp_path / "s", display=heard)
    assert any(text.startswith("left out of the report, and kept: 1 finished run in ") for text in heard.messages)
    assert pack(tmp_path / "s", out=tmp_path / "s.zip").outside == 1
    assert pack(tmp_path / "s.zip", out=tmp_path / "again.zip").outside == 0
