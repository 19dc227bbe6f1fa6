"""Small copies of every named set, in each form it comes in, for the tests of named sets and packs.

A picture's color tells its class, so a test notices when pictures and labels are mixed up.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.data.named import CIFAR10, IMAGENETTE, IMAGEWOOF, first_classes

# The real ones, if they are here.
PACKS = Path(os.environ.get("SOFTBIAS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
TINY = ("n01443537", "n01629819", "n02124075")
FLOWERS = [f"flower {number}" for number in range(102)]
IMAGENET = ("n01440764", "n02012849", "n03126707")  # the last two are both called crane


def no_network(*_args, **_kwargs):
    raise OSError("no network in this test")


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """For the module that imports it: a cache of its own, no data folder, and no network."""
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SOFTBIAS_DATA", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", no_network)


def color(label: int) -> tuple[int, int, int]:
    return (label % 5 * 50 + 20, label // 5 % 5 * 50 + 20, label // 25 * 50 + 20)


def picture(label: int, width: int, height: int | None = None) -> Image.Image:
    return Image.new("RGB", (width, height or width), color(label))


def webp(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def assert_colors_are_labels(data: Dataset, tolerance: int = 0) -> None:
    middle = data.images[:, data.img_size[0] // 2, data.img_size[1] // 2].astype(int)
    wanted = np.array([color(label) for label in data.labels])
    assert np.abs(middle - wanted).max() <= tolerance


def write_npz(root: Path, name: str, classes: list[str], splits: int) -> None:
    labels = np.tile(np.arange(len(classes)), 2 * splits)
    files = [webp(picture(label, 96)) for label in labels]
    offsets = np.cumsum([0, *map(len, files)])
    split = np.repeat(np.arange(splits), 2 * len(classes)).astype(np.uint8)
    data = np.frombuffer(b"".join(files), np.uint8)
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / f"{name}_96.npz", data=data, offsets=offsets, labels=labels.astype(np.uint8), split=split, classes=classes)


def write_sheets(root: Path) -> None:
    """Three sheets of 2 × 3 tiles, two of them for training; the second one is not full."""
    folder = root / "cifar100"
    folder.mkdir(parents=True)
    labels = {"train": np.arange(10), "test": np.arange(4, 10)}
    for split, values in labels.items():
        np.save(folder / f"{split}_labels.npy", values.astype(np.uint8))
        for number in range(-(-len(values) // 6)):
            sheet = Image.new("RGB", (96, 64))
            for position, label in enumerate(values[number * 6 :][:6]):
                sheet.paste(picture(label, 32), (position % 3 * 32, position // 3 * 32))
            (folder / f"{split}_{number}.webp").write_bytes(webp(sheet))
    (folder / "classes.json").write_text(json.dumps({"fine": [f"class {i}" for i in range(10)], "coarse": []}))


def write_arrays(folder: Path, classes=CIFAR10) -> None:
    folder.mkdir(parents=True)
    for split, copies in (("train", 2), ("test", 1)):
        labels = np.tile(np.arange(10, dtype=np.uint8), copies)
        np.save(folder / f"{split}_labels.npy", labels)
        np.save(folder / f"{split}_images.npy", np.stack([np.asarray(picture(label, 32)) for label in labels]))
    (folder / "classes.json").write_text(json.dumps(list(classes)))


def write_batches(root: Path, monkeypatch, kind: str = "CIFAR10") -> None:
    """The official files for Python, small; torchvision is told their MD5."""
    from torchvision import datasets

    known = getattr(datasets, kind)
    key, folder = ("labels" if kind == "CIFAR10" else "fine_labels"), root / known.base_folder
    folder.mkdir(parents=True)
    for attribute in ("train_list", "test_list"):
        sums = []
        for file, _ in getattr(known, attribute):
            flat = [np.asarray(picture(label, 32)).transpose(2, 0, 1).ravel() for label in range(10)]
            content = pickle.dumps({"data": np.stack(flat), key: list(range(10))})
            (folder / file).write_bytes(content)
            sums.append([file, hashlib.md5(content).hexdigest()])
        monkeypatch.setattr(known, attribute, sums)
    content = pickle.dumps({known.meta["key"]: [f"class {i}" for i in range(10)]})
    (folder / known.meta["filename"]).write_bytes(content)
    monkeypatch.setattr(known, "meta", {**known.meta, "md5": hashlib.md5(content).hexdigest()})


def write_flowers(root: Path, monkeypatch) -> None:
    from scipy.io import savemat
    from torchvision.datasets import Flowers102

    folder = root / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for number in range(1, 7):  # two a split: one of class 0, one of class 101
        picture(101 * (number % 2), 60, 40).save(folder / "jpg" / f"image_{number:05d}.jpg", quality=95)
    savemat(folder / "imagelabels.mat", {"labels": np.array([1 + 101 * (number % 2) for number in range(1, 7)])})
    savemat(folder / "setid.mat", {"trnid": np.array([5, 6]), "valid": np.array([1, 2]), "tstid": np.array([3, 4])})
    sums = {key: (file, hashlib.md5((folder / file).read_bytes()).hexdigest() if key != "image" else md5)
            for key, (file, md5) in Flowers102._file_dict.items()}  # fmt: skip
    monkeypatch.setattr(Flowers102, "_file_dict", sums)


def write_folders(root: Path, wnids, inner: str = "", size: tuple[int, int] = (60, 40)) -> None:
    for split in ("train", "val"):
        for label, wnid in enumerate(sorted(wnids)):
            folder = root / split / wnid / inner
            folder.mkdir(parents=True)
            picture(label, *size).save(folder / f"{wnid}_{split}.JPEG", quality=95)


def write_tiny(root: Path) -> None:
    root = root / "tiny-imagenet-200"
    write_folders(root, TINY, "images", (64, 64))
    shutil.rmtree(root / "val")
    (root / "val" / "images").mkdir(parents=True)
    rows = []
    for number, label in enumerate([2, 0, 1]):
        picture(label, 64).save(root / "val" / "images" / f"val_{number}.JPEG", quality=95)
        rows.append(f"val_{number}.JPEG\t{TINY[label]}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    (root / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander\n")


def write_nette(root: Path, name: str, wnids: dict[str, str]) -> None:
    write_npz(root, name, list(wnids.values()), 2)


FORMS = {  # (set, form) -> (what writes it, pictures per split, classes)
    ("cifar10", "arrays"): (lambda root, _: write_arrays(root / "cifar10"), {"train": 20, "test": 10}, 10),
    ("cifar10", "batches"): (write_batches, {"train": 50, "test": 10}, 10),
    ("cifar100", "sheets"): (lambda root, _: write_sheets(root), {"train": 10, "test": 6}, 10),
    ("cifar100", "batches"): (lambda root, patch: write_batches(root, patch, "CIFAR100"), {"train": 10, "test": 10}, 10),
    ("flowers102", "pack"): (
        lambda root, _: write_npz(root, "flowers102", FLOWERS, 3), {"train": 204, "val": 204, "test": 204}, 102,
    ),
    ("flowers102", "files"): (write_flowers, {"train": 2, "val": 2, "test": 2}, 102),
    ("imagenette", "pack"): (lambda root, _: write_nette(root, "imagenette", IMAGENETTE), {"train": 20, "test": 20}, 10),
    ("imagenette", "files"): (
        lambda root, _: write_folders(root / "imagenette2-160", IMAGENETTE), {"train": 10, "test": 10}, 10,
    ),
    ("imagewoof", "pack"): (lambda root, _: write_nette(root, "imagewoof", IMAGEWOOF), {"train": 20, "test": 20}, 10),
    ("imagewoof", "files"): (lambda root, _: write_folders(root / "imagewoof2", IMAGEWOOF), {"train": 10, "test": 10}, 10),
    ("imagenet", "files"): (lambda root, _: write_folders(root / "imagenet", IMAGENET), {"train": 3, "test": 3}, 3),
    ("imagenet100", "files"): (
        lambda root, _: write_folders(root / "imagenet", (*first_classes(100), *IMAGENET[1:])),
        {"train": 100, "test": 100}, 100,
    ),
    ("tiny-imagenet", "files"): (lambda root, _: write_tiny(root), {"train": 3, "test": 3}, 3),
    ("tiny-imagenet", "sorted files"): (
        lambda root, _: write_folders(root / "tiny-imagenet-200", TINY, "images"), {"train": 3, "test": 3}, 3,
    ),
}  # fmt: skip
SIZE = {"cifar10": 32, "cifar100": 32, "imagenet": 224, "imagenet100": 224, "tiny-imagenet": 64}  # the others: 96
