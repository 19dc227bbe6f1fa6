from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data import load_dataset, sources
from softbias.data.dataset import Dataset
from softbias.data.sources import choose_size, open_source, read_listing
from softbias.errors import SoftbiasError
from softbias.pages.wording import text


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))


def make(root: Path, counts: dict[str, int], size: tuple[int, int] = (48, 40)) -> Path:
    """folder -> how many pictures; each has its own color."""
    for number, (folder, count) in enumerate(counts.items()):
        (root / folder).mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", size, (number * 20, index * 5 % 256, 77)).save(root / folder / f"s{index // 4}_{index}.png")
    return root


def noted(data: Dataset, kind: str, **values: object) -> bool:
    """Whether a note of this kind has these values."""
    return any(note.kind == kind and values.items() <= note.values.items() for note in data.notes)


def sizes(data: Dataset) -> dict[str, int]:
    return {split: len(indices) for split, indices in data.splits.items()}


def test_a_flat_folder_is_split_stratified_seeded_and_says_so(tmp_path):
    root = make(tmp_path / "meine Bilder", {"Bär": 20, "猫": 40})
    data = load_dataset(root, img_size=16)
    assert data.name == "meine Bilder"
    assert data.images.shape == (60, 16, 16, 3)
    assert sizes(data) == {"train": 42, "val": 6, "test": 12}
    assert np.bincount(data.labels[data.splits["test"]]).tolist() == [4, 8]
    assert noted(data, "split-made", seed=0, counts={"train": 42, "val": 6, "test": 12}, groups=None)
    assert noted(data, "pictures-at", height=16, width=16, resize_mode="crop")
    assert Path(data.files[0]).is_file()
    for index in (0, 25, 59):
        np.testing.assert_array_equal(data.images[index, 8, 8], np.array(Image.open(data.files[index]))[8, 8])
    same, other = load_dataset(root, img_size=16), load_dataset(root, img_size=16, seed=1)
    assert same.fingerprint() == data.fingerprint()
    assert not np.array_equal(other.splits["test"], data.splits["test"])


def test_given_splits_are_kept(tmp_path):
    data = load_dataset(
        make(tmp_path / "set", {"train/a": 6, "train/b": 6, "val/a": 2, "val/b": 2, "test/a": 3, "test/b": 3}), img_size=8
    )
    assert sizes(data) == {"train": 12, "val": 4, "test": 6}
    assert all("/test/" in data.files[index] for index in data.splits["test"])
    assert not noted(data, "split-made")


def test_train_and_test_without_val_stay_so(tmp_path):
    data = load_dataset(make(tmp_path / "set", {"train/a": 6, "train/b": 6, "test/a": 3, "test/b": 3}), img_size=8)
    assert sizes(data) == {"train": 12, "test": 6}


def test_val_without_test_becomes_the_test_set(tmp_path):
    data = load_dataset(make(tmp_path / "set", {"train/a": 6, "train/b": 6, "val/a": 2, "val/b": 2}), img_size=8)
    assert sizes(data) == {"train": 12, "test": 4}
    assert noted(data, "val-serves-as-test")


def test_for_choosing_val_is_scored_and_test_is_not_there(tmp_path):
    root = make(tmp_path / "set", {"train/a": 6, "train/b": 6, "val/a": 2, "val/b": 2, "test/a": 3, "test/b": 3})
    data = load_dataset(root, img_size=8, score="val")
    assert sizes(data) == {"train": 12, "test": 4}
    assert all("/val/" in data.files[index] for index in data.splits["test"])
    assert noted(data, "scored-on-val", count=4, own=True, unseen=6)


def test_for_choosing_without_val_a_fifth_of_train_is_scored_and_groups_stay_whole(tmp_path):
    counts = {"train/a": 20, "train/b": 20, "test/a": 3, "test/b": 3}
    root = make(tmp_path / "set", counts)
    plain, again = (load_dataset(root, img_size=8, score="val") for _ in range(2))
    assert sizes(plain) == {"train": 32, "test": 8}
    assert np.bincount(plain.labels[plain.splits["test"]]).tolist() == [4, 4]
    assert all("/train/" in plain.files[index] for index in plain.splits["test"])
    np.testing.assert_array_equal(plain.splits["test"], again.splits["test"])
    assert "8 of the training pictures" in text(next(note for note in plain.notes if note.kind == "scored-on-val"))
    labels, images = np.repeat([0, 1], 20), np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3), dtype=np.uint8)
    images[1::2] = images[::2]  # pairs of the same picture
    np.savez(tmp_path / "pairs.npz", train_images=images, train_labels=labels, test_images=255 - images, test_labels=labels)
    pairs = load_dataset(tmp_path / "pairs.npz", score="val")
    scored = set(pairs.splits["test"].tolist())
    assert scored and all((index ^ 1) in scored for index in scored)


@pytest.mark.parametrize(
    ("options", "message"), [({"score": "train"}, "score"), ({"score": "val", "unlabeled": True}, "pictures with classes")]
)
def test_what_cannot_be_scored_for_choosing_is_refused(tmp_path, options, message):
    with pytest.raises(SoftbiasError, match=message):
        load_dataset(make(tmp_path / "set", {"a": 6, "b": 6}), img_size=8, **options)


def test_train_alone_is_split(tmp_path):
    data = load_dataset(make(tmp_path / "set", {"train/a": 10, "train/b": 10}), img_size=8)
    assert sizes(data) == {"train": 14, "val": 2, "test": 4}
    assert noted(data, "split-made", only_train_given=True)


def test_groups_stay_whole(tmp_path):
    root = make(tmp_path / "set", {"a": 40, "b": 40})
    data = load_dataset(root, img_size=8, group_by=r"\w/s(\d+)_")
    groups = {
        split: {Path(data.files[index]).name.split("_")[0] for index in indices} for split, indices in data.splits.items()
    }
    assert sum(map(len, groups.values())) == 10
    assert noted(data, "split-made", groups=10)


def test_given_splits_that_tear_a_group_are_refused(tmp_path):
    root = make(tmp_path / "set", {"train/a": 6, "train/b": 6, "test/a": 3, "test/b": 3})
    with pytest.raises(ValueError, match="1 of 2 groups are in more than one split: s0: test, train"):
        load_dataset(root, img_size=8, group_by=r"s\d")


def test_a_csv_file_with_a_group_column(tmp_path):
    root = make(tmp_path / "set", {"a": 20, "b": 20})
    rows = [f"{kind}/s{n // 4}_{n}.png,{kind},{kind}{n // 5}" for kind in "ab" for n in range(20)]
    (root / "list.csv").write_text("\n".join(["image,class,camera", *rows]))
    data = load_dataset(root / "list.csv", img_size=8, group_by="camera")
    assert len(data) == 40
    assert sum(sizes(data).values()) == 40
    assert noted(data, "split-made", groups=8)


def test_rows_without_a_split_beside_others_are_refused(tmp_path):
    root = make(tmp_path / "set", {"a": 4, "b": 4})
    rows = [f"{kind}/s0_{n}.png,{kind},{'train' if n else ''}" for kind in "ab" for n in range(4)]
    (root / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    with pytest.raises(ValueError, match="2 pictures without a split, while others have one: a/s0_0"):
        load_dataset(root / "list.csv", img_size=8)


def test_a_manifest_keeps_the_split_whatever_the_seed_is_later(tmp_path):
    root = make(tmp_path / "set", {"a": 20, "b": 20})
    first = load_dataset(root, img_size=8, seed=3, manifest=tmp_path / "out" / "split.csv")
    assert noted(first, "split-written")
    second = load_dataset(root, img_size=8, seed=4, manifest=tmp_path / "out" / "split.csv")
    assert noted(second, "split-read")
    assert second.fingerprint() == first.fingerprint()
    listed = load_dataset(tmp_path / "out" / "split.csv", img_size=8)
    assert {Path(listed.files[index]).resolve() for index in listed.splits["test"]} == {
        Path(first.files[index]).resolve() for index in first.splits["test"]
    }
    Image.new("RGB", (8, 8)).save(root / "a" / "new.png")
    with pytest.raises(ValueError, match=r"1 picture not in the manifest .*a/new\.png"):
        load_dataset(root, img_size=8, manifest=tmp_path / "out" / "split.csv")


def test_broken_images_are_refused_by_name_or_skipped_and_counted(tmp_path):
    root = make(tmp_path / "set", {"a": 20, "b": 20})
    broken = root / "a" / "s0_1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"1 of 40 pictures cannot be read(.|\n)*s0_1\.png"):
        load_dataset(root, img_size=8)
    data = load_dataset(root, img_size=8, skip_broken=True)
    assert len(data) == len(data.images) == len(data.files) == 39
    assert str(broken) not in data.files
    assert np.bincount(data.labels).tolist() == [19, 20]
    assert sum(sizes(data).values()) == 39
    assert noted(data, "broken-pictures", count=1, total=40)
    for index in range(39):
        np.testing.assert_array_equal(data.images[index, 4, 4], np.array(Image.open(data.files[index]))[4, 4])


def test_a_class_whose_training_images_are_all_broken_is_refused(tmp_path):
    root = make(tmp_path / "set", {"train/a": 3, "train/b": 3, "test/a": 2, "test/b": 2})
    for file in (root / "train" / "b").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="no readable picture to learn b from"):
        load_dataset(root, img_size=8, skip_broken=True)


def test_a_class_that_is_never_tested_is_mentioned(tmp_path):
    assert noted(
        load_dataset(make(tmp_path / "set", {"a": 20, "b": 1}), img_size=8), "split-lacks-classes", split="test", classes=["b"]
    )


@pytest.mark.parametrize(
    ("size", "many", "expected"),
    [
        ((20, 300), 99, 32),
        ((300, 64), 99, 64),
        ((100, 127), 99, 96),
        ((600, 400), 99, 128),
        ((600, 400), 1, 224),
        ((130, 223), 1, 128),
    ],
)
def test_the_size_follows_the_median_shorter_side_and_the_number_of_images(tmp_path, monkeypatch, size, many, expected):
    monkeypatch.setattr(sources, "MANY", many)
    root = make(tmp_path / "set", {"a": 3, "b": 3}, size)
    (root / "a" / "s0_0.png").write_bytes(b"")  # does not count
    note = choose_size(read_listing(root))
    assert note.values["size"] == expected and note.values["median"] == min(size)
    assert f"img_size {expected} chosen" in text(note) and str(min(size)) in text(note)


def test_the_size_may_be_left_open_or_be_a_rectangle(tmp_path):
    root = make(tmp_path / "set", {"a": 6, "b": 6}, (100, 70))
    data = load_dataset(root)
    assert data.img_size == (64, 64)
    assert noted(data, "size-chosen", size=64)
    assert load_dataset(root, img_size=(16, 24)).img_size == (16, 24)
    with pytest.raises(ValueError, match=r"img_size .* but is 0"):
        load_dataset(root, img_size=0)


def test_arrays_keep_their_size_unless_another_is_asked_for(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 12, 3), np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(40) % 2)
    data = load_dataset(tmp_path / "set.npz")
    np.testing.assert_array_equal(data.images, images)
    assert sizes(data) == {"train": 28, "val": 4, "test": 8}
    assert noted(data, "split-made")
    small = load_dataset(tmp_path / "set.npz", img_size=4, resize_mode="stretch")
    assert small.img_size == (4, 4)
    assert noted(small, "resized", before=[8, 12], after=[4, 4], resize_mode="stretch")
    assert abs(small.images.mean() - images.mean()) < 2
    with pytest.raises(ValueError, match="group_by cannot be used"):
        load_dataset(tmp_path / "set.npz", group_by="x")
    with pytest.raises(ValueError, match="a manifest cannot be used"):
        load_dataset(tmp_path / "set.npz", manifest=tmp_path / "split.csv")


def test_a_folder_of_npy_files_is_read_as_arrays(tmp_path):
    images = np.zeros((10, 8, 8, 3), np.uint8)
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_images.npy", images)
        np.save(tmp_path / f"{split}_labels.npy", np.arange(10) % 2)
    assert sizes(load_dataset(tmp_path)) == {"train": 10, "test": 10}


def test_what_cannot_be_read_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file or folder .*gone"):
        load_dataset(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"no resize_mode 'squash'"):
        load_dataset(make(tmp_path / "set", {"a": 2, "b": 2}), resize_mode="squash")
    for options in ({"group_by": "x"}, {"manifest": "split.csv"}, {"skip_broken": True}, {"seed": 1}):
        with pytest.raises(ValueError, match=f"named set fashion .*{next(iter(options))} is for your own pictures"):
            load_dataset("fashion", **options)


def test_a_source_is_listed_once_and_its_headers_are_read_once(tmp_path, monkeypatch):
    calls = []
    for name in ("read_listing", "choose_size"):
        original = getattr(sources, name)
        monkeypatch.setattr(sources, name, lambda *args, name=name, do=original: calls.append(name) or do(*args))
    source = open_source(make(tmp_path / "set", {"a": 6, "b": 6}, (100, 70)))
    assert source.count == 12 and source.size == 64 and source.name == "set"
    assert source.read().img_size == (64, 64) and source.read(img_size=8).img_size == (8, 8)
    assert calls == ["read_listing", "choose_size"]
    assert open_source("fashion").count is None and open_source("fashion").size is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_file_names_that_are_no_text_survive_cache_and_manifest(tmp_path):
    root = make(tmp_path / "set", {"a": 10, "b": 10})
    (root / "a" / "s0_0.png").rename(os.fsdecode(os.fsencode(root / "a") + b"/caf\xe9.png"))
    first = load_dataset(root, img_size=8, manifest=tmp_path / "split.csv")
    assert any(os.fsencode(file).endswith(b"caf\xe9.png") for file in first.files)
    assert load_dataset(root, img_size=8, seed=9, manifest=tmp_path / "split.csv").fingerprint() == first.fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fit": "crop"}, "there is no field 'fit'"),
        ({"img_size": "large"}, "img_size must be a whole number .*, but is 'large'"),
        ({"img_size": [8, 8, 8]}, "img_size must be"),
        ({"resize_mode": "squash"}, "no resize_mode 'squash'; the choices are crop, pad, stretch"),
        ({"skip_broken": "yes"}, "skip_broken must be true or false or nothing, but is 'yes'"),
    ],
)
def test_options_from_a_file_are_checked_by_name_and_type(tmp_path, options, message):
    with pytest.raises(SoftbiasError, match=message):
        load_dataset(make(tmp_path / "set", {"a": 2, "b": 2}), **options)
