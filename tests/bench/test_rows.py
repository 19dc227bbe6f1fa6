"""Rows: a target is met or missed by the ratio where there is one, and tables show what was measured."""

import pytest

from softbias.bench.rows import Row, markdown
from softbias.bench.window import exponent


@pytest.mark.parametrize(
    ("ratio", "target", "higher", "met"),
    [
        (0.9, 0.8, True, True),
        (0.7, 0.8, True, False),
        (1.2, 1.15, False, False),
        (1.1, 1.15, False, True),
        (1.0, None, True, None),
    ],
)
def test_a_target_is_a_least_or_a_most(ratio, target, higher, met):
    row = Row("a", "eager", 100.0, "images/s", against="b", ratio=ratio, target=target, higher=higher)
    assert row.met is met
    assert row.to_dict().get("met") is met


def test_without_a_ratio_the_value_is_what_the_target_asks_for():
    assert Row("first step", "eager", 4.0, "s", target=5.0, higher=False).met
    assert not Row("first step", "eager", 6.0, "s", target=5.0, higher=False).met


def test_a_table_leaves_out_columns_that_nobody_fills():
    table = markdown([Row("a", "eager", 1234.5, "images/s"), Row("b", "eager", 2.0, "s", note="seen once")])
    assert table.splitlines()[0] == "| what | how | value |"
    assert "| a | eager | 1,234 images/s |" in table and "- b: seen once" in table


def test_the_exponent_of_a_power_law_is_found():
    sizes = [16**2, 32**2, 64**2]
    assert exponent(sizes, [3e-6 * size**1.5 for size in sizes]) == pytest.approx(1.5)
