"""softbias pretrain: objectives by name, folders without classes, refusals."""

import pytest

from softbias.cli import main
from softbias.runs import automatic
from softbias.runs.run import Run

SHORT = ("--epochs", "2", "--trackers", "none", "--device", "cpu")


@pytest.mark.parametrize(
    "wrong", [("--accumulate", "2"), ("--batch-size", "1"), ("--model", "timm:deit_tiny_distilled_patch16_224")]
)
def test_settings_that_cannot_learn_features_are_refused_and_leave_nothing(image_folder, tmp_path, capsys, wrong):
    out = tmp_path / "run"
    more = ("--model-option", "patch_size=8", "--model-option", "depth=1") if wrong[0] == "--model" else ()
    assert main(["pretrain", str(image_folder), "--objective", "views", "--out", str(out), *wrong, *more, *SHORT]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("softbias: ") and printed.count("\n") == 1 and not out.exists()


def test_pretrain_takes_the_objective_of_a_recipe_and_of_the_run_to_resume(image_folder, tmp_path):
    out = tmp_path / "run"
    assert main(["pretrain", str(image_folder), "--recipe", "instances", "--out", str(out), "--quiet", *SHORT]) == 0
    from_scratch = automatic.choose(42, (32, 32), "cpu", 2).model
    assert Run(out).spec.recipe.objective == "instances" and Run(out).spec.model == from_scratch
    assert main(["pretrain", "--resume", "--out", str(out)]) == 0


def test_a_folder_without_classes_is_pretrained_and_classes_come_later(image_folder, tmp_path, capsys):
    flat = tmp_path / "pictures"
    flat.mkdir()
    for number, file in enumerate(sorted(image_folder.rglob("*.png"))):
        (flat / f"{number}.png").write_bytes(file.read_bytes())
    out = tmp_path / "run"
    command = ["pretrain", str(flat), "--objective", "views", "--out", str(out), *SHORT]
    assert main(command) == 0
    printed = capsys.readouterr().out
    run = Run(out)
    assert run.spec.data_options["unlabeled"] is True and run.summary()["neighbors"] is None
    assert f"{run.summary()['pictures']['train']:,} pictures below" in printed and "no score" in printed
    assert run.summary()["pictures"]["train"] == len(list(flat.iterdir())) and "test" not in run.summary()["pictures"]
    assert main([*command, "--resume"]) == 0 and "is finished already" in capsys.readouterr().out
    tuned = ["fit", str(image_folder), "--start", str(out), "--out", str(tmp_path / "tuned"), "--quiet", *SHORT]
    assert main(tuned) == 0 and Run(tmp_path / "tuned").spec.start.kind == "run"
    assert main(["fit", str(flat), "--out", str(tmp_path / "never")]) == 2
