"""Named sets: the same things hold for all of them, in each form they come in."""

from __future__ import annotations

import shutil
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data import fashion, load_dataset, obtain, open_source
from softbias.data.named import CIFAR10, DATASETS, IMAGENETTE, IMAGEWOOF, data_location, first_classes, load_named
from softbias.data.sources import source_name
from softbias.errors import SoftbiasError
from softbias.notes import Note

from .small_sets import (
    FLOWERS,
    FORMS,
    IMAGENET,
    SIZE,
    assert_colors_are_labels,
    own_folders,  # noqa: F401  used by every test
    picture,
    write_arrays,
    write_batches,
    write_folders,
    write_npz,
    write_tiny,
)


def test_every_registered_set_has_a_small_copy_here():
    assert {name for name, _ in FORMS} | {"fashion"} == set(DATASETS)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_sizes_classes_and_splits(name, form, tmp_path, monkeypatch):
    write, counts, classes = FORMS[name, form]
    write(tmp_path / "sets", monkeypatch)
    data = load_named(name, data_dir=tmp_path / "sets")
    assert data.name == name
    assert {split: len(indices) for split, indices in data.splits.items()} == counts
    assert len(np.unique(np.concatenate(list(data.splits.values())))) == len(data) == sum(counts.values())
    assert len(data.class_names) == len(set(data.class_names)) == classes
    assert data.img_size == (SIZE.get(name, 96),) * 2
    assert data.images.dtype == np.uint8
    assert data.labels.dtype == np.int64
    assert_colors_are_labels(data, tolerance=3 if "files" in form else 0)  # JPEG
    official_val = name in ("imagenette", "imagewoof", "imagenet", "imagenet100", "tiny-imagenet")
    assert (Note("official-val-is-test") in data.notes) == official_val


@pytest.mark.parametrize(("name", "form"), [form for form in FORMS if "files" not in form[1]])
def test_another_size_is_resized_and_noted(name, form, tmp_path, monkeypatch):
    FORMS[name, form][0](tmp_path / "sets", monkeypatch)
    data = load_named(name, data_dir=tmp_path / "sets", img_size=48)
    assert data.img_size == (48, 48)
    assert_colors_are_labels(data)
    assert any(note.kind == "resized" and note.values["after"] == [48, 48] for note in data.notes)


def test_fashion_needs_no_folder_and_takes_a_size(tmp_path):
    data = load_named("fashion", data_dir=tmp_path / "nowhere", img_size=(16, 24))
    assert data.images.shape == (6000, 16, 24, 3)
    assert load_named("fashion").fingerprint() == fashion.load().fingerprint()


# --- where it is looked for


def test_the_folder_is_the_argument_then_the_variable_then_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert data_location() == tmp_path / ".local" / "share" / "softbias"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_location() == tmp_path / "xdg" / "softbias"
    monkeypatch.setenv("SOFTBIAS_DATA", "~/sets")
    assert data_location() == tmp_path / "sets"
    assert data_location(tmp_path / "given") == tmp_path / "given"


def test_the_variable_is_used(tmp_path, monkeypatch):
    write_arrays(tmp_path / "cifar10")
    monkeypatch.setenv("SOFTBIAS_DATA", str(tmp_path))
    assert len(load_named("cifar10")) == 30


@pytest.mark.parametrize(
    ("name", "form", "inner"),
    [
        ("cifar10", "arrays", "cifar10"),
        ("cifar10", "batches", "cifar-10-batches-py"),
        ("cifar100", "sheets", "cifar100"),
        ("flowers102", "files", "flowers-102"),
        ("imagenette", "files", "imagenette2-160"),
        ("imagenet", "files", "imagenet"),
        ("tiny-imagenet", "files", "tiny-imagenet-200"),
    ],
)
def test_the_folder_may_be_the_sets_own(name, form, inner, tmp_path, monkeypatch):
    write, counts, _ = FORMS[name, form]
    write(tmp_path, monkeypatch)
    assert len(load_named(name, data_dir=tmp_path / inner)) == sum(counts.values())


def test_a_folder_of_another_set_is_not_taken(tmp_path):
    write_folders(tmp_path / "imagewoof2", IMAGEWOOF)
    with pytest.raises(ValueError, match="imagenette is not in"):
        load_named("imagenette", data_dir=tmp_path / "imagewoof2")
    write_arrays(tmp_path / "letters", classes="abcdefghij")
    with pytest.raises(ValueError, match="cifar10 is not in"):
        load_named("cifar10", data_dir=tmp_path / "letters")


def test_a_pack_goes_before_folders_and_arrays_before_batches(tmp_path, monkeypatch):
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values()), 2)
    write_folders(tmp_path / "imagenette2", IMAGENETTE)
    assert Note("pack-squashed", {"side": 96}) in load_named("imagenette", data_dir=tmp_path).notes
    write_batches(tmp_path, monkeypatch)
    write_arrays(tmp_path / "cifar10")
    assert load_named("cifar10", data_dir=tmp_path).class_names == CIFAR10


def test_of_several_folders_the_smallest_that_is_large_enough_is_read(tmp_path):
    write_folders(tmp_path / "imagenette2-160", IMAGENETTE)
    write_folders(tmp_path / "imagenette2-320", IMAGENETTE)
    for size, folder in (
        (96, "imagenette2-160"),
        (160, "imagenette2-160"),
        (200, "imagenette2-320"),
        (400, "imagenette2-320"),
    ):
        files = load_named("imagenette", data_dir=tmp_path, img_size=size).files
        assert {Path(file).parts[-4] for file in files} == {folder}


# --- what is said


def test_names_of_wordnet_ids_are_words_and_none_is_used_twice(tmp_path, monkeypatch):
    write_folders(tmp_path / "imagenet", IMAGENET)
    data = load_named("imagenet", data_dir=tmp_path, img_size=32)
    assert data.class_names == ("tench", "crane (n02012849)", "crane (n03126707)")
    assert Note("part-of-imagenet", {"classes": 3}) in data.notes
    write_tiny(tmp_path)
    assert load_named("tiny-imagenet", data_dir=tmp_path).class_names == (
        "goldfish",
        "European fire salamander",
        "n02124075",
    )
    write_folders(tmp_path / "imagewoof2", IMAGEWOOF)
    assert load_named("imagewoof", data_dir=tmp_path).class_names == tuple(IMAGEWOOF.values())


def test_imagenet100_is_the_first_hundred_classes_of_imagenet(tmp_path):
    known = first_classes(100)
    assert len(known) == 100 and list(known) == sorted(known)
    write_folders(tmp_path / "imagenet", (*IMAGENET[1:], *known))
    data = load_named("imagenet100", data_dir=tmp_path, img_size=32)
    assert data.class_names[0] == "tench" and data.class_names[-1] == "goose" and "crane" not in " ".join(data.class_names)
    assert {Path(file).parent.name for file in data.files} == set(known)
    shutil.rmtree(tmp_path / "imagenet" / "train" / "n01855672")
    with pytest.raises(SoftbiasError, match="n01855672"):
        load_named("imagenet100", data_dir=tmp_path, img_size=32)


def test_a_folder_of_that_name_does_not_stand_in_for_a_named_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_arrays(tmp_path / "sets" / "cifar10")
    for name in ("red", "blue"):
        (tmp_path / "cifar10" / name).mkdir(parents=True)
        for number in range(12):
            picture(number, 32).save(tmp_path / "cifar10" / name / f"{number}.png")
    named = load_dataset("cifar10", data_dir="sets")
    assert named.class_names == CIFAR10 and Note("folder-of-that-name", {"name": "cifar10"}) in named.notes
    for own in ("./cifar10", "cifar10/", Path("cifar10")):
        found = load_dataset(own)
        assert found.class_names == ("blue", "red") and not any(note.kind == "folder-of-that-name" for note in found.notes)
        assert source_name(own) == "./cifar10" and open_source(source_name(own)).path is not None
    assert source_name("cifar10") == "cifar10" and source_name("sets/") == "sets"


def test_notes_carry_the_geometry(tmp_path, monkeypatch):
    write_npz(tmp_path, "flowers102", FLOWERS, 3)
    assert Note("pack-cropped", {"side": 96}) in load_named("flowers102", data_dir=tmp_path).notes
    write_folders(tmp_path / "imagenet", IMAGENET)
    data = load_named("imagenet", data_dir=tmp_path, img_size=32, resize_mode="pad")
    assert Note("pictures-at", {"height": 32, "width": 32, "resize_mode": "pad"}) in data.notes


WANTED = {
    "cifar10": ("cifar-10-batches-py/", "data_batch_1", "cifar-10-python.tar.gz", "cifar10/ with train_images.npy"),
    "cifar100": ("cifar-100-python/", "cifar-100-python.tar.gz", "cifar100/ with train_0.webp"),
    "flowers102": ("flowers-102/", "imagelabels.mat", "setid.mat", "102flowers.tgz", "flowers102_96.npz"),
    "imagenette": ("imagenette2/", "imagenette2-320/", "imagenette2-160.tgz", "imagenette_96.npz"),
    "imagewoof": ("imagewoof2/", "imagewoof2-320/", "imagewoof2-160.tgz", "imagewoof_96.npz"),
    "imagenet": ("imagenet/ with train/ and val/", "ILSVRC2012_img_train.tar"),
    "imagenet100": ("imagenet/ with train/ and val/", "n01440764/ to n01855672/", "imagenet100/"),
    "tiny-imagenet": ("tiny-imagenet-200/", "val/val_annotations.txt", "tiny-imagenet-200.zip"),
}


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "fashion"])
def test_a_missing_set_says_which_files_to_put_where(name, tmp_path):
    start = time.monotonic()
    with pytest.raises(ValueError, match=f"{name} is not in") as caught:
        load_named(name, data_dir=tmp_path / "empty")
    assert time.monotonic() - start < 2
    text = str(caught.value)
    assert "\n" not in text
    for part in (str(tmp_path / "empty"), "--data-dir", "SOFTBIAS_DATA", *WANTED[name]):
        assert part in text
    downloadable = name in ("cifar10", "cifar100", "flowers102", "imagenette")
    assert ("was tried: no network in this test" in text) == downloadable
    assert not (tmp_path / "empty").exists()


def test_a_server_that_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(obtain, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_kwargs: time.sleep(3))
    start = time.monotonic()
    with pytest.raises(ValueError, match="no answer in"):
        load_named("cifar10", data_dir=tmp_path)
    assert time.monotonic() - start < 2


def test_without_download_the_network_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_: pytest.fail("the network was asked"))
    with pytest.raises(ValueError, match="downloading was switched off"):
        load_named("cifar10", data_dir=tmp_path, download=False)


def test_mistakes_in_the_request(tmp_path):
    with pytest.raises(ValueError, match="there is no data set 'cifar'; did you mean 'cifar10'"):
        load_named("cifar")
    with pytest.raises(ValueError, match="img_size must be"):
        load_named("fashion", img_size=0)
    with pytest.raises(ValueError, match="there is no resize_mode 'squeeze'"):
        load_named("fashion", resize_mode="squeeze")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file is a file; name the folder .* --data-dir"):
        load_named("cifar10", data_dir=tmp_path / "file")


def test_a_held_out_part_of_a_named_set_may_lack_a_class_and_may_not_add_one(tmp_path):
    ids = ("n01440764", "n02012849", "n03126707")
    for part, present in (("train", ids), ("val", ids[:2])):
        for number, name in enumerate(present):
            (tmp_path / "imagenet" / part / name).mkdir(parents=True)
            Image.new("RGB", (20, 20), (80 * number, 0, 0)).save(tmp_path / "imagenet" / part / name / "0.png")
    data = load_named("imagenet", data_dir=tmp_path, img_size=32)
    assert len(data.class_names) == 3 and len(data.splits["test"]) == 2
    (tmp_path / "imagenet" / "train" / ids[1]).rename(tmp_path / "imagenet" / "train" / "n02112018")
    with pytest.raises(SoftbiasError, match=ids[1]):
        load_named("imagenet", data_dir=tmp_path, img_size=32)
