from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data import load_dataset, packs
from softbias.data.arrays import as_images, is_array_folder, read_arrays
from softbias.data.resizing import resized
from softbias.errors import SoftbiasError
from softbias.notes import Note

X = np.random.default_rng(0).integers(0, 256, (6, 8, 10, 3), np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(("images", "labels"), [("images", "labels"), ("x", "y"), ("X", "Y"), ("images", "label")])
def test_one_set_has_no_splits(tmp_path, images, labels):
    data = read_arrays(npz(tmp_path / "set.npz", **{images: X, labels: Y}))
    np.testing.assert_array_equal(data.images, X)
    np.testing.assert_array_equal(data.labels, Y)
    assert data.labels.dtype == np.int64
    assert data.class_names == ("0", "1", "2")
    assert data.splits == {}
    assert data.name == "set"


@pytest.mark.parametrize("style", ["x_{}|y_{}", "{}_images|{}_labels", "X_{}|y_{}", "{}_x|{}_y"])
@pytest.mark.parametrize("val", ["val", "valid"])
def test_splits_are_found_by_name(tmp_path, style, val):
    image, label = style.split("|")
    arrays = {}
    for split, start in (("train", 0), (val, 3), ("test", 0)):
        arrays |= {image.format(split): X[start : start + 3], label.format(split): Y[start : start + 3, None]}
    data = read_arrays(npz(tmp_path / "set.npz", **arrays, class_names=np.array(["a", "b", "c"])))
    assert {name: indices.tolist() for name, indices in data.splits.items()} == {
        "train": [0, 1, 2],
        "val": [3, 4, 5],
        "test": [6, 7, 8],
    }
    np.testing.assert_array_equal(data.images[3:6], X[3:])
    assert data.class_names == ("a", "b", "c")


def test_a_folder_of_npy_files_as_get_cifar10_writes_it(tmp_path):
    for name, array in (
        ("train_images", X),
        ("train_labels", Y.astype(np.uint8)),
        ("test_images", X[:3]),
        ("test_labels", Y[:3]),
    ):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "classes.json").write_text(json.dumps(["air plane", "böat", "猫"]), encoding="utf-8")
    assert is_array_folder(tmp_path)
    data = read_arrays(tmp_path)
    assert data.class_names == ("air plane", "böat", "猫")
    np.testing.assert_array_equal(data.images, np.concatenate([X, X[:3]]))
    np.testing.assert_array_equal(data.splits["test"], [6, 7, 8])


def test_a_folder_of_images_with_some_array_in_it_is_no_array_folder(tmp_path):
    np.save(tmp_path / "embeddings.npy", X)
    assert not is_array_folder(tmp_path)


def test_grey_becomes_three_channels_and_channels_first_is_noticed():
    grey = X[..., 0]
    for values in (grey, grey[..., None], grey[:, None]):
        converted = as_images(values)
        assert converted.shape == (6, 8, 10, 3)
        for channel in range(3):
            np.testing.assert_array_equal(converted[..., channel], grey)
    np.testing.assert_array_equal(as_images(X.transpose(0, 3, 1, 2)), X)
    np.testing.assert_array_equal(as_images(X[:, :3]), X[:, :3])  # (N, 3, W, 3): channels last


def test_other_number_types_are_scaled_rightly():
    np.testing.assert_array_equal(as_images(X / np.float32(255)), X)
    np.testing.assert_array_equal(as_images(X.astype(np.int64)), X)
    np.testing.assert_array_equal(as_images(X.astype(np.uint16) * 257), X)
    np.testing.assert_array_equal(as_images(X > 127), (X > 127) * 255)


def test_alpha_is_laid_on_white():
    clear = np.concatenate([X, np.zeros_like(X[..., :1])], axis=-1)
    assert (as_images(clear) == 255).all()
    solid = np.concatenate([X, np.full_like(X[..., :1], 255)], axis=-1)
    np.testing.assert_array_equal(as_images(solid), X)
    assert as_images(np.array([0, 0, 0, 51], np.uint8).reshape(1, 1, 1, 4)).ravel().tolist() == [204] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (X.astype(np.float32), r"floats between 0 and 1, but is float32 from 0\.0 to 255\.0"),
        (X / 127.5 - 1, r"float64 from -1\.0 to 1\.0; undo any normalization"),
        (np.full((2, 4, 4), np.nan), "nan"),
        (X.astype(np.int64) * 2, "int64 from 0 to 510"),
        (X.astype(complex), "complex128"),
        (X[0, 0], "shape is \\(10, 3\\)"),
        (np.zeros((2, 5, 5, 2), np.uint8), "shape is \\(2, 5, 5, 2\\)"),
        (np.zeros((2, 0, 5, 3), np.uint8), "shape is \\(2, 0, 5, 3\\)"),
    ],
)
def test_arrays_that_are_no_images_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        as_images(values)


def test_labels_may_be_strings_gaps_or_whole_floats(tmp_path):
    data = read_arrays(npz(tmp_path / "a.npz", x=X, y=np.array(["b", "a", "b10", "b9", "a", "b"])))
    assert data.class_names == ("a", "b", "b9", "b10")
    np.testing.assert_array_equal(data.labels, [1, 0, 3, 2, 0, 1])
    data = read_arrays(npz(tmp_path / "b.npz", x=X, y=Y * 10.0 + 5))
    assert data.class_names == ("5", "15", "25")
    np.testing.assert_array_equal(data.labels, Y)
    assert data.notes == (Note("labels-renumbered", {"count": 3, "first": 5, "last": 25}),)
    data = read_arrays(npz(tmp_path / "c.npz", x=X, y=np.array([b"n", b"m"] * 3)))
    assert data.class_names == ("m", "n")


def test_a_class_without_images_is_mentioned(tmp_path):
    data = read_arrays(npz(tmp_path / "a.npz", x=X, y=Y, classes=list("abcd")))
    assert data.notes == (Note("classes-without-pictures", {"classes": ["d"]}),)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "y": Y[:5]}, "x has 6 pictures, but y has 5 labels"),
        ({"x": X, "y": Y, "class_names": ["a", "b"]}, "2 class names allow the labels 0 to 1, but they go from 0 to 2"),
        ({"x": X, "y": Y - 1}, "the smallest is -1"),
        ({"x": X, "y": np.eye(6)}, r"its shape is \(6, 6\); one-hot rows need \.argmax\(1\)"),
        ({"x": X, "y": Y + 0.5}, "whole numbers from 0 on, or strings, but is float64 from 0.5 to 2.5"),
        ({"x": X, "y": np.array(list("ababab")), "classes": ["a", "c"]}, "labels b are not among the class names a, c"),
        ({"x": X, "y": Y * 0}, "at least two pictures and two classes, but there are 6 and 1"),
        ({"x": X[:1], "y": Y[:1]}, "there are 1 and 1"),
        ({"data": X, "labels": Y}, "needs arrays named images and labels, .* but has data, labels"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "has x_test, but no labels for test"),
        ({"x_train": X, "y_train": Y, "y_test": Y}, "has y_test, but no images for test"),
        ({"x_test": X, "y_test": Y}, "none for train"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:, :4], "y_test": Y},
            r"one size, but x_test has \(4, 10\) beside \(8, 10\)",
        ),
        ({"x_train": X[:2], "y_train": Y[:2], "x_test": X, "y_test": Y}, "no picture in train to learn from: 2"),
        ({"x_train": X, "y_train": Y, "x_test": X[:0], "y_test": Y[:0]}, "x_test has no pictures; leave the array out"),
        ({"x": X.astype(str), "y": Y}, "x must be numbers: .* but is <U3"),
        ({"x": X.astype("V4"), "y": Y}, r"x must be numbers: .* but is \|V4"),
        ({"x": X, "y": np.array([0, 1, np.inf] * 2)}, "whole numbers from 0 on, or strings, but is float64 from 0.0 to inf"),
        ({"x": X, "y": Y.astype(np.uint64) + 2**63}, "whole numbers from 0 on, or strings, but is uint64 from"),
        ({"x": X, "y": np.array([b"\xe9", b"a"] * 3)}, "y must be text in UTF-8, but is not"),
        ({"x": X, "y": np.frombuffer(np.array([0x110000, 65] * 3, "<u4"), "<U1")}, "y must be text in UTF-8, but is not"),
        ({"x": X, "y": np.array(["\udce9", "a"] * 3)}, r"text that can be written, but there is '\\\\xe9'"),
        ({"x": X, "y": Y, "classes": list("aab")}, "must differ, but a stands there more than once"),
        ({"x": X, "y": Y, "classes": ["a", "", "b"]}, "text that can be written, but there is ''"),
        ({"x": X, "y": Y, "classes": [0.5, np.nan, 1]}, "classes must be strings or whole numbers, but is float64"),
    ],
)
def test_arrays_that_do_not_match_are_refused(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        read_arrays(npz(tmp_path / "set.npz", **arrays))


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "exploded").touch, ())

    for name in ("labels", "images"):
        arrays = {"images": X, "labels": Y} | {name: np.array([Bomb()] * 6, dtype=object)}
        with pytest.raises(ValueError, match=f"the array {name} cannot be read"):
            read_arrays(npz(tmp_path / "set.npz", **arrays))
    assert not (tmp_path / "exploded").exists()


def test_broken_files_are_a_clear_error(tmp_path):
    path = npz(tmp_path / "set.npz", images=X, labels=Y)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cannot be read as \.npz"):
        read_arrays(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"cannot be read as \.npz"):
        read_arrays(path)
    path = npz(tmp_path / "flip.npz", images=X, labels=Y)
    data = bytearray(path.read_bytes())
    data[600] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(path)
    np.save(tmp_path / "images.npy", X)
    with pytest.raises(ValueError, match="give the folder"):
        read_arrays(tmp_path / "images.npy")
    np.save(tmp_path / "labels.npy", Y)
    (tmp_path / "images.npy").write_bytes((tmp_path / "images.npy").read_bytes()[:300])
    with pytest.raises(ValueError, match="the array images cannot be read"):
        read_arrays(tmp_path)


def forged(path: Path, shape: tuple[int, ...], dtype: str = "|u1", content: bytes = b"\0" * 100) -> Path:
    """An .npz file whose images state another shape than they have."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    labels = io.BytesIO()
    np.save(labels, Y)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("images.npy", header.getvalue() + content)
        file.writestr("labels.npy", labels.getvalue())
    return path


@pytest.mark.parametrize("shape", [(10**8, 10**3, 10**3, 3), (6, 8, 10, 3), (2**63,), (2**62, 4, 1, 1), (-1, 8, 8, 3)])
def test_a_size_that_cannot_be_is_refused_from_the_header(tmp_path, shape):
    with pytest.raises(SoftbiasError, match=r"the array images cannot be read: its header states uint8 of shape"):
        read_arrays(forged(tmp_path / "set.npz", shape))
    with zipfile.ZipFile(tmp_path / "set.npz") as file:
        file.extractall(tmp_path / "folder")
    with pytest.raises(SoftbiasError, match=r"the array images cannot be read: its header states uint8 of shape"):
        read_arrays(tmp_path / "folder")


@pytest.mark.parametrize("header", [b"(" * 9000, b"{" * 9000, b"\xff" * 90, b"", b"{'descr': '|u1', 'shape': 'a'}\n"])
def test_headers_that_are_no_headers_are_a_clear_error(tmp_path, header):
    content = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header
    (tmp_path / "images.npy").write_bytes(content)
    np.save(tmp_path / "labels.npy", Y)
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as file:
        file.writestr("images.npy", content)
        file.write(tmp_path / "labels.npy", "labels.npy")
    for source in (tmp_path, tmp_path / "set.npz"):
        with pytest.raises(SoftbiasError, match="the array images cannot be read"):
            read_arrays(source)


def test_an_array_that_no_memory_can_hold_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    np.savez_compressed(path, images=X, labels=Y)
    monkeypatch.setattr("softbias.data.array_files.memory", lambda: X.nbytes - 1)
    with pytest.raises(SoftbiasError, match=r"the array images cannot be read: it needs .* this machine has"):
        read_arrays(path)


def test_numbers_of_another_byte_order_are_read_as_they_are(tmp_path):
    data = read_arrays(npz(tmp_path / "a.npz", x=X.astype(">u2") * 257, y=Y.astype(">i4")))
    np.testing.assert_array_equal(data.images, X)
    np.testing.assert_array_equal(data.labels, Y)


def test_an_archive_that_states_more_than_it_can_hold_is_refused(tmp_path):
    claimed = 10**9
    path = forged(tmp_path / "set.npz", (claimed,))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        real = file.getinfo("images.npy").file_size
    position = content.index(b"PK\x01\x02")  # the first entry of the directory; its size stands at byte 24
    assert int.from_bytes(content[position + 24 : position + 28], "little") == real
    content[position + 24 : position + 28] = (claimed + real - 100).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(SoftbiasError, match="the array images cannot be read"):
        read_arrays(path)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 1, 2], r"classes\.json: \[0\] must be text, but is 0"),
        ({"coarse": ["a"]}, r"classes\.json: fine is missing"),
        ({"fine": ["a", None]}, r"classes\.json: fine\[1\] must be text, but is None"),
        ("abc", r"classes\.json: the whole must be a list"),
        (["a", "b", "a"], "the class names must differ, but a stands there more than once"),
        (["a", "b", "\ud800"], "the class names must be text that can be written"),
    ],
)
def test_names_of_classes_are_checked_field_by_field(tmp_path, classes, message):
    np.save(tmp_path / "images.npy", X)
    np.save(tmp_path / "labels.npy", Y)
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    with pytest.raises(SoftbiasError, match=message):
        read_arrays(tmp_path)


def test_resized_arrays_are_kept_and_read_again_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    images = np.random.default_rng(0).integers(0, 255, (150, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(150) % 2)
    first = load_dataset(tmp_path / "a.npz", img_size=16)
    alone = [np.asarray(resized(Image.fromarray(image), (16, 16), "crop")) for image in images]
    assert (first.images == np.stack(alone)).all()  # by threads, in order
    monkeypatch.setattr(packs, "resize_all", lambda *_: pytest.fail("resized again"))
    assert (load_dataset(tmp_path / "a.npz", img_size=16).images == first.images).all()
