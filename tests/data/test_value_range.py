"""Black and white of pictures of more than eight bits: one range for a set, which the model keeps."""

import json

import numpy as np
import pytest
import timm
from PIL import Image

from softbias.classifier import Classifier
from softbias.cli import main
from softbias.data import load_dataset
from softbias.data.arrays import as_images, read_arrays
from softbias.data.check import check
from softbias.data.value_range import find_range, parse_range, to_bytes
from softbias.errors import SoftbiasError
from softbias.runs.fit import fit
from softbias.runs.inference import evaluate, predict

rng = np.random.default_rng(0)


def counts(most, dtype=np.uint16, side=24):
    """A picture of a camera: counts from 0 to `most`, both of which occur."""
    made = (rng.random((side, side)) * most).astype(dtype)
    made[0, :2] = 0
    made[1] = most
    return made


def write(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number}.tif" for number in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    return files


@pytest.fixture
def camera(tmp_path):
    """A set of twelve bits in files of sixteen: one class is dim, the other bright."""
    for name, most in (("dim", 900), ("bright", 3200)):
        write(tmp_path / "camera" / name, [counts(most) for _ in range(20)])
    return tmp_path / "camera"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([counts(200)], (0, 255)),
        ([counts(200), counts(3200)], (0, 4095)),
        ([counts(5000)], (0, 16383)),
        ([counts(40000)], (0, 65535)),
        ([counts(100_000, np.int32)], (0, 100_000)),
        ([counts(0.3, np.float32)], (0, 1)),
        ([counts(200.0, np.float32)], (0, 255)),
        ([counts(5.0, np.float32)], (0, 5)),
        ([counts(255, np.uint8)], None),
        ([], None),
    ],
)
def test_the_images_of_a_set_decide_what_white_is(images, expected, tmp_path):
    found = find_range(write(tmp_path / "files", images))
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("odd", [65535, 60000])
def test_a_hot_pixel_does_not_darken_a_set(odd, tmp_path):
    hot = counts(3200, side=64)
    hot[5, 5] = odd
    assert find_range(write(tmp_path / "hot", [counts(3200), hot])) == (0, 4095)


def test_values_that_are_missing_do_not_count_and_are_black(tmp_path):
    gap = counts(0.5, np.float32)
    gap[3, 3] = np.nan
    assert find_range(write(tmp_path / "gap", [gap])) == (0, 1)
    assert to_bytes(gap, (0, 1))[3, 3] == 0


def test_values_are_bytes_between_black_and_white_and_clipped_outside():
    values = np.array([-5, 0, 2047.5, 4095, 9000])
    assert to_bytes(values, (0, 4095)).tolist() == [0, 0, 128, 255, 255]
    assert to_bytes(np.array([0, 65535, 257], np.uint16), (0, 65535)).tolist() == [0, 255, 1]


def test_other_images_of_a_set_do_not_change_an_image(tmp_path):
    same = counts(0.9, np.float32)
    for name, other in (("a", counts(0.9, np.float32)), ("b", counts(0.9, np.float32))):
        if name == "b":
            other[4, 4] = 1.01
        for label in ("x", "y"):
            write(tmp_path / name / label, [same + 0, other, *[counts(0.9, np.float32) for _ in range(4)]])
    first, second = (load_dataset(tmp_path / name, img_size=24).images[0] for name in ("a", "b"))
    np.testing.assert_array_equal(first, second)


def test_a_set_says_what_white_is_and_another_range_can_be_named(camera):
    data = load_dataset(camera, img_size=24)
    assert data.value_range == (0, 4095) and data.images.max() == round(3200 * 255 / 4095)
    (note,) = [note for note in data.notes if note.kind == "value-range"]
    assert note.values == {"low": 0, "high": 4095, "named": False}
    named = load_dataset(camera, img_size=24, value_range=(0, 3200))
    assert named.value_range == (0, 3200) and named.images.max() == 255
    assert any(note.kind == "value-range" for note in check(camera).notes)


def test_a_model_keeps_the_range_for_files_sets_and_other_libraries(camera, tmp_path):
    run = fit(
        camera, "deit_nano", img_size=24, epochs=1, start="scratch", out=tmp_path / "run", device="cpu", baseline=False,
        trackers=(), model_options={"patch_size": 4},
    ).run  # fmt: skip
    classifier = Classifier.load(run.model_folder)
    assert classifier.value_range == (0, 4095)
    dim = sorted((camera / "dim").glob("*"))
    data = run.data()
    np.testing.assert_array_equal(classifier.read(dim[0]), data.images[list(data.files).index(str(dim[0]))])
    (row,) = predict(run.path, [dim[0]])
    (other,) = predict(run.path, dim[:2])[:1]
    assert row.probabilities == pytest.approx(other.probabilities)
    write(tmp_path / "only" / "dim", [np.asarray(Image.open(file)) for file in dim])  # alone they would be of ten bits
    write(tmp_path / "only" / "bright", [counts(900)])
    found = evaluate(run.path, str(tmp_path / "only"))
    assert [note.values["high"] for note in found.notes if note.kind == "value-range"] == [4095]
    assert timm.create_model(f"local-dir:{run.model_folder}", pretrained=True).num_classes == 2
    assert "value_range" not in json.loads((run.model_folder / "config.json").read_text())["pretrained_cfg"]


def test_arrays_of_sixteen_bits_have_one_range_for_all_their_splits(tmp_path):
    bright, dim = (np.stack([counts(most) for _ in range(8)]) for most in (3200, 200))
    labels = np.arange(8) % 2
    np.savez(tmp_path / "a.npz", train_images=bright, train_labels=labels, test_images=dim, test_labels=labels)
    data = read_arrays(tmp_path / "a.npz")
    assert data.value_range == (0, 4095)
    np.testing.assert_array_equal(data.images[data.splits["test"]], as_images(dim, value_range=(0, 4095)))
    assert read_arrays(tmp_path / "a.npz", (0, 200)).images[8:].max() == 255
    np.savez(tmp_path / "b.npz", images=dim.astype(np.uint8), labels=labels)
    assert [note.kind for note in read_arrays(tmp_path / "b.npz", (0, 200)).notes] == ["value-range-unused"]


@pytest.mark.parametrize("given", ["5", "3,1", "a,b", "0,nan", "1,2,3"])
def test_a_range_that_is_none_is_refused_in_one_line(given, camera, capsys):
    with pytest.raises(SoftbiasError, match="value-range"):
        parse_range(given)
    assert main(["fit", str(camera), "--value-range", given]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_range_that_no_image_needs_is_remarked_upon(tmp_path):
    for name in ("x", "y"):
        write(tmp_path / "plain" / name, [counts(255, np.uint8) for _ in range(6)])
    data = load_dataset(tmp_path / "plain", img_size=24, value_range=(0, 4095))
    assert [note.kind for note in data.notes if note.kind.startswith("value-range")] == ["value-range-unused"]
    np.testing.assert_array_equal(data.images, load_dataset(tmp_path / "plain", img_size=24).images)


def test_a_range_is_refused_for_a_set_by_name():
    with pytest.raises(SoftbiasError, match="value_range is for your own pictures"):
        load_dataset("fashion", value_range=(0, 1))
