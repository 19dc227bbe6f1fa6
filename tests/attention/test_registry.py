"""Names of mechanisms, mechanisms from outside, and refusals that say what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from softbias.attention import (
    ATTENTION,
    Attention,
    DepthwiseConv,
    Full,
    Gated,
    Masked,
    Positional,
    Window,
    find_attention,
    list_attention,
)
from softbias.errors import SoftbiasError
from softbias.grid import Grid


def test_every_registered_name_is_found_and_listed():
    assert sorted(list_attention()) == sorted(ATTENTION)
    for name, mechanism in ATTENTION.items():
        assert find_attention(name) is mechanism
        assert issubclass(mechanism, Attention)


def table_row(name: str, mechanism: type[Attention]) -> str:
    """A row of the table in docs/mechanisms.md."""
    layer = mechanism(16, 4, Grid(4, 4))
    try:
        mechanism(16, 4, Grid(4, 4, prefix=1))
        takes_class_token = "yes"
    except SoftbiasError:
        takes_class_token = 'with `prefix="content"`' if "prefix" in mechanism.__init__.__kwdefaults__ else "no"
    rows = ("yes" if layer.rows_sum_to_one else "no") if layer.has_map else "–"
    options = ", ".join(f"`{option}`" for option in mechanism.__init__.__kwdefaults__ if option != "qkv_bias") or "–"
    return f"| `{name}` | {mechanism.formula} | {rows} | {takes_class_token} | {options} |"


def test_the_table_in_the_documents_is_that_of_the_registry():
    text = (Path(__file__).parents[2] / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `\w+` \|.*\|$", text, re.M)
    expected = [table_row(name, mechanism) for name, mechanism in ATTENTION.items()]
    assert found == expected, "the table should be:\n" + "\n".join(expected)


EVERY = [*ATTENTION.values()]


@pytest.mark.parametrize("mechanism", EVERY)
def test_a_grid_that_is_none_is_refused(mechanism):
    with pytest.raises(ValueError, match=r"grid must be a softbias\.grid\.Grid, but got \(4, 4\)"):
        mechanism(16, 4, (4, 4))


@pytest.mark.parametrize("mechanism", EVERY)
def test_an_unknown_option_is_not_ignored(mechanism):
    with pytest.raises(TypeError, match="no_such_option"):
        mechanism(16, 4, Grid(4, 4), no_such_option=1)


REFUSALS = {
    "three heads tile no kernel": (lambda: Gated(24, 3, Grid(4, 4)), 'heads=3; ask for centers="rectangular".* as 1 × 3'),
    "nor do eight": (lambda: Positional(32, 8, Grid(4, 4)), "heads=8; .* as 2 × 4"),
    "gated class token": (
        lambda: Gated(32, 4, Grid(4, 4, prefix=1)),
        "takes no prefix tokens, but prefix=1; .*join at a later block",
    ),
    "gated prefix": (lambda: Gated(32, 4, Grid(4, 4), prefix="drop"), '"refuse" or "content", but prefix=\'drop\''),
    "place alone": (
        lambda: Positional(32, 4, Grid(4, 4, prefix=1), content=False),
        "positional attention without content takes no prefix tokens, but prefix=1; .*join at a later block",
    ),
    "convolved class token": (lambda: DepthwiseConv(32, 4, Grid(4, 4, prefix=2)), "takes no prefix tokens, but prefix=2"),
    "centers by name": (lambda: Gated(32, 4, Grid(4, 4), centers="round"), "\"rectangular\".*but centers='round'"),
    "too few centers": (lambda: Gated(32, 4, Grid(4, 4), centers=[(0, 1)]), r"4 pairs, but got shape \(1, 2\)"),
    "rank nought": (lambda: Masked(32, 4, Grid(4, 4), rank=0), "between 1 and the number of tokens, 16, but rank=0"),
    "rank above the tokens": (lambda: Masked(32, 4, Grid(4, 4, 1), rank=18), "the number of tokens, 17, but rank=18"),
    "mask kernel": (lambda: Masked(32, 4, Grid(4, 4), kernel="conv5x5"), "exp_l2, .*conv3x3, ones, but kernel='conv5x5'"),
    "gaussian of no width": (lambda: Masked(32, 4, Grid(4, 4), kernel="gaussian(0)"), "but kernel='gaussian"),
    "gaussian of two points": (lambda: Masked(32, 4, Grid(4, 4), kernel="gaussian(1.2.3)"), "but kernel='gaussian"),
    "unscaled gradient": (
        lambda: Masked(32, 4, Grid(4, 4), norm="softmax", biased_gradient=False),
        "biased_gradient=False needs norm='frobenius'",
    ),
    "mask norm": (lambda: Masked(32, 4, Grid(4, 4), norm="l1"), "norm must be one of frobenius, softmax, but norm='l1'"),
    "mask fit": (lambda: Masked(32, 4, Grid(4, 4), fit="lbfgs"), "fit must be one of svd, adam, sgd, but fit='lbfgs'"),
    "mask roll": (lambda: Masked(32, 4, Grid(4, 4), roll="left"), "one of paper, released, none, but roll='left'"),
    "even sliding window": (
        lambda: Window(32, 4, Grid(8, 8), window=4, mode="sliding"),
        "window must be odd, but window=4",
    ),
    "no window": (lambda: Window(32, 4, Grid(8, 8), window=0), "window must be at least 1, but window=0"),
    "window mode": (lambda: Window(32, 4, Grid(8, 8), mode="round"), "one of block, shifted, sliding, but mode='round'"),
    "even convolution": (lambda: DepthwiseConv(32, 4, Grid(8, 8), kernel_size=4), "odd, but kernel_size=4"),
    "kernels squeezed to nothing": (lambda: DepthwiseConv(32, 4, Grid(8, 8), dynamic=True, reduction=0), "but reduction=0"),
    "no heads": (lambda: Full(32, 0, Grid(4, 4)), "width=32 and heads=0"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_impossible_request_is_refused_with_what_was_given_and_what_is_allowed(refusal):
    build, telling = REFUSALS[refusal]
    with pytest.raises(ValueError, match=re.compile(telling, re.DOTALL)):
        build()


def test_three_heads_are_laid_out_in_a_row_when_asked():
    layer = Gated(24, 3, Grid(4, 4), centers="rectangular")
    assert layer.position.weight.tolist() == [[-2.0, 0.0, -1.0], [0.0, 0.0, -1.0], [2.0, 0.0, -1.0]]


def test_heads_sit_where_the_original_puts_them():
    weight = Gated(18, 9, Grid(4, 4), strength=3.0).position.weight
    for h1 in range(3):
        for h2 in range(3):
            assert weight[h1 + 3 * h2].tolist() == [3.0 * 2 * (h2 - 1), 3.0 * 2 * (h1 - 1), -3.0]
