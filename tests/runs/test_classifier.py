"""A classifier at work on files, without having been trained."""

import numpy as np
import pytest
import torch
from PIL import Image

import softbias
from softbias.classifier import Classifier
from softbias.errors import SoftbiasError
from softbias.runs.inference import find_image_files
from softbias.runs.opening import open_classifier

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = softbias.create_model("convit_nano", num_classes=3, img_size=32, patch_size=8)
    torch.nn.init.normal_(model.get_classifier().weight)
    preprocessing = {"mean": MEAN, "std": STD, "crop_mode": "border"}
    return softbias.save(model, tmp_path / "saved", class_names=["a", "b", "c"], preprocessing=preprocessing)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "pictures"
    (folder / ".hidden").mkdir(parents=True)
    for number, size in enumerate([(32, 32), (40, 20), (64, 64), (31, 57), (8, 8)]):
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    Image.new("RGB", (8, 8)).save(folder / ".hidden" / "x.png")
    return sorted(folder.glob("*.png"))


def test_a_picture_goes_through_what_the_model_was_saved_with(saved, files):
    classifier = Classifier.load(saved)
    assert classifier.img_size == (32, 32) and classifier.resize_mode == "pad" and classifier.class_names == ("a", "b", "c")
    image = torch.from_numpy(np.array(Image.open(files[0]))).permute(2, 0, 1).double() / 255
    inputs = (image - torch.tensor(MEAN, dtype=torch.double)[:, None, None]) / torch.tensor(STD, dtype=torch.double)[
        :, None, None
    ]
    with torch.no_grad():
        wanted = softbias.load(saved)(inputs.float()[None]).softmax(-1)[0]
    (row,) = classifier.predict(files[:1])
    assert row.probabilities == pytest.approx(wanted.tolist(), abs=1e-5)
    assert row.label == "abc"[int(wanted.argmax())] and row.confidence == max(row.probabilities)


def test_the_batch_changes_nothing_and_bad_files_stop_nothing(saved, files, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"bad")
    chosen = [*files[:2], tmp_path / "bad.png", *files[2:], tmp_path / "missing.png"]
    classifier = Classifier.load(saved)
    one, all_together = classifier.predict(chosen, batch=1), classifier.predict(chosen, batch=64)
    assert [row.file for row in one] == [str(file) for file in chosen]
    assert [row.error for row in one] == [row.error for row in all_together]
    assert [bool(row.error) for row in one] == [False, False, True, False, False, False, True]
    for left, right in zip(one, all_together, strict=True):
        assert left.probabilities == pytest.approx(right.probabilities, abs=1e-5)


def test_a_confidence_below_the_threshold_is_flagged(saved, files):
    classifier = Classifier.load(saved)
    rows = classifier.predict(files, threshold=0.6)
    assert [row.low for row in rows] == [row.confidence < 0.6 for row in rows]
    assert not any(row.low for row in classifier.predict(files, threshold=0))
    assert rows[0].to_dict(classifier.class_names)["probabilities"].keys() == {"a", "b", "c"}


def test_mirrored_answers_are_the_mean_of_an_image_and_its_mirror_image(saved):
    classifier = Classifier.load(saved)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    plain, mirror = classifier.probabilities(images), classifier.probabilities(images[:, :, ::-1])
    assert np.abs(plain - mirror).max() > 0.02
    np.testing.assert_allclose(classifier.mirrored().probabilities(images), (plain + mirror) / 2, atol=1e-6)


def test_folders_are_searched_and_files_are_taken_as_they_are(files, tmp_path):
    assert find_image_files([files[0].parent]) == files
    assert find_image_files([tmp_path / "nothing.xyz"]) == [tmp_path / "nothing.xyz"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="there are no pictures in"):
        find_image_files([tmp_path / "empty"])


def test_a_table_names_files_relative_to_itself(files, tmp_path):
    table = files[0].parent.parent / "new.csv"
    names = [f"{file.parent.name}/{file.name}" for file in files[:2]]
    table.write_text("id;Image\n" + "".join(f"{k};{name}\n" for k, name in enumerate(names)))
    assert find_image_files([table, files[2]]) == files[:3]
    (tmp_path / "labels.csv").write_text("label\na\n")
    with pytest.raises(ValueError, match=r"needs a column 'path' .*write path into its first line"):
        find_image_files([tmp_path / "labels.csv"])
    assert find_image_files([tmp_path / "missing.csv"]) == [tmp_path / "missing.csv"]  # which is then said to be missing


def test_a_run_without_any_checkpoint_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("format: 1\n")
    with pytest.raises(SoftbiasError, match="its training is not finished"):
        open_classifier(tmp_path)


def test_a_hugging_face_folder_says_how_to_normalize(files, tmp_path, hugging_face_vit):
    folder = tmp_path / "hf"
    hugging_face_vit(2).save_pretrained(folder)
    with pytest.raises(ValueError, match="does not say how its pictures are normalized"):
        Classifier.load(folder)
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    (row,) = Classifier.load(folder).predict(files[:1])
    assert sum(row.probabilities) == pytest.approx(1, abs=1e-5)


def test_outputs_that_are_not_finite_are_refused_everywhere(little, tmp_path):
    model = softbias.create_model("deit_nano", num_classes=3, patch_size=8)
    with torch.no_grad():
        model.head.weight.fill_(3e38)  # finite, but no sum of two of them is
    classifier = Classifier.of(model, "huge", class_names=("a", "b", "c"), mean=(0.5,) * 3, std=(0.5,) * 3)
    data = little()
    Image.fromarray(data.images[0]).save(tmp_path / "x.png")
    for call in (
        lambda: classifier.predict([tmp_path / "x.png"]),
        lambda: classifier.logits(torch.rand(2, 3, 32, 32)),
        lambda: softbias.explain(classifier, tmp_path / "x.png"),
        lambda: softbias.evaluate(classifier, data, device="cpu"),
        lambda: softbias.probe(classifier, "shift", data="fashion", n=4, device="cpu"),
    ):
        with pytest.raises(SoftbiasError, match=r"not finite for \d+ of \d+ pictures"):
            call()
