"""Which pictures a person should look at."""

import numpy as np

from softbias.runs.galleries import labels_worth_checking, least_certain, most_confident_mistakes

P = np.array([[0.02, 0.98], [0.019, 0.981], [0.001, 0.999], [0.6, 0.4], [0.45, 0.55]], np.float32)
LABELS = np.zeros(5, np.int64)


def test_mistakes_come_surest_first():
    assert most_confident_mistakes(LABELS, P).tolist() == [2, 1, 0, 4]


def test_labels_worth_checking_are_unlikely_where_another_class_is_sure():
    assert labels_worth_checking(LABELS, P).tolist() == [2, 1]  # 2 % is not less than 2 %
    spread = np.array([[0.01, 0.5, 0.49], [0.0, 0.905, 0.095]], np.float32)
    assert labels_worth_checking(LABELS[:2], spread).tolist() == [1]  # in the first no other class is sure


def test_least_certain_have_the_smallest_margin_whether_right_or_not():
    assert least_certain(P).tolist() == [4, 3, 0, 1, 2]
