"""A convolution built from positional heads: how equal they are, where, and what each head looks at."""

from __future__ import annotations

import numpy as np
import pytest

from softbias.cli import main
from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.models import create_model
from softbias.probes import convolution
from softbias.probes.convolution import DIFFERENCE, STRENGTHS

NOISE = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8), np.zeros(3, np.int64)


def differences(rows) -> dict[tuple[str, float], float]:
    found = {(row["where"], row["strength"]): row["value"] for row in rows if row["measure"] == DIFFERENCE}
    assert len(found) == sum(row["measure"] == DIFFERENCE for row in rows)
    return found


@pytest.mark.parametrize("side", [1, 3, 5])
def test_heads_on_a_padded_grid_are_the_convolution_and_on_a_bare_one_in_its_interior(side):
    rows = convolution.convolution(create_model("deit_nano", img_size=16), NOISE, side=side)
    found = differences(rows)
    padded = [found["everywhere", strength] for strength in STRENGTHS]
    assert padded == sorted(padded, reverse=True) and padded[-1] < 1e-7
    assert found["interior", 20.0] < 1e-7
    assert found["border", 20.0] > 1e-2 if side > 1 else found["border", 20.0] < 1e-7
    (heads,) = (row["value"] for row in rows if row["measure"] == "heads")
    assert heads == side * side


def test_every_head_looks_at_one_tap_of_its_own():
    rows = convolution.convolution(create_model("deit_nano", img_size=16), NOISE)
    seen = np.zeros((9, 5, 5))
    for row in rows:
        if row["measure"] == "tap":
            seen[row["head"], row["row"], row["column"]] = row["value"]
    wanted = np.zeros((9, 5, 5))
    for head in range(9):
        wanted[head, 1 + head // 3, 1 + head % 3] = 1
    np.testing.assert_allclose(seen, wanted, atol=1e-7)


@pytest.mark.parametrize(
    ("model", "layer", "heads"),
    [("resnet_nano", "conv1", 9), ("resnet_nano", "layer2.0.conv1", 4), ("dwconv_nano", "blocks.1.attn.mix", 49)],
)
def test_a_convolution_of_the_model_is_compared_on_its_real_input(model, layer, heads):
    rows = convolution.convolution(create_model(model, img_size=16), NOISE, layer=layer)
    assert differences(rows)["everywhere", 20.0] < 1e-6
    assert [row["value"] for row in rows if row["measure"] == "heads"] == [heads] and rows[0]["kernel"] == layer


def test_what_cannot_be_compared_is_refused():
    model = create_model("resnet_nano", img_size=16)
    with pytest.raises(NotMeasurableError, match="no convolution named 'fc', but conv1"):
        convolution.convolution(model, NOISE, layer="fc")
    with pytest.raises(SoftbiasError, match="side=2"):
        convolution.convolution(model, NOISE, side=2)
    large = np.zeros((1, 96, 96, 3), np.uint8), np.zeros(1, np.int64)
    with pytest.raises(NotMeasurableError, match="tokens"):
        convolution.convolution(create_model("resnet_nano", img_size=96, stem="small"), large, layer="conv1")


def test_the_command_prints_the_differences_and_draws_them(tmp_path, capsys):
    words = ["probe", "resnet_nano", "--data", "fashion", "--probes", "convolution", "--out", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--option", "convolution.layer=conv1"]) == 0
    assert DIFFERENCE in capsys.readouterr().out
    assert (tmp_path / "probes" / "convolution.png").stat().st_size > 5000
