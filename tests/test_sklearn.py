"""SoftbiasClassifier keeps scikit-learn's conventions."""

import pickle

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from softbias.data.arrays import as_images
from softbias.sklearn import SoftbiasClassifier

QUICK = {"model_options": {"patch_size": 4}, "recipe_options": {"epochs": 12, "batch_size": 16}, "device": "cpu"}


def colored(n: int = 45, side: int = 16, seed: int = 0):
    """Pictures whose color tells the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    colors = np.array([(200, 40, 40), (40, 200, 40), (40, 40, 200)])[labels]
    noise = rng.integers(-40, 40, (n, side, side, 3))
    return np.clip(colors[:, None, None] + noise, 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def fitted():
    X, y = colored()
    return SoftbiasClassifier(**QUICK).fit(X, np.array(["red", "green", "blue"])[y])


def test_it_learns_and_answers_with_the_labels_it_was_given(fitted):
    X, y = colored(seed=1)
    names = np.array(["red", "green", "blue"])[y]
    assert list(fitted.classes_) == ["blue", "green", "red"]
    assert fitted.score(X, names) > 0.9
    probabilities = fitted.predict_proba(X)
    assert probabilities.shape == (45, 3) and np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(X)).all()


def test_floats_and_other_sizes_are_the_same_images(fitted):
    X, _ = colored(6, seed=2)
    assert np.allclose(fitted.predict_proba(X / 255), fitted.predict_proba(X), atol=1e-6)
    large = X.repeat(2, axis=1).repeat(2, axis=2)
    assert (fitted.predict(large) == fitted.predict(X)).all()


def test_files_and_whole_numbers_as_labels(tmp_path):
    X, y = colored(30)
    files = [tmp_path / f"{number} ä.png" for number in range(len(X))]
    for file, image in zip(files, X, strict=True):
        Image.fromarray(image).save(file)
    classifier = SoftbiasClassifier(**QUICK, img_size=16).fit(files, 10 * y)
    assert list(classifier.classes_) == [0, 10, 20] and classifier.score([str(file) for file in files], 10 * y) > 0.9


def test_parameters_clone_and_cross_validation(tmp_path):
    classifier = SoftbiasClassifier(**QUICK)
    copy = clone(classifier)
    assert copy is not classifier and copy.get_params() == classifier.get_params()
    assert copy.set_params(random_state=5).random_state == 5 and classifier.random_state == 0
    X, y = colored(30)
    assert cross_val_score(classifier, X, y, cv=2).min() > 0.5
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_a_fitted_one_can_be_pickled_and_the_seed_decides(fitted):
    X, y = colored()
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    same = clone(fitted).fit(X, np.array(["red", "green", "blue"])[y])
    assert np.array_equal(same.predict_proba(X), fitted.predict_proba(X))


def test_gray_arrays_become_three_channels():
    gray = np.random.default_rng(0).integers(0, 255, (4, 8, 9), dtype=np.uint8)
    assert as_images(gray).shape == (4, 8, 9, 3) and np.array_equal(as_images(gray)[..., 2], gray)
    assert np.array_equal(as_images(gray[..., None]), as_images(gray))


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 0], "y must have shape"),
        (np.zeros((4, 8, 8, 3), np.uint8), [1, 1, 1, 1], "at least two classes"),
        (np.full((4, 8, 8, 3), 7.0), [0, 1, 0, 1], "floats between 0 and 1, but is float64 from 7.0"),
        (np.zeros((4, 8)), [0, 1, 0, 1], "its shape is"),
        (["no.png", "nowhere.png"], [0, 1], "does not exist"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(X, y, message):
    with pytest.raises(ValueError, match=message):
        SoftbiasClassifier(**QUICK).fit(X, y)
