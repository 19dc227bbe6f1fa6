"""Near copies stay on one side of a split that we make; given splits stay as they are, and copies across them are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data import load_dataset
from softbias.data.check import check
from softbias.data.dataset import Dataset
from softbias.data.decode import decode, decode_or_error, thumbnail
from softbias.data.groups import find_groups, united
from softbias.data.partition import split_together
from softbias.data.splits import FRACTIONS, quotas, stratified_split
from softbias.notes import Note
from softbias.runs.prepare import make_split
from softbias.runs.spec import RunSpec
from softbias.training.recipe import Recipe


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))


def scene(seed: int, size: tuple[int, int] = (60, 48)) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def put(path: Path, picture: Image.Image, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)


def with_copies(root: Path, each: int = 20, copies: int = 6) -> Path:
    """Two classes of different scenes; the first few of each have a copy that was encoded anew, at another size."""
    for number, kind in enumerate("ab"):
        for index in range(each):
            put(root / kind / f"{index}.png", scene(100 * number + index))
            if index < copies:
                put(root / kind / f"{index} again.jpg", scene(100 * number + index).resize((90, 72)), quality=85)
    return root


def noted(notes: tuple[Note, ...], kind: str) -> dict[str, object]:
    (note,) = [note for note in notes if note.kind == kind]
    return dict(note.values)


def side_of(data: Dataset) -> dict[str, str]:
    """File name below the root -> its split."""
    return {
        f"{Path(data.files[i]).parent.name}/{Path(data.files[i]).name}": name
        for name, found in data.splits.items()
        for i in found
    }


@pytest.mark.parametrize("seed", range(5))
def test_without_groups_the_split_is_the_ordinary_one(seed):
    labels = np.random.default_rng(seed).integers(0, 1 + 3 * seed, 200)
    for fractions in (FRACTIONS, {"val": 0.1}):
        parts, notes = split_together(labels, np.arange(200), fractions, seed)
        plain = stratified_split(labels, fractions, seed)
        assert notes == [] and parts.keys() == plain.keys()
        assert all(np.array_equal(parts[name], plain[name]) for name in plain)


@pytest.mark.parametrize("seed", range(8))
def test_groups_stay_whole_and_no_split_gets_more_than_its_share(seed):
    rng = np.random.default_rng(seed)
    labels, numbers = rng.integers(0, 4, 400), rng.integers(0, 250, 400)  # groups of about two, across classes
    parts, (note,) = split_together(labels, numbers, FRACTIONS, seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(400))
    sides = [set(numbers[indices].tolist()) for indices in parts.values()]
    assert note.values["torn"] == 0 and not any(a & b for a in sides for b in sides if a is not b)
    for label in range(4):
        shares = quotas(int((labels == label).sum()), FRACTIONS)
        found = {name: int((labels[parts[name]] == label).sum()) for name in shares}
        assert all(shares[name] / 2 <= found[name] <= shares[name] for name in shares)


def test_a_few_groups_change_few_sides():
    labels, numbers = np.arange(1000) % 5, np.arange(1000)
    numbers[[3, 8]] = 3
    parts, _ = split_together(labels, numbers, FRACTIONS, 0)
    plain = stratified_split(labels, FRACTIONS, 0)
    assert sum(len(set(parts[name].tolist()) ^ set(plain[name].tolist())) for name in plain) <= 4


def test_pairs_alone_still_fill_every_split():
    parts, (note,) = split_together(np.repeat([0, 1], 10), np.repeat(np.arange(10), 2), FRACTIONS, 0)
    assert {name: len(found) for name, found in parts.items()} == {"train": 12, "val": 4, "test": 4}
    assert note.values["groups"] == 10


def test_groups_that_would_leave_nothing_to_test_are_spread_and_the_note_says_so():
    labels, numbers = np.repeat([0, 1], 50), np.arange(100)
    numbers[:50] = 0  # a whole class that looks alike
    numbers[[60, 61]] = 60
    parts, (note,) = split_together(labels, numbers, FRACTIONS, 0)
    assert dict(note.values) == {"groups": 1, "count": 2, "torn": 1, "torn_count": 50, "largest": 50}
    assert np.bincount(labels[parts["test"]]).tolist() == [10, 10]
    assert any({60, 61} <= set(found.tolist()) for found in parts.values())


def test_near_copies_stay_together_in_a_split_that_is_made_and_the_size_does_not_matter(tmp_path):
    root = with_copies(tmp_path / "set")
    torn = 0
    for seed in range(4):
        data = load_dataset(root, img_size=8, seed=seed)
        side = side_of(data)
        assert all(side[f"{kind}/{n}.png"] == side[f"{kind}/{n} again.jpg"] for kind in "ab" for n in range(6))
        assert noted(data.notes, "copies-together") == {"groups": 12, "count": 24, "torn": 0, "torn_count": 0, "largest": 0}
        assert np.bincount(data.labels[data.splits["test"]]).tolist() == [5, 5]
        plain = stratified_split(data.labels, seed=seed)
        plain_sides = {name: set(data.groups[found].tolist()) for name, found in plain.items()}
        torn += len(plain_sides["test"] & plain_sides["train"])
    assert torn > 0  # the ordinary split would have torn them
    assert side_of(load_dataset(root, img_size=40, seed=3, resize_mode="pad")) == side
    assert noted(check(root).notes, "copies-together")["groups"] == 12


def test_a_thumbnail_depends_on_the_file_alone(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    put(tmp_path / "large.jpg", scene(1, (1200, 900)), quality=90)
    put(tmp_path / "small.jpg", scene(2, (150, 110)), quality=90, exif=turned)
    put(tmp_path / "wide.jpg", scene(3, (900, 70)), quality=90)
    put(tmp_path / "plain.png", scene(4, (300, 200)))
    for file in tmp_path.glob("*.*"):
        for side in (8, 32, 64, 224):
            images, small, *_ = decode_or_error(file, (side, side), "crop", copies=True)
            np.testing.assert_array_equal(images, decode(file, (side, side)))
            np.testing.assert_array_equal(small, thumbnail(file))


def test_copies_across_given_splits_are_named_and_not_moved(tmp_path):
    root = tmp_path / "set"
    for number, folder in enumerate(("train/a", "train/b", "test/a", "test/b")):
        for index in range(8):
            put(root / folder / f"{index}.png", scene(100 * number + index))
    put(root / "test" / "a" / "again.jpg", scene(3), quality=85)
    data = load_dataset(root, img_size=8)
    assert len(data.splits["test"]) == 17 and any(data.files[i].endswith("again.jpg") for i in data.splits["test"])
    found = noted(data.notes, "copies-across")
    assert found == {
        "count": 1, "share": 1 / 17, "held_out": "test", "other": "train", "named": ["test/a/again.jpg = train/a/3.png"],
    }  # fmt: skip
    assert not any(note.kind == "copies-across" for note in check(root).notes)  # there it is a problem, with every file
    assert [problem.files for problem in check(root).problems if problem.note.kind == "leakage"] == [tuple(found["named"])]


def test_the_part_of_train_that_is_kept_for_choosing_keeps_copies_together(tmp_path):
    root = with_copies(tmp_path / "set" / "train", each=30, copies=20)
    for number, kind in enumerate("ab"):
        for index in range(6):
            put(tmp_path / "set" / "test" / kind / f"{index}.png", scene(1000 + 100 * number + index))
    data = load_dataset(root.parent, img_size=8)
    assert "val" not in data.splits and data.groups is not None
    for seed in range(3):
        split = make_split(data, RunSpec("set", "deit_nano", Recipe(val_fraction=0.2), seed))
        assert len(split.val) == 20 and not set(data.groups[split.val].tolist()) & set(data.groups[split.train].tolist())


def test_arrays_are_split_with_copies_together_too(tmp_path):
    images = np.stack([np.asarray(scene(index, (24, 24))) for index in range(40)])
    images[20:30] = images[:10]
    np.savez(tmp_path / "set.npz", images=images, labels=np.zeros(40, np.int64) + (np.arange(40) % 20 > 9))
    data = load_dataset(tmp_path / "set.npz")
    assert noted(data.notes, "copies-together")["count"] == 20
    assert all(
        not set(range(10)) & set(found) or {n + 20 for n in found if n < 10} <= set(found) for found in data.splits.values()
    )
    assert noted(check(tmp_path / "set.npz").notes, "copies-together")["count"] == 20


def test_groups_of_a_user_are_joined_where_copies_connect_them(tmp_path):
    root = with_copies(tmp_path / "set", each=20, copies=1)
    data = load_dataset(root, img_size=8, group_by=r"/(\d+)")
    side = side_of(data)
    assert all(side[f"{kind}/0.png"] == side[f"{kind}/0 again.jpg"] for kind in "ab")
    assert united(np.array([0, 1, 2, 3]), np.array([5, 5, 6, 7]), np.array([0, 1, 1, 2])).tolist() == [0, 0, 0, 1]


def test_among_very_many_images_copies_are_not_sought_and_a_note_says_so(tmp_path, monkeypatch):
    for module in ("groups", "sources"):
        monkeypatch.setattr(f"softbias.data.{module}.MOST", 30)
    data = load_dataset(with_copies(tmp_path / "set"), img_size=8)
    assert noted(data.notes, "copies-not-sought") == {"count": 52, "most": 30} and data.groups is None
    assert all(np.array_equal(data.splits[name], found) for name, found in stratified_split(data.labels).items())
    assert find_groups(31, lambda: pytest.fail("thumbnails are made"))[0] is None


def test_groups_of_a_user_that_copies_leave_too_few_of_are_kept_and_a_note_says_so(tmp_path):
    root = tmp_path / "set"
    for kind in "ab":
        for group in range(4):
            for number in range(3):
                put(
                    root / kind / f"{group}-{number}.png",
                    scene(ord(kind) if not number else 10 * ord(kind) + 3 * group + number),
                )
    data = load_dataset(root, img_size=8, group_by=r"([ab]/\d)-")
    note = noted(data.notes, "copies-not-joined")
    assert note["groups"] == 8 and note["left"] < 3
    assert noted(data.notes, "split-made")["groups"] == 8
