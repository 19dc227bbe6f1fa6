"""Tables and arrays that are wrong, as people and programs write them."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path
from random import Random
from typing import Any

TABLES: tuple[bytes, ...] = (
    b"",
    b"path\n",
    b"path,label\n",
    b"path,label\n,\n",
    b"label\na\n",
    b"path,label\nnothing.png,a\n",
    b"path,label\n/dev/zero,a\n",
    b"path,label\n../../secret/secret.txt,a\n",
    b"path,label\nhttp://127.0.0.1:9/x.png,a\n",
    b"path,path,label\na,b,c\n",
    b'path,label\n"unclosed,a\n',
    b"path,label,split\nIMAGE,a,nowhere\n",
    b"path,label\nIMAGE\n",
    b"path,label\nIMAGE,a,b,c,d\n",
    b"\xff\xfep\0a\0t\0h\0",
    b"\xef\xbb\xbfpath,label\nIMAGE,a\nIMAGE,b\n",
    b"path;label\nIMAGE;a\n",
    b"path\tlabel\nIMAGE\ta\n",
    b"path,label\nIMAGE,caf\xe9\n",
    b"path,label\nIMAGE,\x1b[31mred\nIMAGE2,=1+1\n",
    b"path,label\n\0\0,a\n",
    b"path,label\n" * 500,
    b"path,label\n" + b"IMAGE," + b"x" * 200_000 + b"\n",
    b"path,label\nIMAGE,a\nIMAGE,b\n",
    b"path,label,split\nIMAGE,a,test\nIMAGE2,b,test\n",
    b"path,label\n.,a\n..,b\n",
    b"path,label\nIMAGE,nan\nIMAGE2,inf\n",
)


def write_arrays(file: Path, folder: Path, rng: Random) -> None:
    """An .npz file and a folder of .npy files that are wrong in one way."""
    import numpy as np

    images = np.frombuffer(rng.randbytes(12 * 8 * 8 * 3), np.uint8).reshape(12, 8, 8, 3)
    labels = np.arange(12) % 3
    ways: list[dict[str, Any]] = [
        {"images": images.astype(np.float32) * np.nan, "labels": labels},
        {"images": images[:5], "labels": labels},
        {"images": images, "labels": labels.astype(float) + 0.5},
        {"images": images, "labels": labels - 9},
        {"images": images},
        {"images": np.array([{"a": 1}], dtype=object), "labels": labels},
        {"images": images[..., :2], "labels": labels},
        {"images": images[:0], "labels": labels[:0]},
        {"images": images.astype("U3"), "labels": labels},
        {"x": images, "y": labels * 0},
        {"images": images, "labels": labels, "class_names": np.array(["a"])},
        {"images": images.astype(complex), "labels": labels},
        {"images": images, "labels": labels, "class_names": np.array(["a", "a", "b"])},
        {"images": images, "labels": labels > 0},
        {"images": np.full((12, 8, 8, 3), np.inf), "labels": labels},
        {"images": images * 1j, "labels": labels},
        {"images": images, "labels": np.array(["\x1b[31m", "=1+1", "@@PLOTLY@@"] * 4)},
        {"labels": labels},
        {},
        {"train_images": images, "train_labels": labels, "test_images": images[:3, :4], "test_labels": labels[:3]},
        {"images": images.astype(np.int64) * 10**9, "labels": labels},
        {"images": images.view("V3"), "labels": labels},
    ]
    chosen = rng.choice(ways)
    folder.mkdir()
    stream = io.BytesIO()
    np.savez(stream, **chosen)
    data = stream.getvalue()
    for name, values in chosen.items():
        np.save(folder / f"{name}.npy", values)
    classes = rng.choice((b"", b"null", b"{}", b"[1, 2]", b'["a"]', b'{"fine": 3}', b"\xff", b'["a", "a", "b"]', b'[["a"]]'))
    (folder / "classes.json").write_bytes(classes)
    way = rng.random()
    if way < 0.15:
        data = data[: rng.randrange(len(data))]
    elif way < 0.3:
        data = claims(10**12)
    elif way < 0.4:
        shutil.copy(__file__, folder / "images.npy")
    file.write_bytes(data)


def claims(length: int) -> bytes:
    """An .npz file whose header claims an array of that length."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({length}, 8, 8, 3), }}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 100
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("images.npy", array)
        archive.writestr("labels.npy", array)
    return stream.getvalue()
