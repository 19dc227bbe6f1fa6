from __future__ import annotations

import hashlib
import json
import time
from importlib import resources

import numpy as np
import pytest
from PIL import Image

from softbias.data import fashion
from softbias.pages.wording import text

SHA256 = "94b35475b4eb65b4b84b3643af0f19b104e1ecfb1f8283273e7fb5a389c615ef"  # of 6000 × 28 × 28 bytes


@pytest.fixture(scope="module")
def data():
    return fashion.load()


def test_there_are_5000_training_and_1000_test_images_of_ten_classes(data):
    assert data.images.shape == (6000, 32, 32, 3)
    assert data.images.dtype == np.uint8
    assert data.labels.dtype == np.int64
    assert data.class_names[0] == "T-shirt/top"
    assert data.class_names[9] == "Ankle boot"
    assert np.bincount(data.labels[data.splits["train"]]).tolist() == [500] * 10
    assert np.bincount(data.labels[data.splits["test"]]).tolist() == [100] * 10


def test_no_picture_occurs_twice_so_the_splits_are_disjoint_in_content_too(data):
    assert len(np.unique(data.images.reshape(6000, -1), axis=0)) == 6000
    assert not set(data.splits["train"]) & set(data.splits["test"])


def test_the_decoded_images_have_the_stated_checksum(data):
    grey = np.ascontiguousarray(data.images[:, 2:-2, 2:-2, 0])
    assert hashlib.sha256(grey).hexdigest() == fashion.SHA256["images"] == SHA256
    assert hashlib.sha256(data.labels.astype("<i8")).hexdigest() == fashion.SHA256["labels"]


def test_the_border_is_zero_and_the_three_channels_are_equal(data):
    border = data.images.copy()
    border[:, 2:-2, 2:-2] = 0
    assert not border.any()
    assert data.images[:, 2:-2, 2:-2].any(axis=(1, 2, 3)).all()  # and no picture is empty
    assert (data.images == data.images[..., :1]).all()


def test_labels_belong_to_the_images(data):
    """Trousers (1) are the narrowest of all, and the nearest class mean is usually the right one."""
    used = (data.images[..., 0] > 0).any(axis=1).sum(axis=1)
    width = [used[data.labels == label].mean() for label in range(10)]
    assert int(np.argmin(width)) == 1
    flat = data.images[..., 0].reshape(6000, -1).astype(np.float64)
    train, test = data.splits["train"], data.splits["test"]
    means = np.stack([flat[train][data.labels[train] == label].mean(0) for label in range(10)])
    nearest = ((flat[test][:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == data.labels[test]).mean() > 0.6


def test_loading_takes_a_fraction_of_a_second():
    times = []
    for _ in range(3):
        start = time.process_time()
        fashion.load()
        times.append(time.process_time() - start)
    assert min(times) < 0.3


def test_the_notes_say_where_it_comes_from_and_that_the_split_is_our_own(data):
    notes = " ".join(text(note) for note in data.notes)
    assert "Zalando" in notes
    assert "MIT" in notes
    assert "not the official one" in notes


def test_the_file_says_inside_what_it_shows():
    path = resources.files("softbias.data") / fashion.FILE
    assert len(path.read_bytes()) < 2_400_000
    with path.open("rb") as file, Image.open(file) as sheet:
        about = json.loads(sheet.info["Description"])
        assert sheet.size == (2800, 1680)
        assert "Zalando" in sheet.info["Copyright"]
    assert tuple(about["classes"]) == fashion.CLASSES
    assert "Zalando" in (resources.files("softbias.data") / "FASHION_LICENSE").read_text(encoding="utf-8")


def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    content = (resources.files("softbias.data") / fashion.FILE).read_bytes()
    monkeypatch.setitem(fashion.SHA256, "images", "0" * 64)
    with pytest.raises(ValueError, match="is damaged: install softbias again"):
        fashion.load()
    for part in (content[:100], content[:100_000], b"not a picture", b""):
        (tmp_path / "cut.png").write_bytes(part)
        monkeypatch.setattr(fashion, "FILE", str(tmp_path / "cut.png"))
        with pytest.raises(ValueError, match="is damaged: install softbias again"):
            fashion.load()


def test_packing_and_unpacking_keep_every_picture():
    by_class = np.random.default_rng(0).integers(0, 256, (10, 600, 28, 28), np.uint8)
    grey, labels = fashion.unpack(fashion.pack(by_class))
    for label, number in ((0, 0), (3, 499), (9, 599)):
        assert (grey[labels == label][number] == by_class[label, number]).all()
