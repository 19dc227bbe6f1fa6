"""The contract, on every registered mechanism with the options that change its path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from softbias.attention import ATTENTION
from softbias.attention.contract import CHECKS, AttentionCase, check_attention, check_compile
from softbias.grid import Grid

TABLE: list[tuple[str, int, Grid, dict[str, Any]]] = [  # name, heads, grid, options
    ("full", 4, Grid(3, 5), {}),
    ("full", 2, Grid(4, 4, prefix=1), {"qkv_bias": False}),
    ("full", 2, Grid(3, 5, prefix=1), {"temperature": True, "mask_self": True}),
    ("positional", 4, Grid(3, 5), {"strength": 0.5}),
    ("positional", 2, Grid(4, 3, prefix=2), {"centers": "rectangular"}),
    ("positional", 4, Grid(3, 5), {"content": False}),
    ("positional", 2, Grid(4, 4), {"content": False, "centers": ((0, 1), (-2, 0.5)), "qkv_bias": False}),
    ("gated", 4, Grid(3, 5), {}),
    ("gated", 4, Grid(4, 4), {"gate": -1.0, "strength": 2.0, "qkv_bias": True}),
    ("gated", 2, Grid(4, 3, prefix=1), {"prefix": "content", "centers": "rectangular"}),
    ("gated", 2, Grid(3, 5, prefix=1), {"prefix": "content", "centers": "rectangular", "gating": "free"}),
    ("masked", 4, Grid(3, 5), {}),
    ("masked", 4, Grid(4, 4, prefix=1), {"rank": 5, "kernel": "gaussian(2)"}),
    ("masked", 2, Grid(3, 5), {"norm": "softmax", "roll": "none", "kernel": "exp_l1"}),
    ("masked", 4, Grid(4, 4, prefix=1), {"norm": "softmax", "kernel": "conv3x3"}),
    ("masked", 2, Grid(3, 4, prefix=1), {"roll": "released", "qkv_bias": False}),
    ("masked", 4, Grid(3, 4, prefix=1), {"biased_gradient": False}),
    ("window", 4, Grid(4, 4), {"window": 2}),
    ("window", 2, Grid(3, 5, prefix=1), {"window": 2}),
    ("window", 4, Grid(5, 4), {"window": 3, "mode": "shifted"}),
    ("window", 2, Grid(3, 7, prefix=1), {"window": 4, "mode": "shifted"}),
    ("window", 4, Grid(6, 7), {"window": 3, "mode": "sliding"}),
    ("window", 2, Grid(2, 5, prefix=2), {"window": 5, "mode": "sliding", "qkv_bias": False}),
    ("dwconv", 4, Grid(3, 5), {"kernel_size": 3}),
    ("dwconv", 1, Grid(4, 4), {"dynamic": True, "kernel_size": 5}),
]


def case_of(name: str, heads: int, grid: Grid, options: dict[str, Any]) -> AttentionCase:
    return AttentionCase(ATTENTION[name], 16, heads, grid, options)


def id_of(name: str, heads: int, grid: Grid, options: dict[str, Any]) -> str:
    choices = "".join(f"-{key}={value}" for key, value in options.items())
    return f"{name}-{heads}h-{grid.height}x{grid.width}+{grid.prefix}{choices}"


# A mechanism that is registered but has no row above is tested with its defaults: adding one is enough.
TABLE += [(name, 4, Grid(3, 5), {}) for name in sorted(set(ATTENTION) - {name for name, *_ in TABLE})]

CASES = [pytest.param(case_of(*row), id=id_of(*row)) for row in TABLE]
TRACING = {"check_compile", "check_export"}  # seconds each: the first row of every mechanism is quick, the others are slow
FIRST_ROWS = [next(row for row in TABLE if row[0] == name) for name in dict.fromkeys(name for name, *_ in TABLE)]


def contract_params() -> Iterator[Any]:
    for row in TABLE:
        for check in CHECKS:
            slow = check.__name__ in TRACING and row not in FIRST_ROWS
            name = f"{id_of(*row)}-{check.__name__}"
            yield pytest.param(case_of(*row), check, id=name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("case", "check"), list(contract_params()))
def test_the_mechanism_keeps_the_contract(case, check):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_mechanism_compiles_with_inductor(case):
    check_compile(case, backend="inductor")


def test_check_attention_runs_every_check_and_passes_the_backend_on(monkeypatch):
    seen = []
    compile_layer = torch.compile
    monkeypatch.setattr(torch, "compile", lambda layer, **how: seen.append(how) or compile_layer(layer, **how))
    names = check_attention(case_of(*TABLE[0]), compile_backend="eager")
    assert names == [check.__name__ for check in CHECKS]
    assert seen == [{"fullgraph": True, "backend": "eager"}]


def test_a_case_builds_the_same_layer_again_and_leaves_the_global_seed_alone():
    case = case_of(*TABLE[0])
    before = torch.get_rng_state()
    first, second, other = case.build(), case.build(), case.build(seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.qkv.weight, second.qkv.weight)
    assert not torch.equal(first.qkv.weight, other.qkv.weight)
