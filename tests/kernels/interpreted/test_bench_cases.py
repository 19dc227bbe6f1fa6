"""The benchmark compares forms of one function: on small inputs, all agree with its definition in float64."""

from __future__ import annotations

import pytest
import torch

from softbias.bench import kernel_cases
from softbias.bench.kernels import KERNELS, SWEEPS, errors, step, with_field

SMALL = {
    "distance": (5, 1, 17, 16), "masked": (5, 2, 17, 16), "gated": (5, 1, 16, 16), "gated short_seq": (5, 1, 16, 16),
    "depthwise": (5, 1, 4, 16),
}  # fmt: skip


def small_case(monkeypatch, name: str) -> kernel_cases.Case:
    torch.manual_seed(0)
    monkeypatch.setattr(kernel_cases, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(kernel_cases, "DTYPE", torch.float32)
    return kernel_cases.CASES[name][0](SMALL.get(name, (5, 1, 17, 16)))


@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_all_forms_of_a_case_are_the_same_function(monkeypatch, name) -> None:
    case = small_case(monkeypatch, name)
    for form, run in case.forms.items():
        if not form.startswith("("):
            allowed = 1e-3 if "half" in form else 1e-4  # sums may cancel
            assert all(float(error) < allowed for error in errors(case, run).split()), form


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_changes_a_field_of_its_kernel_and_not_the_result(monkeypatch, name) -> None:
    kind, _, field = name.partition(".")
    case = small_case(monkeypatch, kind)
    found, wanted = (
        step(case, run, backward=kind in KERNELS)()
        for run in (case.kernel(with_field(kind, field, SWEEPS[name][-1])), case.forms["plain"])
    )
    for a, b in zip(found, wanted, strict=kind in KERNELS):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
