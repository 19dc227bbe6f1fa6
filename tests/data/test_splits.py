from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from softbias.data.groups import group_of
from softbias.data.listing import Listing
from softbias.data.splits import nested_fraction, splits_of, stratified_split
from softbias.data.tables import read_manifest, write_manifest

LABELS = np.searchsorted([40, 70, 90, 98], np.arange(1000) * 37 % 100, side="right")  # 400, 300, 200, 80, 20 of each


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"|".join(np.asarray(array, "<i8").tobytes() for array in arrays)).hexdigest()[:16]


def test_a_split_is_disjoint_complete_and_keeps_the_proportions():
    parts = stratified_split(LABELS, {"val": 0.1, "test": 0.2}, seed=3)
    assert list(parts) == ["train", "val", "test"]
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(1000))
    for label in range(5):
        count = (label == LABELS).sum()
        for name, share in (("train", 0.7), ("val", 0.1), ("test", 0.2)):
            assert abs((LABELS[parts[name]] == label).sum() - share * count) <= 1


def test_results_never_change_silently():
    parts = stratified_split(LABELS, seed=7)
    groups = [f"g{index % 90}" for index in range(1000)]
    assert digest(parts["train"], parts["val"], parts["test"]) == "f2a201f8630c0650"
    assert digest(*stratified_split(LABELS, seed=7, groups=groups).values()) == "56f8701fe6525f78"
    assert digest(nested_fraction(LABELS, np.arange(1000), 0.1, seed=7)) == "0365542b6f0b151e"


def test_the_seed_and_nothing_else_changes_a_split():
    again, other = stratified_split(LABELS, seed=1), stratified_split(LABELS, seed=2)
    np.testing.assert_array_equal(stratified_split(list(LABELS), seed=1)["test"], again["test"])
    assert not np.array_equal(again["test"], other["test"])
    with pytest.raises(ValueError, match="-1"):
        stratified_split(LABELS, seed=-1)


def test_a_class_does_not_depend_on_the_others():
    some = LABELS.copy()
    some[LABELS == 0] = 1  # class 0 vanishes, class 1 grows
    same = LABELS >= 2
    before, after = (stratified_split(labels, seed=0)["test"] for labels in (LABELS, some))
    np.testing.assert_array_equal(before[same[before]], after[same[after]])


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (2, 0, 1)), (4, (3, 0, 1)), (6, (4, 1, 1)), (10, (7, 1, 2))]
)
def test_a_small_class_is_learned_first_and_tested_next(count, expected):
    parts = stratified_split([0] * 50 + [1] * count, seed=0)
    assert tuple(int((parts[name] >= 50).sum()) for name in ("train", "val", "test")) == expected


def test_impossible_fractions_are_refused():
    for fractions in ({"test": 1.0}, {"val": 0.5, "test": 0.5}, {"test": 0}, {"train": 0.5}):
        with pytest.raises(ValueError, match="fractions"):
            stratified_split(LABELS, fractions)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_never_torn_and_classes_stay_near_their_share(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, 200)
    groups = np.repeat([f"subject{index}" for index in range(200)], sizes)
    labels = np.repeat(rng.choice(4, 200, p=[0.4, 0.3, 0.2, 0.1]), sizes)
    parts = stratified_split(labels, seed=seed, groups=groups.tolist())
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(len(labels)))
    folders = [set(groups[indices]) for indices in parts.values()]
    assert sum(map(len, folders)) == 200  # no group is in two
    for label in range(4):
        count = (labels == label).sum()
        for name, share in (("train", 0.7), ("val", 0.1), ("test", 0.2)):
            assert abs((labels[parts[name]] == label).sum() / count - share) < 0.05


def test_groups_with_many_classes_stay_near_their_share_too():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 60, 1200).astype(str)
    labels = rng.integers(0, 3, 1200)
    parts = stratified_split(labels, seed=0, groups=groups.tolist())
    for label in range(3):
        assert abs((labels[parts["test"]] == label).sum() / (labels == label).sum() - 0.2) < 0.06


def test_a_few_huge_groups_still_fill_every_split_and_too_few_are_refused():
    groups = ["a"] * 30 + ["b"] * 30 + ["c"] * 30
    parts = stratified_split([0, 1] * 45, seed=0, groups=groups)
    assert sorted(len(indices) for indices in parts.values()) == [30, 30, 30]
    with pytest.raises(ValueError, match="3 groups, but there are 2: a, b"):
        stratified_split([0, 1] * 30, seed=0, groups=groups[:60])
    with pytest.raises(ValueError, match="60 pictures, but 90 groups"):
        stratified_split([0, 1] * 30, seed=0, groups=groups)


def test_a_group_is_the_first_bracket_or_the_whole_match():
    paths = ["cat/s1_a.jpg", "cat/s1_b.jpg", "dog/s22_a.jpg"]
    assert group_of(paths, r"s(\d+)_") == ("1", "1", "22")
    assert group_of(paths, r"s\d+") == ("s1", "s1", "s22")
    with pytest.raises(ValueError, match=r"'cat/s1_b\.jpg'"):
        group_of(paths, "_a")
    with pytest.raises(ValueError, match="not a regular expression"):
        group_of(paths, "(")


def test_fractions_are_nested_and_do_not_depend_on_which_were_asked_for():
    train = stratified_split(LABELS, seed=0)["train"]
    sizes = (0.001, 0.01, 0.05, 0.1, 0.25, 0.3, 0.5, 0.99, 1)
    parts = [set(nested_fraction(LABELS, train, fraction, seed=4).tolist()) for fraction in sizes]
    for smaller, larger in itertools.pairwise(parts):
        assert smaller <= larger
    assert parts[-1] == set(train.tolist())
    assert parts[2] < parts[5]
    np.testing.assert_array_equal(nested_fraction(LABELS, train[::-1], 0.25, seed=4), sorted(parts[4]))


def test_fractions_are_stratified_with_at_least_one_of_each_class():
    indices = np.arange(1000)
    for fraction, label in itertools.product((0.07, 0.25, 0.33), range(5)):
        part = nested_fraction(LABELS, indices, fraction, seed=0)
        assert abs((LABELS[part] == label).sum() - fraction * (label == LABELS).sum()) <= 0.5 + 1e-9
    assert set(LABELS[nested_fraction(LABELS, indices, 0.0001, seed=0)]) == set(range(5))
    for fraction in (0, -0.05, 1.01, float("nan")):
        with pytest.raises(ValueError, match="fraction"):
            nested_fraction(LABELS, indices, fraction, seed=0)


def test_a_manifest_gives_back_what_was_written(tmp_path):
    names = ["a b/ü 1.jpg", 'x,"y".png', "deep/er/猫.png", "z.png", "left out.png"]
    for name in names:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).touch()
    files = tuple(tmp_path / "set" / name for name in names)
    listing = Listing("set", files, np.array([0, 1, 0, 1, 1]), ("cat", "dog, hot"), tmp_path / "set")
    splits = {"train": np.array([0, 3]), "test": np.array([1, 2])}
    path = write_manifest(tmp_path / "new" / "manifest.csv", listing, splits)
    assert path.read_text().startswith("path,label,split\n") or path.read_text().startswith("path,label,split\r\n")
    assert not list(path.parent.glob("*.part"))
    again, back = read_manifest(path)
    assert [file.resolve() for file in again.files] == [file.resolve() for file in files[:4]]
    assert again.class_names == listing.class_names
    np.testing.assert_array_equal(again.labels, [0, 1, 0, 1])
    assert {name: indices.tolist() for name, indices in back.items()} == {"train": [0, 3], "test": [1, 2]}


def test_a_table_without_splits_is_no_manifest(tmp_path):
    for name in "ab":
        (tmp_path / name).touch()
    (tmp_path / "m.csv").write_text("path,label\na,x\nb,y\n")
    with pytest.raises(ValueError, match="no manifest"):
        read_manifest(Path(tmp_path / "m.csv"))


def test_images_without_a_split_are_in_none():
    assert {name: indices.tolist() for name, indices in splits_of(["test", "", "train"]).items()} == {
        "train": [2],
        "test": [0],
    }
