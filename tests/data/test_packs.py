"""Packs and torchvision's files: what is damaged, what is kept in the cache, what is downloaded."""

from __future__ import annotations

import pickle
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from softbias.data import packs
from softbias.data.cache_folder import cache_size, clear_cache
from softbias.data.named import CIFAR10, IMAGENETTE, load_named

from .small_sets import (
    assert_colors_are_labels,
    own_folders,  # noqa: F401  used by every test
    write_arrays,
    write_batches,
    write_flowers,
    write_folders,
    write_npz,
    write_sheets,
)

# --- the cache


@pytest.fixture
def decoded(monkeypatch):
    """How often a pack was really decoded."""
    calls = []
    original = packs.decode_files
    monkeypatch.setattr(packs, "decode_files", lambda *args: calls.append(1) or original(*args))
    return calls


def imagenette(folder: Path, **options):
    return load_named("imagenette", data_dir=folder, **options)


def test_a_pack_is_decoded_once_and_then_mapped(tmp_path, decoded):
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values()), 2)
    first, second = imagenette(tmp_path), imagenette(tmp_path)
    assert len(decoded) == 1
    assert isinstance(second.images, np.memmap)
    assert first.fingerprint() == second.fingerprint()
    imagenette(tmp_path, img_size=32)
    assert len(decoded) == 2  # another size is another entry
    assert cache_size() > 40 * 96 * 96 * 3
    clear_cache()
    assert cache_size() == 0


def test_a_changed_pack_is_decoded_anew(tmp_path, decoded):
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values()), 2)
    imagenette(tmp_path)
    (tmp_path / "imagenette_96.npz").unlink()
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values())[::-1], 2)
    assert imagenette(tmp_path).class_names[0] == "parachute"
    assert len(decoded) == 2


def test_a_damaged_entry_of_the_cache_is_made_again(tmp_path, decoded):
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values()), 2)
    imagenette(tmp_path)
    (stored,) = (tmp_path / "cache").rglob("images.npy")
    stored.write_bytes(stored.read_bytes()[:1000])
    assert_colors_are_labels(imagenette(tmp_path))
    assert len(decoded) == 2


def test_without_a_cache_images_stay_in_memory(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "file"))
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values()), 2)
    data = imagenette(tmp_path)
    assert not isinstance(data.images, np.memmap)
    assert_colors_are_labels(data)


# --- damage


def test_a_damaged_npz_pack_is_named(tmp_path):
    write_npz(tmp_path, "imagenette", list(IMAGENETTE.values()), 2)
    path = tmp_path / "imagenette_96.npz"
    content = dict(np.load(path))
    damage = {
        "a key is missing": {key: value for key, value in content.items() if key != "split"},
        "data cut": content | {"data": content["data"][:-9]},
        "a picture broken": content | {"data": np.zeros_like(content["data"])},
        "an unknown split": content | {"split": content["split"] + 1},
        "a label too many": content | {"labels": np.append(content["labels"], 0).astype(np.uint8)},
    }
    for what, arrays in damage.items():
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=r"imagenette_96\.npz cannot be read .*: fetch it again, or remove it"):
            pytest.fail(f"{what} was read: {imagenette(tmp_path)}")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"imagenette_96\.npz cannot be read"):
        imagenette(tmp_path)


def test_a_missing_sheet_is_noticed(tmp_path):
    write_sheets(tmp_path)
    (tmp_path / "cifar100" / "train_1.webp").unlink()
    with pytest.raises(ValueError, match="10 train labels, but 6 pictures in 1 train sheets: is one missing"):
        load_named("cifar100", data_dir=tmp_path)


def test_cifar10_knows_the_names_of_its_classes_where_its_folder_does_not(tmp_path):
    write_arrays(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "classes.json").unlink()
    assert load_named("cifar10", data_dir=tmp_path).class_names == CIFAR10
    with pytest.raises(ValueError, match="cifar10 is not in"):  # in the data folder itself, arrays could be anybody's
        load_named("cifar10", data_dir=tmp_path / "cifar10", download=False)


def test_arrays_with_other_classes_are_not_cifar10(tmp_path):
    write_arrays(tmp_path / "cifar10", classes="abcdefghij")
    with pytest.raises(ValueError, match=r"cifar10 is not cifar10: its classes\.json lists a, b"):
        load_named("cifar10", data_dir=tmp_path)


class Trap:
    """Unpickling it leaves a trace."""

    sprung: list[int] = []  # noqa: RUF012

    def __reduce__(self):
        return Trap.sprung.append, (1,)


def test_batches_whose_checksum_is_wrong_are_refused_unopened(tmp_path, monkeypatch):
    write_batches(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"torchvision cannot read .*corrupted.*--data-dir"):
        load_named("cifar10", data_dir=tmp_path)
    assert not Trap.sprung


def test_a_missing_class_folder_and_a_val_without_folders_are_named(tmp_path):
    write_folders(tmp_path / "imagenette2", IMAGENETTE)
    lost = tmp_path / "imagenette2" / "train" / "n03445777"
    lost.rename(tmp_path / "lost")
    with pytest.raises(ValueError, match="missing or too many: n03445777"):
        imagenette(tmp_path)
    write_folders(tmp_path / "imagenet", ["n01440764", "n01443537"])
    flat = tmp_path / "imagenet" / "val"
    for file in list(flat.glob("*/*.JPEG")):
        file.rename(flat / file.name)
        file.parent.rmdir()
    with pytest.raises(ValueError, match=r"val are in no class folders: sort them into n01440764/"):
        load_named("imagenet", data_dir=tmp_path)


# --- archives and downloads


class Answer:
    """The answer of a server that works."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_an_archive_is_unpacked_without_the_network(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10 as OFFICIAL
    from torchvision.datasets.utils import calculate_md5

    write_batches(tmp_path / "made", monkeypatch)
    archive = tmp_path / "sets" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(OFFICIAL, "tgz_md5", calculate_md5(archive))
    assert_colors_are_labels(load_named("cifar10", data_dir=tmp_path / "sets", download=False))


def test_what_is_missing_is_downloaded_when_the_server_answers(tmp_path, monkeypatch):
    from torchvision import datasets

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_kwargs: Answer())
    made, folders = tmp_path / "made", []
    write_batches(made, monkeypatch)
    write_flowers(made, monkeypatch)
    write_folders(made / "imagenette2-160", IMAGENETTE)

    def arrives(set_, *_):
        """Instead of torchvision's download: move what was made to where it is expected."""
        folders.append(Path(set_.root))
        Path(set_.root).mkdir(exist_ok=True)
        for folder in list(made.iterdir()):
            folder.rename(Path(set_.root) / folder.name)

    for kind, method, name in (
        (datasets.CIFAR10, "download", "cifar10"),
        (datasets.Flowers102, "download", "flowers102"),
        (datasets.Imagenette, "_download", "imagenette"),
    ):
        monkeypatch.setattr(kind, method, arrives)
        target = tmp_path / name
        assert_colors_are_labels(load_named(name, data_dir=target), tolerance=3)
        assert set(folders) == {target}
        for folder in list(target.iterdir()):
            folder.rename(made / folder.name)
        folders.clear()


def test_a_download_that_breaks_off_is_a_clear_error(tmp_path, monkeypatch):
    from torchvision import datasets

    def breaks(_):
        raise ConnectionResetError("connection reset by peer")

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_kwargs: Answer())
    monkeypatch.setattr(datasets.CIFAR100, "download", breaks)
    with pytest.raises(ValueError, match=r"cifar100: torchvision cannot .*connection reset by peer.*remove incomplete files"):
        load_named("cifar100", data_dir=tmp_path)
