"""The contract of data sets, over the registry; and sets from outside the package."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from softbias.data import DATASETS, Dataset, check_dataset, list_datasets, load_dataset, register_dataset
from softbias.errors import SoftbiasError, UnknownNameError

from .small_sets import FORMS, own_folders  # noqa: F401  used by every test

FOREIGN = """
import numpy as np
from softbias.data import Dataset

def load(request):
    side, _ = request.size(8)
    images = np.arange(12 * side * side * 3).reshape(12, side, side, 3).astype(np.uint8)
    splits = {"train": np.arange(8), "test": np.arange(8, 12)}
    return Dataset(request.name, images, np.arange(12) % 2, ("even", "odd"), splits)
"""


def good(request=None) -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
    return Dataset("good", images, np.arange(12) % 3, ("a", "b", "c"), {"train": np.arange(9), "test": np.arange(9, 12)})


def test_fashion_keeps_the_contract():
    check_dataset(load_dataset("fashion"))


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_named_set_keeps_the_contract(name, form, tmp_path, monkeypatch):
    if (name, form) == ("flowers102", "files"):
        pytest.skip("its small copy has pictures of two classes only")
    FORMS[name, form][0](tmp_path / "sets", monkeypatch)
    check_dataset(load_dataset(name, data_dir=tmp_path / "sets", img_size=16))


BROKEN = {
    "images must be uint8": {"images": good().images.astype(np.int16)},
    "labels must be int64": {"labels": good().labels.astype(np.int32)},
    "there must be pictures for test": {"splits": {"train": np.arange(9)}},
    "indices of test must be int64": {"splits": {"train": np.arange(9), "test": np.arange(9, 12, dtype=np.int32)}},
    "indices of test must lie between 0 and 11": {"splits": {"train": np.arange(9), "test": np.arange(9, 13)}},
    "class names must differ": {"class_names": ("a", "b", "a")},
    "train has no picture of c": {"splits": {"train": np.array([0, 1]), "test": np.arange(9, 12)}},
    "one file per picture": {"files": ("a.png",)},
}


@pytest.mark.parametrize("rule", BROKEN)
def test_the_contract_catches_a_broken_set(rule):
    check_dataset(good())
    with pytest.raises(SoftbiasError, match=rule):
        check_dataset(replace(good(), **BROKEN[rule]))


def test_a_set_can_be_registered_by_a_call():
    with pytest.raises(SoftbiasError, match="no file or folder 'mine'"):
        load_dataset("mine")
    with patch.dict(DATASETS):
        register_dataset("mine", good)
        assert load_dataset("mine").fingerprint() == good().fingerprint() and "mine" in list_datasets()


def test_an_entry_point_of_another_package_is_found(tmp_path, monkeypatch):
    from softbias.data.named import find_dataset

    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[softbias.data]\nforeign = foreign_data:load\n")
    (tmp_path / "foreign_data.py").write_text(FOREIGN)
    with pytest.raises(UnknownNameError, match="no data set 'foreign'"):
        find_dataset("foreign")
    monkeypatch.syspath_prepend(tmp_path)
    assert "foreign" in list_datasets() and "foreign" not in DATASETS  # listing imports nothing
    with patch.dict(DATASETS):
        data = load_dataset("foreign", img_size=4)
    check_dataset(data)
    assert data.name == "foreign" and data.img_size == (4, 4)
