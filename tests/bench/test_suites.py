"""Suites of the benchmark on a CPU, with small models and few rounds: which rows there are, and what they compare."""

import pytest
import torch

from softbias.bench.suites import SUITES, TIMM_VIT, Options
from softbias.models.cost import COSTS


def rows_of(suite, **options):
    return list(SUITES[suite](Options(torch.device("cpu"), rounds=2, batch=2, **options)))


def test_ibit_stands_beside_convit_in_parameters_and_in_speed():
    rows = rows_of("ibit", img_size=32, models=("ibit_nano", "convit_nano", "deit_nano"), modes=("inference",))
    by_name = {row.what: row for row in rows}
    assert [row.unit for row in rows] == ["M"] * 3 + ["G"] * 3 + ["images/s"] * 3
    own, other = by_name["ibit_nano: parameters"], by_name["convit_nano: parameters"]
    assert own.against == "convit_nano" and own.ratio == pytest.approx(own.value / other.value) and other.ratio is None
    assert by_name["ibit_nano"].against == "convit_nano" and by_name["ibit_nano"].ratio is not None


def test_the_tiny_ibit_has_more_parameters_than_the_tiny_convit():
    assert COSTS["ibit_tiny"][0] == 5_845_072 > COSTS["convit_tiny"][0]  # its document says fewer


def test_a_regularizer_is_timed_on_arvit_and_on_a_vit_of_timm():
    rows = rows_of("regularization")
    assert [row.what for row in rows] == [
        f"{model}, {name}" for model in ("arvit_nano", TIMM_VIT) for name in ("base", "distance", "style")
    ]
    assert all(row.unit == "ms" and row.value > 0 for row in rows)
    assert [row.against for row in rows] == [None, "base", "base"] * 2
