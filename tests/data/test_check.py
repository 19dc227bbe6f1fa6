from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.cli.data import as_json, in_lines
from softbias.data.check import Problem, Report, check
from softbias.notes import Note
from softbias.pages.wording import text as worded


def scene(seed: int, size: tuple[int, int] = (60, 48)) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def put(path: Path, picture: Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path


def make(root: Path, counts: dict[str, int]) -> Path:
    """folder -> how many pictures, all different."""
    seed = 0
    for folder, count in counts.items():
        for index in range(count):
            put(root / folder / f"{index}.png", scene(seed))
            seed += 1
    return root


@pytest.fixture
def root(tmp_path) -> Path:
    return make(tmp_path / "set", {"train/cat": 12, "train/dog": 12, "test/cat": 5, "test/dog": 5})


def kinds(report: Report) -> dict[str, Problem]:
    """Kind -> problem; copies go by how alike they are, unreadable pictures by their problem."""

    def name(problem: Problem) -> str:
        kind, values = problem.note.kind, problem.note.values
        return f"{values['copies']} {kind}" if "copies" in values else values.get("problem", kind)

    return {name(problem): problem for problem in report.problems}


def reasons(report: Report) -> tuple[str, ...]:
    return tuple(worded(problem.note) for problem in report.problems if problem.severity == "error")


def test_a_good_set_is_fit_to_train_on_and_counted(root):
    report = check(root)
    assert report.fit_to_train
    assert report.problems == ()
    assert reasons(report) == ()
    assert report.total == 34
    assert report.counts == {"cat": {"train": 12, "test": 5}, "dog": {"train": 12, "test": 5}}
    assert report.modes == {"RGB": 34}
    assert set(report.sizes.values()) == {(60, 48)}
    assert in_lines(report)[-1] == "fit to train on"


def test_sizes_and_modes_are_those_of_the_files(root):
    put(root / "train/cat/small.png", scene(900, (20, 30)).convert("L"))
    big = scene(901, (900, 600))
    exif = Image.Exif()
    exif[0x0112] = 6
    put(root / "train/dog/big.jpg", big, exif=exif)
    report = check(root)
    assert report.sizes == {"smallest": (20, 30), "median": (60, 48), "largest": (600, 900)}
    assert report.modes == {"RGB": 35, "L": 1}


def test_every_way_of_being_broken_is_named(root):
    (root / "train/cat/zero.jpg").touch()
    (root / "train/cat/text.png").write_text("hello")
    cut = put(root / "train/dog/cut ü.jpg", scene(800))
    cut.write_bytes(cut.read_bytes()[:400])
    (root / "train/dog/gone.png").symlink_to(root / "nowhere.png")
    report = check(root)
    assert not report.fit_to_train
    assert {kind: problem.files[0].split(": ")[0] for kind, problem in kinds(report).items()} == {
        "zero bytes": "train/cat/zero.jpg",
        "not a picture": "train/cat/text.png",
        "truncated": "train/dog/cut ü.jpg",
        "missing": "train/dog/gone.png",
    }
    assert all("--skip-broken" in reason for reason in reasons(report))
    text = "\n".join(in_lines(report))
    assert "train/dog/cut ü.jpg: is truncated" in text
    assert text.endswith("NOT fit to train on")


def test_heic_without_its_package_and_oversized_images_have_kinds_of_their_own(root, monkeypatch):
    monkeypatch.setattr("softbias.data.decode.heif_available", lambda: False)
    monkeypatch.setattr("softbias.data.decode.MAX_AREA", 60 * 48)
    (root / "train/cat/phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    put(root / "train/dog/huge.png", scene(801, (61, 48)))
    found = kinds(check(root))
    assert "pillow-heif" in found["unsupported"].files[0]
    assert found["oversized"].files == ("train/dog/huge.png: has 61 × 48 pixels, more than 2,880",)


def test_the_same_file_in_train_and_test_is_a_warning_that_names_both(root):
    (root / "test/cat/again.png").write_bytes((root / "train/cat/3.png").read_bytes())
    report = check(root)
    problem = kinds(report)["exact leakage"]
    assert problem.severity == "warning"
    assert problem.files == ("test/cat/again.png = train/cat/3.png",)
    assert "1 picture of test (9.1%)" in worded(problem.note)
    assert report.fit_to_train  # fit trains on it, and says the same
    assert len(report.problems) == 1  # an exact copy is not told again as a near one


def test_a_copy_that_was_encoded_anew_in_another_split_is_a_warning(root):
    put(root / "test/dog/again.jpg", scene(15).resize((90, 72)), quality=80)  # train/dog/3.png
    report = check(root)
    problem = kinds(report)["near leakage"]
    assert problem.severity == "warning"
    assert problem.files == ("test/dog/again.jpg = train/dog/3.png",)
    assert report.fit_to_train


def test_a_copy_in_another_class_is_a_label_conflict(root):
    (root / "train/dog/again.png").write_bytes((root / "train/cat/3.png").read_bytes())
    put(root / "train/dog/like.jpg", scene(4), quality=80)
    found = kinds(check(root))
    assert found["exact label-conflict"].files == ("train/dog/again.png = train/cat/3.png",)
    assert found["near label-conflict"].files == ("train/dog/like.jpg = train/cat/4.png",)


def test_copies_within_a_split_are_only_counted(root):
    (root / "train/cat/again.png").write_bytes((root / "train/cat/3.png").read_bytes())
    (root / "train/cat/more.png").write_bytes((root / "train/cat/3.png").read_bytes())
    put(root / "train/cat/like.jpg", scene(4), quality=80)
    report = check(root)
    assert report.problems == ()
    assert Note("copies-in-one-split", {"count": 3, "groups": 1, "copies": "exact"}) in report.notes
    assert Note("copies-in-one-split", {"count": 2, "groups": 1, "copies": "near"}) in report.notes


def test_copies_in_a_set_without_splits_are_a_warning_about_the_split_to_come(tmp_path):
    root = make(tmp_path / "flat", {"cat": 12, "dog": 12})
    (root / "cat/again.png").write_bytes((root / "cat/3.png").read_bytes())
    report = check(root)
    assert report.counts == {"cat": {"all": 13}, "dog": {"all": 12}}
    assert kinds(report)["exact copies"].files == ("cat/again.png = cat/3.png",)
    assert report.fit_to_train


def test_a_copy_in_another_class_is_not_reported_again_as_a_copy(tmp_path):
    root = make(tmp_path / "flat", {"cat": 12, "dog": 12})
    (root / "dog/again.png").write_bytes((root / "cat/3.png").read_bytes())
    found = kinds(check(root))
    assert found["exact label-conflict"].files == ("dog/again.png = cat/3.png",) and "exact copies" not in found


def test_a_set_that_cannot_be_listed_is_not_reported_as_empty(tmp_path):
    root = make(tmp_path / "flat", {"cat": 3})
    assert not any("0 pictures" in line for line in in_lines(check(root / "cat")))


def test_imbalance_and_classes_with_few_images_are_warnings(tmp_path):
    report = check(make(tmp_path / "flat", {"cat": 40, "dog": 12, "owl": 4}))
    assert report.imbalance == 10
    assert kinds(report)["imbalance"].note.values == {"ratio": 10, "largest": ["cat", 40], "smallest": ["owl", 4]}
    assert kinds(report)["few-pictures"].note.values == {"classes": {"owl": 4}, "total": 3, "least": 10}
    assert report.fit_to_train
    assert check(make(tmp_path / "even", {"cat": 30, "dog": 10})).problems == ()  # 1:3 is not beyond 1:3


def test_groups_that_stand_in_two_splits_are_an_error(root):
    assert check(root, group_by=r"^\w+/\w+/\d+").fit_to_train
    problem = kinds(check(root, group_by=r"(\d+)\.png"))["groups-cut"]
    assert problem.severity == "error"
    assert problem.files[0] == "0: test, train"


def test_rows_without_a_split_beside_rows_with_one_are_an_error(tmp_path):
    root = make(tmp_path / "flat", {"cat": 10, "dog": 11})
    rows = [f"cat/{n}.png,cat,train" for n in range(10)] + [f"dog/{n}.png,dog,train" for n in range(10)] + ["dog/10.png,dog,"]
    (root / "set.csv").write_text("\n".join(["path,label,split", *rows]))
    assert kinds(check(root / "set.csv"))["pictures-without-split"].files == ("dog/10.png",)


def test_a_set_that_cannot_be_listed_is_reported_and_only_a_missing_path_is_raised(tmp_path):
    (tmp_path / "empty").mkdir()
    report = check(tmp_path / "empty")
    assert not report.fit_to_train
    assert "no pictures" in reasons(report)[0]
    assert in_lines(report)[-1] == "NOT fit to train on"
    with pytest.raises(ValueError, match="does not exist"):
        check(tmp_path / "gone")


def test_when_no_picture_can_be_read_there_is_still_a_report(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    report = check(tmp_path)
    assert reasons(report) == ("4 pictures cannot be read (zero bytes); --skip-broken trains without them",)
    assert report.sizes == {}


def test_arrays_are_checked_too(tmp_path):
    images = np.stack([np.array(scene(seed, (32, 32))) for seed in range(30)])
    labels = np.arange(30) % 2
    test = np.concatenate([images[:2], images[20:28]])
    np.savez(tmp_path / "set.npz", x_train=images[:20], y_train=labels[:20], x_test=test, y_test=np.arange(10) % 2)
    report = check(tmp_path / "set.npz")
    assert kinds(report)["exact leakage"].files == ("picture 20 = picture 0", "picture 21 = picture 1")
    assert report.counts["0"] == {"train": 10, "test": 5}
    assert report.sizes == {"all": (32, 32)}


def test_a_report_is_json_and_names_only_some_files_for_people(root):
    for index in range(15):
        (root / f"train/cat/zero{index}.png").touch()
    report = check(root)
    again = json.loads(json.dumps(as_json(report)))
    assert len(again["problems"][0]["files"]) == 15
    assert again["fit_to_train"] is False
    lines = in_lines(report)
    assert sum("has zero bytes" in line for line in lines) == 10
    assert "  and 5 more" in lines


def test_progress_is_reported(root):
    calls = []
    check(root, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 34) for done in range(1, 35)]
