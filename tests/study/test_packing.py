"""A study in one small file: the same report, without weights, and nothing about the machine."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.runs.answers import Answers
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.runs.start import Start
from softbias.study.archive import unpacked
from softbias.study.arms import arms_from
from softbias.study.compare import run_study
from softbias.study.frame import runs_frame
from softbias.study.packing import pack, shared_study, thinned
from softbias.study.plan import PLAN_FILE
from softbias.study.report import write_report
from softbias.study.scores import Score, Scores, read_scores, write_scores
from softbias.study.settings import study_for
from softbias.study.spec import read_study, write_study

from .small_studies import SHORT


@pytest.fixture(scope="module")
def study(image_file, tmp_path_factory) -> Path:
    """Two arms, one of which starts from a pre-training; the pictures are named by an absolute path."""
    arms = arms_from("deit_nano,arvit_nano@pretrain=arvit-pretrain:epochs=1")
    spec = study_for(image_file, arms, overrides=SHORT, seeds=2, recipe="quick", device="cpu", name="mine")
    assert Path(spec.data[0]).is_absolute()
    return run_study(spec, tmp_path_factory.mktemp("packing") / "mine", device="cpu", baseline=False, report=False).path


@pytest.fixture(scope="module")
def packed(study, tmp_path_factory) -> Path:
    return pack(study, out=tmp_path_factory.mktemp("packed") / "mine.zip").path


def test_the_report_of_a_packed_study_has_the_same_statistics(study, packed, tmp_path):
    write_report(study, tmp_path / "whole")
    with unpacked(packed) as folder:
        write_report(folder, tmp_path / "small")
    data = Path(runs_frame(study)["data"][0])
    for name in ("summary.csv", "differences.csv"):
        whole, small = ((tmp_path / part / "figures" / name).read_text() for part in ("whole", "small"))
        assert whole.replace(str(data), data.name) == small
    with unpacked(packed) as folder:
        frame, wanted = runs_frame(folder), runs_frame(study)
        assert list(frame["accuracy"]) == list(wanted["accuracy"]) and list(frame["arm"]) == list(wanted["arm"])
        assert abs(frame["finished"] - wanted["finished"]).max().total_seconds() <= 2


def test_parts_of_a_study_are_reported_together(packed, tmp_path):
    with unpacked(packed) as whole, unpacked(packed) as first, unpacked(packed) as second:
        for part, seed in ((first, 0), (second, 1)):
            for run in all_runs(part):
                if run.spec.seed != seed:
                    shutil.rmtree(run.path)
        write_report(whole, tmp_path / "whole")
        write_report([first, second], tmp_path / "parts")
    for name in ("summary.csv", "differences.csv"):
        expected, found = ((tmp_path / part / "figures" / name).read_text() for part in ("whole", "parts"))
        assert expected == found and len(found.splitlines()) > 1


def seed_alone(study: Path, seed: int, out: Path) -> Path:
    """A part of a study as its own folder: the runs of one seed."""
    part = Path(shutil.copytree(study, out, symlinks=True))
    write_study(replace(read_study(part), seeds=(seed,)), part)
    plan = json.loads((part / PLAN_FILE).read_text())
    for run in all_runs(part):
        if run.spec.seed != seed:
            del plan["runs"][run.spec.id]
            shutil.rmtree(run.path)
    (part / PLAN_FILE).write_text(json.dumps(plan))
    return part


def contents(path: Path) -> dict[str, object]:
    """What a packed study holds; its plan without the order of the runs."""
    with zipfile.ZipFile(path) as archive:
        files: dict[str, object] = {name: archive.read(name) for name in archive.namelist()}
    return files | {PLAN_FILE: json.loads(files[PLAN_FILE])}


def test_parts_are_packed_to_the_file_of_the_whole_study(study, packed, tmp_path):
    first, second = (seed_alone(study, seed, tmp_path / str(seed)) for seed in (0, 1))
    one = pack(first, out=tmp_path / "one.zip")
    whole = pack(one.path, second, out=tmp_path / "whole.zip")  # a packed part and a folder, whose set has an absolute path
    assert (one.runs, whole.runs) == (3, 6)
    assert contents(whole.path) == contents(packed)
    assert pack(packed, whole.path, out=tmp_path / "twice.zip").runs == 6
    write_study(replace(read_study(second), budget="epochs"), second)
    with pytest.raises(SoftbiasError, match=r"1 is no part of the study in .*0: its budget was another"):
        pack(first, second, out=tmp_path / "other.zip")
    assert main(["runs", "pack", str(first), str(one.path)]) == 2 and main(["runs", "pack"]) == 2


def test_answers_are_those_of_the_predictions(study, packed):
    wanted = {key(run): run.answers() for run in all_runs(study)}
    with unpacked(packed) as folder:
        for run in all_runs(folder):
            found, whole = run.answers(), wanted[key(run)]
            assert (found is None) == (whole is None) == (run.spec.recipe.objective == "rotation")
            if found is not None:
                assert not run.predictions_path.exists() and found.files is None
                for name in ("index", "labels", "predicted"):
                    np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
                for top in (1, 5):
                    np.testing.assert_array_equal(found.rank < top, whole.rank < top)
                assert np.abs(found.confidence - whole.confidence).max() <= 0.025 + 1e-6


def test_of_what_probes_measured_some_epochs_are_kept_the_first_and_the_last_among_them():
    rows = [{"epoch": epoch, "measure": measure, "value": epoch / 7} for epoch in range(100) for measure in ("mask", "moved")]
    kept = thinned(rows)
    epochs = [row["epoch"] for row in kept]
    assert len(epochs) == 21 and epochs[0] == 0 and epochs[-1] == 99 and thinned(kept) == kept
    assert thinned(rows[:20]) == [row for row in rows[:20] if row["measure"] == "moved"], "no masks: they are weights"


def test_learning_curves_keep_five_digits_and_scores_all(study, packed):
    whole = {key(run): run for run in all_runs(study)}
    with unpacked(packed) as folder:
        for run in all_runs(folder):
            wanted = whole[key(run)]
            losses = [row["loss"] for row in wanted.metrics()]
            assert losses and [row["loss"] for row in run.metrics()] == [float(f"{loss:.4e}") for loss in losses] != losses
            assert run.summary()["test"] == wanted.summary()["test"]


def test_the_rank_of_a_class_is_its_index_in_a_stable_order_also_among_equals():
    numbers = np.random.default_rng(0)
    probabilities, labels = numbers.integers(0, 4, (500, 6)).astype(np.float32) / 4, numbers.integers(0, 6, 500)
    found = Answers.of(Predictions(np.arange(500), labels, probabilities))
    order = np.argsort(-probabilities, axis=1, kind="stable")
    np.testing.assert_array_equal(found.rank, (order == labels[:, None]).argmax(1))
    np.testing.assert_array_equal(found.correct, found.rank == 0)


def all_runs(folder: Path) -> list[Run]:
    return [Run(path.parent) for path in sorted(folder.glob("runs/*/summary.json"))]


def key(run: Run) -> tuple[str, str, int]:
    """What a run of this study is, whatever its set is called."""
    return run.spec.recipe.objective, run.spec.model, run.spec.seed


def test_nothing_of_the_machine_and_no_weights_are_in_the_file(study, packed):
    data = str(Path(runs_frame(study)["data"][0]).parent)
    with unpacked(packed) as folder:
        texts = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(texts) > 5 * len(all_runs(study))
    assert not [name for name, content in texts.items() if data.encode() in content]
    assert not [name for name in texts if name.endswith(("safetensors", "csv", "html", "predictions.npz"))]
    assert packed.stat().st_size < 6_000 * len(all_runs(study))


def test_a_shared_study_names_no_folder_of_weights_or_sets(study):
    spec = read_study(study)
    start = Start("pretrained", "timm/some", path="/somewhere/weights/some.safetensors", sha256="0" * 64)
    arm = replace(spec.arms[0], start=start, data_options={"data_dir": "/somewhere/sets"})
    other = replace(spec.arms[1], pretrain=replace(spec.arms[1].pretrain, data="/somewhere/unlabelled"))
    shared = shared_study(replace(spec, arms=(arm, other), data_options={"data_dir": "/somewhere/else"}))
    assert "/somewhere" not in str(shared.to_dict()) and shared.arms[0].start.path == "some.safetensors"
    assert str(Path(spec.data[0]).parent) not in str(shared.to_dict())


def test_ids_follow_the_new_name_of_the_set_also_where_a_run_starts_from_another(packed):
    with unpacked(packed) as folder:
        plan = json.loads((folder / "plan.json").read_text())["runs"]
        runs = {run.spec.id: run for run in all_runs(folder)}
        assert set(plan) == set(runs) and all(run.path.name == plan[id]["run"] for id, run in runs.items())
        starts = [run.spec.start.path for run in runs.values() if run.spec.start.path]
        assert len(starts) == 2 and all(start.removeprefix("run:") in runs for start in starts)
        assert {row["needs"] for row in plan.values() if row["needs"]} <= set(runs)
        for run in runs.values():
            run.summary(), run.metrics(), run.environment()  # each is compared with its checksum


def test_measurements_on_the_runs_follow_their_ids(study, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(study, copy)
    ids = {run.spec.id: Score(1.0 + number) for number, run in enumerate(all_runs(copy))}
    write_scores(Scores("accuracy", ids), copy)
    (copy / "extra/lines.csv").write_bytes(f"run,path\r\n{next(iter(ids))},{copy}/runs\r\n".encode())
    with unpacked(pack(copy, out=tmp_path / "copy.zip").path) as folder:
        found = read_scores(folder)
        plan = json.loads((folder / "plan.json").read_text())["runs"]
        assert set(found.runs) == set(plan) and sorted(found.runs.values(), key=str) == sorted(ids.values(), key=str)
        run, path = (folder / "extra/lines.csv").read_bytes().decode().split("\r\n")[1].split(",")
        assert run in plan and path == "copy/runs"


def test_the_same_study_makes_the_same_bytes(study, packed, tmp_path):
    assert pack(study, out=tmp_path / "again.zip").path.read_bytes() == packed.read_bytes()


def test_the_labels_of_images_that_several_runs_share_are_stored_once(study, packed):
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
    scored = [run for run in all_runs(study) if run.answers() is not None]
    assert len(scored) == 4 and len([name for name in names if name.endswith("answers.npz")]) == 4
    assert len([name for name in names if name.endswith("labels.npz")]) == 1
    with unpacked(packed) as folder:
        assert len(list(folder.glob("runs/*/labels.npz"))) == 4 and not (folder / "same.json").exists()


@pytest.mark.parametrize("files", [1, 2])
def test_answers_of_older_files_are_read_as_well(files, tmp_path):
    labels = {"index": np.array([4, 7, 9]), "label": np.array([0, 1, 1], np.uint8)}
    answers = {"predicted": np.array([0, 2, 1], np.uint8), "rank": np.array([0, 2, 0]), "confidence": np.array([255, 51, 102])}
    if files == 2:
        np.savez(tmp_path / "labels.npz", **labels)
    np.savez(tmp_path / "answers.npz", **answers, **(labels if files == 1 else {}))
    found = Answers.read(tmp_path)
    found.write(tmp_path)
    for read in (found, Answers.read(tmp_path)):
        assert read.index.tolist() == [4, 7, 9] and read.labels.tolist() == [0, 1, 1]
        assert read.predicted.tolist() == [0, 2, 1] and read.rank.tolist() == [0, 2 if read is found else 1, 0]
        np.testing.assert_allclose(read.confidence, [1, 0.2, 0.4])


def test_answers_that_lack_a_column_or_the_labels_or_do_not_fit_are_refused(tmp_path):
    columns = {"rank": np.array([0, 2, 1], np.uint8), "instead": np.zeros(2, np.uint8)}
    np.savez(tmp_path / "answers.npz", **columns)
    with pytest.raises((SoftbiasError, OSError), match=r"labels\.npz"):
        Answers.read(tmp_path)
    np.savez(tmp_path / "labels.npz", index=np.arange(3), label=np.zeros(3, np.uint8))
    with pytest.raises(SoftbiasError, match="the array percent is missing"):
        Answers.read(tmp_path)
    np.savez(tmp_path / "answers.npz", **columns | {"instead": np.zeros(3, np.uint8)}, percent=np.zeros(3, np.uint8))
    with pytest.raises(
        SoftbiasError, match=r"instead must be whole numbers, one per wrong prediction, but is uint8 of shape \(3,\)"
    ):
        Answers.read(tmp_path)


def test_damaged_runs_are_not_packed(study, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(study, copy)
    file = next(copy.glob("runs/*/predictions.npz"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(SoftbiasError, match="damaged"):
        pack(copy, out=tmp_path / "copy.zip")
    assert not (tmp_path / "copy.zip").exists()


def test_the_commands_pack_and_report(study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "pack", str(study)]) == 0
    assert "6 runs" in capsys.readouterr().out
    assert main(["report", "mine.zip"]) == 0
    assert (tmp_path / "report/report.html").is_file() and "deit_nano" in (tmp_path / "report/figures/runs.csv").read_text()
    assert str(tmp_path) not in (tmp_path / "report/figures/runs.csv").read_text()
    assert main(["runs", "pack", str(tmp_path)]) == 2 and main(["runs", "pack", str(study), "--out", "mine.tar"]) == 2
