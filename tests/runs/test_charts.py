"""The drawings on the page of a run."""

import io

import numpy as np
import pytest
from PIL import Image

from softbias.pages.static import confusion_png
from softbias.runs.page import confusions, curves, reliability


def test_curves_go_through_their_points_and_leave_out_what_is_no_number():
    losses = {1: float("inf"), 2: None, 3: 1.0}
    loss, rate = curves([{"epoch": e, "loss": 4.0 - e, "val_loss": losses[e], "lr": 0.0} for e in (1, 2, 3)])
    training, validation = loss.series
    assert list(zip(training.x, training.y, strict=True)) == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert list(zip(validation.x, validation.y, strict=True)) == [(3, 1.0)]
    x, y = loss.axes()
    assert [text for _, text in x.ticks] == ["1", "2", "3"] and y.range[0] == 0 and y.range[1] > 3
    assert "training 3 at first, 1 at last" in loss.alt and rate.series[0].y == (0.0, 0.0, 0.0)


def test_a_single_epoch_stands_in_the_middle_and_none_gives_no_chart():
    (loss,) = curves([{"epoch": 1, "loss": 2.0}])
    assert loss.axes()[0].position(1) == 0.5 and curves([]) == []


def test_accuracy_has_percentages_up_to_a_hundred():
    (chart,) = curves([{"epoch": e, "accuracy": e / 10} for e in range(1, 11)])
    assert chart.y.ticks[-1] == (1.0, "100%") and chart.series[0].hover[-1].endswith("100.0 %")


def test_reliability_has_the_accuracy_and_the_size_of_each_bin():
    p = np.array([[0.96, 0.04], [0.94, 0.06], [0.45, 0.55], [0.0, 1.0]], np.float32)
    found = reliability(p, np.array([0, 1, 1, 1]))
    assert [(row["bin"], row["n"], row["accuracy"]) for row in found.bins] == [(5, 1, 1.0), (9, 3, pytest.approx(2 / 3))]
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in found.bins)
    diagram, counts = found.charts()
    assert diagram.series[1].low == [row["low"] for row in found.bins] and counts.series[0].y == [1, 3]
    assert found.mean == pytest.approx(0.8625)


@pytest.mark.parametrize(("right", "word"), [(0, "too sure of"), (3, "about right on average"), (4, "not sure enough")])
def test_reliability_says_in_words_whether_the_model_is_too_sure(right, word):
    p = np.array([[0.75, 0.25]] * 4, np.float32)
    assert reliability(p, np.array([0] * right + [1] * (4 - right))).word.startswith(word)


def test_the_most_frequent_mistakes_are_listed():
    assert confusions(np.array([[5, 3, 0], [1, 9, 0], [0, 7, 3]]), ("cat", "dog", "owl")) == [
        {"true": "owl", "predicted": "dog", "n": 7, "of": 10},
        {"true": "cat", "predicted": "dog", "n": 3, "of": 8},
        {"true": "dog", "predicted": "cat", "n": 1, "of": 10},
    ]


def colors(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_confusion_matrix_is_drawn_with_mistakes_off_its_diagonal(theme):
    image = colors(confusion_png(np.array([[9, 0, 0], [4, 5, 0], [0, 0, 0]]), ["a" * 90, "b", "c"], theme))
    blue, orange = image[..., 2] - image[..., 0] > 60, image[..., 0] - image[..., 2] > 60
    assert blue.any() and orange.any()
    assert np.nonzero(orange)[0].mean() > np.nonzero(blue)[0].mean()  # lower,
    assert np.nonzero(orange)[1].mean() < np.nonzero(blue)[1].mean()  # and further left: below the diagonal
    assert image[0, 0].tolist() == {"light": [255, 255, 255], "dark": [20, 23, 27]}[theme]


def test_names_may_hold_anything_and_may_be_a_thousand():
    assert confusion_png(np.eye(3, dtype=int), ["$\\frac{", "向日葵", "a_b^c %"])  # a warning here would be an error
    assert max(colors(confusion_png(np.eye(300, dtype=int), [str(i) for i in range(300)])).shape) < 3000
