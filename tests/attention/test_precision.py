"""Half precision at its limit: tokens of zeros, whose maps are divided by a norm of zero."""

from __future__ import annotations

import pytest
import torch

from softbias.attention import ATTENTION, Masked
from softbias.grid import Grid


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_tokens_of_nothing_give_finite_outputs_and_gradients(name, dtype):
    torch.manual_seed(0)
    layer = ATTENTION[name](32, 4, Grid(3, 5), qkv_bias=False)
    x = torch.zeros(2, 15, 32, requires_grad=True)
    with torch.autocast("cpu", dtype):
        y = layer(x)
    y.float().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)


def test_a_mask_near_one_is_not_rounded_to_one_in_half_precision():
    layer = Masked(32, 4, Grid(3, 5), norm="softmax", kernel="ones")
    with torch.no_grad():
        layer.mask_b += 1e-3 * torch.randn(layer.mask_b.shape, generator=torch.Generator().manual_seed(0))
    wanted = layer.log_mask()
    assert wanted.abs().median() < 4e-3  # half of the distance to the next number of bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer.log_mask(), wanted)
