"""What a finished run says in the terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from softbias.pages.format import duration
from softbias.runs.printed import print_summary, verdict, worst_first

CLASSES = [
    {"name": "cat", "n": 50, "recall": 0.9, "precision": 0.75, "f1": 0.818},
    {"name": "[red]dog[/red]", "n": 30, "recall": 0.4, "precision": 0.5, "f1": 0.444},
    {"name": "owl", "n": 0, "recall": None, "precision": None, "f1": None},
]
TEST = {
    "n": 80, "accuracy": 0.712, "accuracy_interval": [0.604, 0.8], "top5": None, "balanced_accuracy": 0.65,
    "macro_f1": 0.631, "calibration_error": 0.123, "log_loss": 0.7, "classes": CLASSES,
}  # fmt: skip
BASELINE = {"name": "logistic regression on raw pixels (C=0.03)", "accuracy": 0.9, "accuracy_interval": [0.815, 0.948]}


def summary(**changes):
    plain = {
        "data": "pets", "model": "convit_nano", "seed": 3, "objective": "supervised", "pretext": False,
        "pictures": {"train": 400, "val": 40},
        "steps": 1200, "epochs": 8.0, "seconds": 122.7, "images_per_second": 1043.4, "validation_accuracy": 0.7,
        "test": TEST, "baseline": BASELINE,
    }  # fmt: skip
    return {name: value for name, value in {**plain, **changes}.items() if value is not ...}


def printed(given, path: Path = Path("runs/pets"), **options) -> str:
    stream = io.StringIO()
    print_summary(given, path, Console(file=stream, highlight=False, **options))
    return stream.getvalue()


def test_scores_stand_beside_the_baseline_and_their_intervals():
    text = printed(summary(peak_memory=3 * 2**29))
    for part in (
        "pets · convit_nano · seed 3", "71.2 %", "60.4 to 80.0 %", "n = 80", "90.0 %", "81.5 to 94.8 %", "65.0 %",
        "63.1 %", "12.3 %", "1,043 images/s", "1,200 steps", "2 min 3 s", "1.5 GiB",
    ):  # fmt: skip
        assert part in text
    assert "Top-5" not in text  # of three classes it says nothing
    assert "99.1 %" not in printed(summary(test={**TEST, "top5": 0.991}))
    assert "99.1 %" in printed(summary(test={**TEST, "top5": 0.991, "classes": 4 * TEST["classes"]}))


def test_a_model_below_the_baseline_is_called_below_it():
    assert "18.8 percentage points below a logistic regression" in printed(summary())
    better = {**TEST, "accuracy": 0.97, "accuracy_interval": [0.955, 0.985]}
    assert "7.0 percentage points above" in printed(summary(test=better)) and "below" not in printed(summary(test=better))


@pytest.mark.parametrize(
    ("mine", "edges", "above", "words"),
    [
        (0.92, (0.85, 0.96), True, "may be random"),
        (0.88, (0.80, 0.93), False, "may be random"),
        (0.90, (0.81, 0.95), False, "exactly as good"),
        (0.99, (0.96, 1.00), True, "9.0 percentage points above"),
        (0.50, (0.40, 0.60), False, "simpler method does better"),
    ],
)
def test_the_verdict_says_when_a_difference_may_be_chance(mine, edges, above, words):
    found = verdict(summary(test={**TEST, "accuracy": mine, "accuracy_interval": list(edges)}))
    assert found is not None and found[0] is above and words in found[1]


def test_without_a_baseline_there_is_no_verdict():
    assert verdict(summary(baseline=None)) is None and verdict(summary(baseline=...)) is None
    assert "Baseline" not in printed(summary(baseline=None))


def test_classes_come_worst_first_and_unseen_ones_last():
    assert [row["name"] for row in worst_first(CLASSES)] == ["[red]dog[/red]", "cat", "owl"]
    text = printed(summary())
    assert text.index("[red]dog[/red]") < text.index("cat ") < text.index("owl")  # and markup in a name is only a name


def test_of_many_classes_the_worst_twenty_are_printed():
    many = [{"name": f"flower{i:03}", "n": 10, "recall": 0.5, "precision": 0.5, "f1": i / 102} for i in range(102)]
    text = printed(summary(test={**TEST, "classes": many}))
    assert text.count("flower") == 20 and "20 of 102" in text and "flower019" in text and "flower020" not in text


def test_a_rotation_run_shows_only_its_accuracy():
    given = summary(
        objective="rotation",
        pretext=True,
        test={"n": 320, "accuracy": 0.61, "log_loss": 0.9, "task": "telling four rotations apart", "chance_level": 0.25},
        baseline=...,
    )
    text = printed(given)
    assert "61.0 %" in text and "n = 320" in text and "25.0 %" in text
    assert not any(word in text for word in ("F1", "Calibration", "Balanced", "interval"))


def test_without_test_images_the_validation_score_is_called_what_it_is():
    assert "70.0 %" in (text := printed(summary(test=..., baseline=...))) and "not a test score" in text
    counts = {"pictures": {"train": 9, "val": 0}}
    assert "unknown" in printed(summary(test=..., baseline=..., validation_accuracy=None, **counts))


def test_files_are_named_where_they_are_and_never_cut(tmp_path):
    folder = tmp_path / ("a long name " * 12).strip()
    (folder / "model").mkdir(parents=True)
    (folder / "report.html").touch()
    text = printed(summary(), folder, width=60)
    assert f"{folder / 'report.html'}\n" in text and f"{folder / 'model'}/\n" in text and "confusion.png" not in text
    assert text.endswith(f"softbias predict '{folder}' PICTURES, softbias app '{folder}'\n"), "and what comes next"


def test_without_a_terminal_it_is_plain_and_with_one_it_is_not():
    assert "\x1b" not in printed(summary()) and "─" not in printed(summary())
    assert "\x1b[1m71.2 %" in printed(summary(), force_terminal=True, color_system="standard", legacy_windows=False)


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.94, "59.9 s"), (59.96, "1 min 0 s"), (3599.7, "1 h 0 min"), (90061, "25 h 1 min")]
)
def test_durations_carry_over(seconds, text):
    assert duration(seconds) == text
